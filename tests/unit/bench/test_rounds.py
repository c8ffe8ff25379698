"""Rounds added to a sweep until the comparison with hf at the fastest configuration is conclusive."""

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import result
from support.fake_run import noisy_times, step_rows, write_trial
from support.refusals import refused

from bench.sweep import sweep
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

WORDS = ("pretrain", "--preset", "tiny", "--device", "cpu", "--devices", "1", "--precisions", "fp32", "--seq-lens",
         "32", "--batch-sizes", "4", "8")  # fmt: skip
BOTH = ("--implementations", "bertbench", "hf")
# Step time in ms by implementation and micro batch: 8 is the fastest of bertbench.
STEP_MS = {("bertbench", 4): 45.0, ("bertbench", 8): 80.0, ("hf", 4): 110.0, ("hf", 8): 200.0}
Ran = list[tuple[str, int, int]]


class Machine:
    """In place of running a trial: writes records of steps as long as `time_ms` says."""

    def __init__(self, folder: Path) -> None:
        self.ran: Ran = []
        self.time_ms: Callable[[Trial], float] = lambda trial: STEP_MS[trial.implementation, trial.micro_batch_size]
        self.status: Callable[[Trial], str] = lambda trial: "ok"
        self.wall_seconds = 1.0
        self._scratch = (RunDirectory(folder / str(number)) for number in itertools.count())

    def run(self, trial: Trial, directory: TrialDirectory, *rest: object) -> dict[str, Any]:
        self.ran.append((trial.implementation, trial.micro_batch_size, trial.round))
        status, scratch = self.status(trial), next(self._scratch)
        rows = step_rows(noisy_times(self.time_ms(trial), 40, len(self.ran)), trial.micro_batch_size)
        write_trial(
            scratch, trial, {0: rows} if status == "ok" else None, status=status, reason="" if status == "ok" else "why"
        )
        made = scratch.trial(trial.trial_id)
        found = {"trial_id": trial.trial_id, "status": status, "reason": "why", "wall_seconds": self.wall_seconds}
        write_record(made.result_json, found)
        shutil.copytree(made.path, directory.path, dirs_exist_ok=True)
        return found

    def forget(self) -> Ran:
        """Return what ran since the last call."""
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "scratch")
    monkeypatch.setattr(sweep, "run_trial", made.run)
    return made


def call(tmp_path: Path, *more: str, budget: str = "100") -> Any:
    return result("throughput", *WORDS, *BOTH, "--time-budget", budget, "--out", str(tmp_path / "run"), *more)


FIRST = [("bertbench", 4, 0), ("hf", 4, 0), ("bertbench", 8, 0), ("hf", 8, 0)]
ADDED = [("hf", 8, 1), ("bertbench", 8, 1), ("bertbench", 8, 2), ("hf", 8, 2)]


def test_the_fastest_and_hf_are_repeated_in_alternating_order_until_it_is_conclusive(
    tmp_path: Path, machine: Machine
) -> None:
    called = call(tmp_path)
    assert machine.forget() == FIRST + ADDED
    (found,) = called.document["comparisons"]
    assert (found["decided"], found["micro_batch_size"]) == ("yes", 8)
    assert (found["rounds"], found["reference_rounds"]) == (3, 3)
    assert found["throughput_ratio"] == pytest.approx(2.5, rel=0.02)
    assert called.code == 0 and len(called.document["rows"]) == 8
    assert call(tmp_path).document["comparisons"] == [found]
    assert machine.forget() == [], "what is decided is not measured again"


@pytest.mark.parametrize(("hf_ms", "decided", "ratio"), [(85.0, "no", 1.0), (40.0, "yes", 0.47)])
def test_equal_sides_are_conclusive_and_hf_may_be_the_fastest(
    hf_ms: float, decided: str, ratio: float, tmp_path: Path, machine: Machine
) -> None:
    machine.time_ms = lambda trial: {"hf": hf_ms, "bertbench": 85.0}[trial.implementation] * trial.micro_batch_size / 8
    (found,) = call(tmp_path).document["comparisons"]
    assert (found["decided"], found["implementation"]) == (decided, "bertbench")
    assert found["throughput_ratio"] == pytest.approx(ratio, rel=0.02)


def test_a_round_that_a_kill_left_half_is_completed(tmp_path: Path, machine: Machine) -> None:
    call(tmp_path)
    machine.forget()
    run = RunDirectory(tmp_path / "run")
    for trial in run.trials():
        known = trial.read_trial()
        if known.round == 2 or (known.round == 1 and known.implementation == "hf"):
            trial.result_json.unlink()
    assert call(tmp_path).document["comparisons"][0]["decided"] == "yes"
    assert machine.forget() == [("hf", 8, 1), *ADDED[2:]]


@pytest.mark.parametrize(("status", "fails_in", "ran"), [("oom", 0, FIRST), ("crashed", 1, FIRST + ADDED[:2])])
def test_a_side_that_fails_ends_it_with_the_reason(
    status: str, fails_in: int, ran: Ran, tmp_path: Path, machine: Machine
) -> None:
    machine.status = lambda trial: status if (trial.implementation, trial.round) == ("hf", fails_in) else "ok"
    called = call(tmp_path)
    assert machine.forget() == ran and called.code == 3
    assert status in called.document["comparisons"][0]["sentence"]


def test_configurations_that_do_not_fit_into_the_time_are_left_to_the_next_call(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    inside = machine.time_ms

    def passes(trial: Trial) -> float:
        now[0] += 10.0
        return inside(trial)

    machine.time_ms = passes
    called = call(tmp_path, budget="15")
    assert machine.forget() == FIRST[:2], "both sides of the first configuration, whatever they take"
    (found,) = called.document["comparisons"]
    assert called.code == 0 and "2 of 4" in called.notes[0] and called.notes[1] == found["sentence"]
    assert found["decided"] == "cannot decide" and "time budget" in found["sentence"]
    assert found["reason"] in found["sentence"]
    assert call(tmp_path, budget="35").document["comparisons"][0]["decided"] == "cannot decide"
    assert machine.forget() == [*FIRST[2:], *ADDED[:2]], "the rest, and the round that begins in time"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--time-budget", "0"), "option-value"),
        (("--time-budget", "9", "--input-only"), "option-conflict"),
        (("--time-budget", "9", "--implementations", "bertbench"), "option-not-applicable"),
        (("--time-budget", "9", "--implementations", "hf"), "option-not-applicable"),
    ],
)
def test_refusals(more: tuple[str, ...], code: str, tmp_path: Path) -> None:
    with refused(code, more[0]):
        result("throughput", *WORDS, *more, "--out", str(tmp_path / "run"))
