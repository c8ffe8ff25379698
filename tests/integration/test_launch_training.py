"""`bertbench train` under `bertbench launch`, on one host."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cli import ROOT


@pytest.mark.slow
def test_a_training_that_cannot_begin_ends_on_all_ranks_with_one_message(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "bench.cli.main", "launch", "--quiet", "--here-gpus", "2", "--", "bertbench"]
    argv += ["train", "pretrain", "--device", "cpu", "--out", str(tmp_path / "run"), "--data", str(tmp_path / "none")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 3
    assert done.stderr.count(f"bertbench: {tmp_path}") == 1, done.stderr
    assert "ended with exit code 2; " in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_that_end_by_no_signal_are_killed_soon_and_the_first_failure_is_the_cause() -> None:
    program = 'trap "" TERM; if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.2; done'
    argv = [
        sys.executable,
        "-m",
        "bench.cli.main",
        "launch",
        "--here-gpus",
        "2",
        "--no-python",
        "--",
        "sh",
        "-c",
        program,
    ]
    began = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 3 and done.stdout == ""
    assert "failed: rank 1 on node 0 (host" in done.stderr and "ended with exit code 7" in done.stderr
    assert time.monotonic() - began < 40  # torchrun alone: half a minute after it has started
