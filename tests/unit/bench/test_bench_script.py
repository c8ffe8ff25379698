"""The time budget of bench.sh, with a `bertbench` that only records how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT

FAKE = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ $1 != doctor ]]
"""


class Script:
    """A copy of bench.sh beside a fake `bertbench`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.calls = folder, folder / "run", folder / "calls.txt"
        (folder / "bench").mkdir()
        shutil.copy(ROOT / "bench" / "bench.sh", folder / "bench")
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/bertbench").write_text(FAKE)
        (folder / ".venv/bin/bertbench").chmod(0o755)

    def __call__(self, budget: int) -> "tuple[dict[str, list[str]], str]":
        """Return the options of each command that ran, and the notes."""
        environment = {**os.environ, "OUT": str(self.run), "CALLS": str(self.calls), "BUDGET": str(budget)}
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
    assert 230 <= time_budget(calls) <= 240


def test_the_run_directory_is_relative_to_the_folder_of_the_caller(script: Script) -> None:
    elsewhere = script.folder / "elsewhere"
    elsewhere.mkdir()
    for given, cwd, used in (("mine", elsewhere, "elsewhere/mine"), ("runs/x", script.folder, "runs/x")):
        environment = {**os.environ, "OUT": given, "CALLS": str(script.calls), "BUDGET": "300"}
        command = ["bash", str(script.folder / "bench" / "bench.sh")]
        subprocess.run(command, env=environment, cwd=cwd, capture_output=True, timeout=60, check=True)
        assert script.calls.read_text().splitlines()[-1] == f"report {used}"
        assert (script.folder / used).is_dir()


def test_steps_that_do_not_fit_into_the_budget_are_left_out_and_the_report_is_written(script: Script) -> None:
    calls, notes = script(40)  # 22 s of the profile and 15 s of the report; the speed of light needs 26 s
    assert list(calls) == ["data", "throughput", "profile", "report"]
    assert len(notes.splitlines()) == 1 and "about 26 s" in notes and "BUDGET" in notes
    calls, notes = script(30)
    assert "throughput" in calls and "report" in calls and len(notes.splitlines()) == 2
    assert time_budget(calls) == 1


@pytest.mark.parametrize("budget", ["abc", "-5", "0", "1.5"])
def test_a_budget_that_is_none_is_refused_before_anything_runs(script: Script, budget: str) -> None:
    environment = {**os.environ, "OUT": str(script.run), "CALLS": str(script.calls), "BUDGET": budget}
    argv = ["bash", str(script.folder / "bench" / "bench.sh")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and f"BUDGET={budget}" in done.stderr and not script.run.exists()
