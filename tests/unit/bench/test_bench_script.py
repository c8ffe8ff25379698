"""The time budget of bench.sh, with a `bertbench` that only records how it is called."""

import csv
import json
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
WINNER = {"implementation": "bertbench", "micro_batch_size": "8"}


class Script:
    """A copy of bench.sh beside a fake `bertbench`, and a run directory with finished trials."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.calls = folder, folder / "run", folder / "calls.txt"
        (folder / "bench").mkdir()
        shutil.copy(ROOT / "bench" / "bench.sh", folder / "bench")
        fake = folder / ".venv/bin/bertbench"
        fake.parent.mkdir(parents=True)
        fake.write_text(FAKE)
        fake.chmod(0o755)

    def finished(self, *trials: tuple[dict[str, str], float, float]) -> None:
        """Write trials of some fields, samples/s and wall seconds."""
        names = ("implementation", "strategy", "preset", "precision", "seq_len", "micro_batch_size", "world_size")
        rows = []
        for number, (fields, rate, wall) in enumerate(trials):
            about = {"trial_id": f"t{number}", "kind": "throughput", "status": "ok", "samples_per_second": rate}
            rows.append({**dict.fromkeys(names, "x"), **about, **fields})
            (self.run / "trials" / f"t{number}").mkdir(parents=True)
            (self.run / "trials" / f"t{number}" / "result.json").write_text(json.dumps({"wall_seconds": wall}))
        with (self.run / "results.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def __call__(self, budget: int) -> "tuple[dict[str, list[str]], str]":
        """Return the options of each command that ran, and the notes."""
        environment = {**os.environ, "OUT": str(self.run), "CALLS": str(self.calls), "BUDGET": str(budget)}
        for name in ("DATA", "AGAIN", "ROUNDS", "DEVICES", "MAX_SECONDS"):
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


def test_steps_that_do_not_fit_into_the_budget_are_left_out_and_the_report_is_written(script: Script) -> None:
    script.finished((WINNER, 90.0, 40.0))
    calls, notes = script(100)  # the profile needs 80 s, the report 40 s; the speed of light 55 s
    assert list(calls) == ["data", "throughput", "speed-of-light", "report"]
    assert len(notes.splitlines()) == 1 and "about 80 s" in notes and "BUDGET" in notes
    calls, notes = script(30)
    assert "throughput" in calls and "report" in calls and len(notes.splitlines()) == 2
    assert time_budget(calls) == 1


def test_the_time_of_a_trial_is_that_of_the_slowest_round_of_the_fastest_configuration(script: Script) -> None:
    slow = {**WINNER, "micro_batch_size": "4"}
    script.finished((WINNER, 90.0, 20.2), (WINNER, 89.0, 30.5), (slow, 10.0, 500.0))
    calls, notes = script(1000)
    assert not notes and "profile" in calls
    assert 1000 - (4 * 31 + 15) - 10 <= time_budget(calls) <= 1000 - (4 * 31 + 15)
