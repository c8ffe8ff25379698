"""The time budget of bench.sh, with a `bertbench` that only records how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT
from support.fake_run import write_sweep

from analysis.load import load_run
from bench.sweep.winner import seconds_of_fastest
from records.files import read_record, write_record

FAKE = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ $1 != doctor ]]
"""
PYTHON = """#!/usr/bin/env bash
[[ $* == "-m bench.sweep.winner $OUT" ]] && echo "$WALL"
"""


class Script:
    """A copy of bench.sh beside a fake `bertbench`, and a fake python3 that tells how long trials took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.calls = folder, folder / "run", folder / "calls.txt"
        (folder / "bench").mkdir()
        shutil.copy(ROOT / "bench" / "bench.sh", folder / "bench")
        (folder / ".venv/bin").mkdir(parents=True)
        for name, text in (("bertbench", FAKE), ("python3", PYTHON)):
            (folder / ".venv/bin" / name).write_text(text)
            (folder / ".venv/bin" / name).chmod(0o755)

    def __call__(self, budget: int, wall: int = 0) -> "tuple[dict[str, list[str]], str]":
        """Return the options of each command that ran, and the notes."""
        environment = {**os.environ, "OUT": str(self.run), "CALLS": str(self.calls)}
        environment |= {"BUDGET": str(budget), "WALL": str(wall)}
        for name in ("DATA", "ROUNDS", "DEVICES", "MAX_SECONDS"):
            environment.pop(name, None)
        done = subprocess.run(
            ["bash", str(self.folder / "bench" / "bench.sh")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        words = [line.split() for line in self.calls.read_text().splitlines()]
        return {call[0]: call[1:] for call in words if call[0] != "doctor"}, done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def time_budget(calls: "dict[str, list[str]]") -> int:
    words = calls["throughput"]
    return int(words[words.index("--time-budget") + 1])


def test_every_step_runs_where_the_budget_is_enough(script: Script) -> None:
    calls, notes = script(300)
    assert list(calls) == ["data", "throughput", "profile", "speed-of-light", "report"]
    assert not notes
    assert 215 <= time_budget(calls) <= 230


def test_the_run_directory_is_relative_to_the_folder_of_the_caller(script: Script) -> None:
    elsewhere = script.folder / "elsewhere"
    elsewhere.mkdir()
    for given, cwd, used in (("mine", elsewhere, "elsewhere/mine"), ("runs/x", script.folder, "runs/x")):
        environment = {**os.environ, "OUT": given, "CALLS": str(script.calls), "BUDGET": "300", "WALL": "0"}
        command = ["bash", str(script.folder / "bench" / "bench.sh")]
        subprocess.run(command, env=environment, cwd=cwd, capture_output=True, timeout=60, check=True)
        assert script.calls.read_text().splitlines()[-1] == f"report {used}"
        assert (script.folder / used).is_dir()


def test_steps_that_do_not_fit_into_the_budget_are_left_out_and_the_report_is_written(script: Script) -> None:
    calls, notes = script(90, 40)  # the profile needs 80 s, the report 15 s; the speed of light 55 s
    assert list(calls) == ["data", "throughput", "speed-of-light", "report"]
    assert len(notes.splitlines()) == 1 and "about 80 s" in notes and "BUDGET" in notes
    calls, notes = script(30, 40)
    assert "throughput" in calls and "report" in calls and len(notes.splitlines()) == 2
    assert time_budget(calls) == 1


@pytest.mark.parametrize("budget", ["abc", "-5", "0", "1.5"])
def test_a_budget_that_is_none_is_refused_before_anything_runs(script: Script, budget: str) -> None:
    environment = {**os.environ, "OUT": str(script.run), "CALLS": str(script.calls), "BUDGET": budget}
    argv = ["bash", str(script.folder / "bench" / "bench.sh")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and f"BUDGET={budget}" in done.stderr and not script.run.exists()


def test_the_time_of_a_trial_is_that_of_the_slowest_round_of_the_fastest_configuration(tmp_path: Path) -> None:
    run = write_sweep(
        tmp_path / "run", implementations=("bertbench",), batches=(4, 16), worlds=(1,), rounds=2, count=15
    )
    best = max(load_run(run), key=lambda one: one.row["samples_per_second"]).trial
    for trial in load_run(run):
        path = trial.directory.result_json
        same = trial.trial.micro_batch_size == best.micro_batch_size
        wall = (20.2, 30.5)[trial.trial.round] if same else 500.0
        write_record(path, {**read_record(path), "wall_seconds": wall})
    assert seconds_of_fastest(run.path) == 31


def test_a_run_that_cannot_be_read_is_left_to_the_next_commands(script: Script) -> None:
    (script.folder / ".venv/bin/python3").write_text("#!/usr/bin/env bash\nexit 1\n")
    calls, notes = script(300)
    assert "profile" in calls and not notes
