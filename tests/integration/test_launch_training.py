"""`bertbench launch` on one host."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.cli import ROOT, wait_for

LAUNCH = [sys.executable, "-m", "bench.cli.main", "launch", "--quiet", "--here-gpus", "2"]


def launched(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*LAUNCH, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.slow
def test_a_training_that_cannot_begin_ends_on_all_ranks_with_one_message(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--out", str(tmp_path / "run"), "--data", str(tmp_path / "none")]
    done = launched("--", "bertbench", "train", "pretrain", *words)
    assert done.returncode == 3
    assert done.stderr.count(f"bertbench: {tmp_path}") == 1, done.stderr
    assert "ended with exit code 2 [rank-failed]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host.invalid", "a..b"])
def test_a_node_without_node_0_ends_with_one_line(tmp_path: Path, address: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    node = ("--other-gpus", "1", "--node-rank", "1", "--master-addr", address, "--master-port", "29778")
    done = launched(*node, "--join-timeout", "2", "--", str(script))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"{address}:29778" in done.stderr


@pytest.mark.slow
def test_a_rank_that_cannot_reach_rank_0_ends_at_a_signal(tmp_path: Path) -> None:
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29779"}
    words = ["train", "pretrain", "--data", "synthetic", "--device", "cpu", "--out", str(tmp_path / "run")]
    argv = [sys.executable, "-m", "bench.cli.main", *words]
    with subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True) as rank:
        time.sleep(8)  # it has begun to wait
        rank.terminate()
        _, stderr = rank.communicate(timeout=60)
    assert rank.returncode == -signal.SIGTERM and "Traceback" not in stderr


def test_ranks_that_end_by_no_signal_are_killed_soon_and_the_first_failure_is_the_cause() -> None:
    program = 'trap "" TERM; if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.2; done'
    began = time.monotonic()
    done = launched("--no-python", "--", "sh", "-c", program)
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.endswith("rank 1 ended with exit code 7 [rank-failed]\n")
    assert time.monotonic() - began < 40  # torchrun alone: half a minute after it has started


def test_the_exception_of_a_rank_that_records_it_is_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    raise ValueError('no such layer')\n"
        "main()\n"
    )
    assert "ended with exit code 1: ValueError: no such layer [rank-failed]" in launched("--", str(script)).stderr


@pytest.mark.parametrize(
    ("victim", "number", "code", "line"),
    [
        ("launcher", signal.SIGINT, 130, "stopped by SIGINT on node 0"),
        ("launcher", signal.SIGKILL, -9, ""),
        ("torchrun", signal.SIGKILL, 3, "torchrun died by SIGKILL [rank-failed]"),
    ],
)
def test_no_process_of_a_launch_is_left(victim: str, number: signal.Signals, code: int, line: str) -> None:
    argv = [*LAUNCH, "--no-python", "--", "sh", "-c", "sleep 1000; true"]
    launcher = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []

    def sleeping() -> bool:
        below[:] = psutil.Process(launcher.pid).children(recursive=True)
        return sum(process.name() == "sleep" for process in below) == 2

    wait_for(sleeping, "two ranks")
    (guard,) = psutil.Process(launcher.pid).children()
    (torchrun,) = guard.children()
    (torchrun if victim == "torchrun" else launcher).send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code and line in errors, errors
    _, left = psutil.wait_procs(below, timeout=20)
    assert not left
