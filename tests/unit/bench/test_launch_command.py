"""`bertbench launch` around its nodes: options, programs, ranks, verdicts, and a training that joins a world."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import check_refusal, refused

from bench.cli import main as cli
from bench.cli.launch import program_of
from bench.cluster import rank
from bench.cluster.statements import Failure, Report, Statement, Verdict, judge, restart_in_words
from bench.cluster.world import World, joined_world
from common.errors import Code

NODES = {
    node: Statement(node_rank=node, counts=(1, 2), max_restarts=0, host=f"host{node}", process=1, device="cpu")
    for node in (0, 1)
}
GOOD = Report(True)


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        ([], "option-missing", ["-- COMMAND"]),
        (["--here-gpus", "2", "--"], "option-missing", ["-- COMMAND"]),
        (["--", "no-such-script.py"], "path-missing", ["'no-such-script.py'"]),
        (["--", "sleep", "1"], "path-missing", ["'sleep'", "--no-python"]),
        (["--no-python", "--", "no-such-program"], "tool-missing", ["'no-such-program'"]),
        (["--module", "--no-python", "--", "x"], "option-conflict", ["--module", "--no-python"]),
        (["--join-timeout", "0", "--", "x"], "option-value", ["--join-timeout 0"]),
        (["--join-timeout", "nan", "--", "x"], "option-value", ["--join-timeout nan"]),
        (["--max-restarts", "-1", "--", "x"], "option-value", ["--max-restarts -1"]),
        (["--master-port", "70000", "--", "x"], "option-value", ["--master-port 70000", "65535"]),
        (["--here-gpus", "100000", "--no-python", "--", "true"], "device-missing", ["100000", "--crowded"]),
        (
            ["--other-gpus", "1", "--node-rank", "1", "--no-python", "--", "true"],
            "option-missing",
            ["2 nodes", "--master-addr"],
        ),
        (["--node-rank", "1", "--no-python", "--", "true"], "option-value", ["--node-rank 1", "0 to 0"]),
    ],
)
def test_what_cannot_be_launched_is_one_message_and_exit_code_2(
    words: list[str], code: Code, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["launch", *words]) == 2
    check_refusal(capsys.readouterr().err, code, *facts)


def test_programs_are_run_as_torchrun_runs_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert program_of([str(script), "--x", "--", "1"], False, False) == (
        sys.executable, "-u", str(script), "--x", "--", "1"
    )  # fmt: skip
    assert program_of(["a.b", "--x"], True, False) == (sys.executable, "-u", "-m", "a.b", "--x")
    assert program_of(["sh", "-c", "x"], False, True) == ("sh", "-c", "x")
    assert program_of(["bertbench", "train"], False, False)[1:] == ("-u", "-m", "bench.cli.main", "train")


def run_rank(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    own = {"LOCAL_RANK": "1", "RANK": "5", rank.ROUND_VARIABLE: "2", rank.PYTHONPATH_VARIABLE: "/theirs"}
    environment = {**os.environ, "PYTHONPATH": "/ours", **own, **variables}
    environment.pop("BERTBENCH_PARENT_PID", None)
    argv = [sys.executable, "-I", rank.__file__, *command]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_rank_is_bound_and_becomes_the_program_with_its_own_variables() -> None:
    (cpu, *_) = sorted(os.sched_getaffinity(0))
    show = "import os, json; print(json.dumps([sorted(os.sched_getaffinity(0)), dict(os.environ)]))"
    done = run_rank(sys.executable, "-S", "-c", show, **{rank.CPUS_VARIABLE: json.dumps([[], [cpu]])})
    cpus, variables = json.loads(done.stdout)
    assert cpus == [cpu] and variables[rank.BOUND_VARIABLE] == "1"
    assert (variables["PYTHONPATH"], variables["TORCHELASTIC_RESTART_COUNT"]) == ("/theirs", "2")
    assert not [name for name in variables if name.startswith("BERTBENCH_LAUNCH")]
    done = run_rank(sys.executable, "-S", "-c", show, **{rank.CPUS_VARIABLE: "[[], []]", rank.PYTHONPATH_VARIABLE: ""})
    cpus, variables = json.loads(done.stdout)
    assert cpus == sorted(os.sched_getaffinity(0))
    assert rank.BOUND_VARIABLE not in variables and "PYTHONPATH" not in variables


def test_a_program_that_cannot_be_run_is_named_with_its_rank(tmp_path: Path) -> None:
    done = run_rank("no-such-program")
    assert done.returncode == 127 and "rank 5 cannot run no-such-program: No such file" in done.stderr
    (tmp_path / "plain").touch()
    assert run_rank(str(tmp_path / "plain")).returncode == 126


@pytest.mark.parametrize(
    ("reports", "lost", "asked", "verdict"),
    [
        ({0: GOOD, 1: GOOD}, {}, None, Verdict(True)),
        ({0: GOOD}, {1: "silent"}, None, Verdict(False, "node 1 (host host1, ranks 1 to 2) was lost: silent")),
        ({0: GOOD, 1: GOOD}, {1: "hung up after its report"}, None, Verdict(True)),
        ({0: GOOD}, {}, None, Verdict(False, "node 1 (host host1, ranks 1 to 2) did not report a result")),
        (
            {0: Report(False, (Failure(0, 1, 1.0),)), 1: Report(False, (Failure(2, -6, 9.0), Failure(1, -15, 0.0)))},
            {},
            None,
            Verdict(False, "rank 2 on node 1 (host host1) died by SIGABRT"),
        ),
        (
            {0: Report(False, (Failure(0, 1, 2.0),)), 1: Report(False, (Failure(2, 3, 1.0),))},
            {},
            None,
            Verdict(False, "rank 2 on node 1 (host host1) ended with exit code 3"),
        ),
        ({0: Report(False, (Failure(0, -99, 2.0),)), 1: GOOD}, {}, None,
         Verdict(False, "rank 0 on node 0 (host host0) died by signal 99")),
        ({0: Report(False, (Failure(0, -15, 1.0),)), 1: Report(False, (Failure(1, 2, 1.0),))}, {}, None,
         Verdict(False, "rank 1 on node 1 (host host1) ended with exit code 2")),
        ({0: Report(False, error="no memory"), 1: GOOD}, {}, None,
         Verdict(False, "node 0 (host host0, rank 0): no memory")),
        ({0: GOOD, 1: GOOD}, {}, "stopped", Verdict(True, "stopped")),
        ({0: GOOD, 1: Report(False, (Failure(1, -15, 1.0),))}, {}, "stopped", Verdict(False, "stopped")),
        ({0: GOOD, 1: Report(False, (Failure(1, -11, 1.0),))}, {}, "stopped",
         Verdict(False, "rank 1 on node 1 (host host1) died by SIGSEGV")),
    ],
)  # fmt: skip
def test_the_verdict_names_the_cause(
    reports: dict[int, Report], lost: dict[int, str], asked: str | None, verdict: Verdict
) -> None:
    assert judge(NODES, reports, lost, asked) == verdict


def test_a_restart_names_the_rank_that_was_killed_before_those_that_lost_it() -> None:
    failures = {"0": {"rank": 0, "exit_code": 3, "time": 1.0}, "1": {"rank": 2, "exit_code": -9, "time": 1.1}}
    line = json.dumps({"round": 1, "failures": failures})
    assert restart_in_words(line, NODES) == "restart 1 of 0: rank 2 on node 1 (host host1) died by SIGKILL"
    line = json.dumps({"round": 2, "failures": {"0": None, "1": None}})
    assert restart_in_words(line, NODES) == "restart 2 of 0: a node's processes ended"


def test_reports_and_statements_survive_the_way_and_damage_does_not_pass() -> None:
    report = Report(False, (Failure(2, -9, 1.5),), "text")
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert Report.from_json({"ok": True}) == Report(False, error="its report cannot be read")
    plain = json.loads(json.dumps(NODES[1].to_json()))
    assert Statement.from_json(plain) == NODES[1]
    for name, wrong in (("counts", [0]), ("counts", "12"), ("node_rank", 2), ("node_rank", -1), ("host", 3)):
        assert Statement.from_json({**plain, name: wrong}) is None
    assert Statement.from_json([]) is None and Statement.from_json({}) is None


WORLD = {"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def in_world(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> World | None:
    for name, value in {**WORLD, "LOCAL_WORLD_SIZE": "2", **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    return joined_world()


def test_a_process_is_a_rank_only_where_all_variables_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_world(monkeypatch) == World(2, 1, 3, 2, 1)
    for name in WORLD:
        with monkeypatch.context() as patch:
            assert in_world(patch, **{name: None}) is None
    for damage, fact in (
        ({"RANK": "x"}, "RANK='x'"),
        ({"RANK": "3"}, "rank 3 of 3"),
        ({"LOCAL_RANK": "2"}, "local rank 2 of 2"),
        ({"MASTER_PORT": ""}, "MASTER_PORT=''"),
    ):
        with monkeypatch.context() as patch, refused("option-value", fact):
            in_world(patch, **damage)


def test_the_devices_of_a_training_in_a_world_are_its_ranks() -> None:
    world = World(0, 0, 3, 1, 3)
    assert world.check_devices(None) == world.check_devices(3) == 3
    with refused("option-conflict", "--devices 2", 3):
        world.check_devices(2)


@pytest.mark.parametrize(("told", "threads"), [("3", 3), ("0", 4), ("", 4), ("x", 4)])
def test_threads_of_a_rank_are_those_of_its_launch_or_a_share(
    told: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert World(0, 0, 3, 2, 1).threads(8) == threads
