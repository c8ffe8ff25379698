"""A comparison that is stopped saves, and the same command goes on from there."""

import signal
import subprocess
from pathlib import Path

from support.cli import ROOT, wait_for
from support.compare_cli import Compare
from support.training_runs import shards

from records.training import TrainRun


def test_a_stopped_comparison_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = Compare(shards(tmp_path / "data"), tmp_path / "out")
    run = TrainRun(command.out / "single-1")
    argv = command.argv(steps=2000)
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: process.poll() is not None or len(run.read_curve()) > 2, "steps")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0 and "stopped by SIGTERM" in told, told
    state = run.read_state() or {}
    assert state["checkpoint"] and not state["finished"] and not (command.out / "ddp-2").exists()
    # With a time limit it stops by itself, after it has gone on from there.
    again = subprocess.run(
        [*argv, "--max-seconds", "1"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 0 and "resumes after step" in again.stderr, again.stderr
    assert "the limit of 1 s" in again.stderr and not (command.out / "comparison.json").exists()
