"""What is said of a launch that restarts or ends: one line with the rank that was first."""

import json
from pathlib import Path

import pytest

from bench.cluster import STOPPING_VARIABLE
from bench.cluster.statements import Statement, restart_in_words
from bench.run.launch import launch_failure, lost_peer

NODES = {
    node: Statement(node_rank=node, counts=(1, 2), max_restarts=2, host=f"host{node}", process=1, device="cpu")
    for node in (0, 1)
}


def test_a_restart_names_the_rank_that_was_killed_before_those_that_lost_it() -> None:
    failures = {"0": {"rank": 0, "exit_code": 3, "time": 1.0}, "1": {"rank": 2, "exit_code": -9, "time": 1.1}}
    line = json.dumps({"round": 1, "failures": failures})
    assert restart_in_words(line, NODES) == "restart 1 of 2: rank 2 on node 1 (host host1) died by SIGKILL"
    line = json.dumps({"round": 2, "failures": {"0": None, "1": None}})
    assert restart_in_words(line, NODES) == "restart 2 of 2: a node's processes ended"


def test_a_lost_connection_is_told_from_other_failures() -> None:
    assert lost_peer("RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    assert not lost_peer("ValueError: shapes differ")


def test_why_a_launch_ends_is_read_where_it_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STOPPING_VARIABLE, raising=False)
    assert not launch_failure()
    monkeypatch.setenv(STOPPING_VARIABLE, str(tmp_path / "stopping"))
    assert not launch_failure()
    (tmp_path / "stopping").write_text("node 1 is gone")
    assert launch_failure() == "node 1 is gone"
