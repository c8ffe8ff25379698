"""Finished trials measured anew: what was measured is never lost, whenever the process dies."""

import csv
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import result

from bench.machine.devices import Devices
from bench.plan import sweep
from bench.plan.sweep import Again
from bench.plan.trials import Sweep, expand
from bench.run.launch import LaunchOptions
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

TRIALS = [Trial(preset="tiny", round=number) for number in range(3)]
IDS = [trial.trial_id for trial in TRIALS]
OLD, NEW = 1.0, 2.0


def write(trial: Trial, directory: TrialDirectory, rate: float, status: str = "ok") -> dict[str, Any]:
    directory.path.mkdir(parents=True, exist_ok=True)
    write_record(directory.trial_json, trial.to_json())
    result = {"trial_id": trial.trial_id, "status": status, "reason": "", "samples_per_second": rate}
    write_record(directory.result_json, result)
    return result


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    for trial in TRIALS:
        write(trial, found.trial(trial.trial_id), OLD)
    return found


def rates(run: RunDirectory) -> dict[str, float]:
    """Samples/s of the trials that have a whole result, by round."""
    found = {}
    for directory in run.trials():
        result = directory.read_result()
        if result is not None:
            found[str(directory.read_trial().round)] = float(result["samples_per_second"])
    return found


Runner = Callable[[Trial, TrialDirectory], dict[str, Any]]


def measure_anew(run: RunDirectory, runner: Runner, *, again: bool = True) -> list[dict[str, Any]]:
    """One call of the command, its trials run by `runner`."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sweep, "run_trial", lambda trial, directory, *rest: runner(trial, directory))
    try:
        with sweep.locked(run):
            asked = Again(run, IDS) if again else None
            session = sweep.Session(
                run=run, request={}, devices=Devices("cpu", (), 2), options=LaunchOptions(),
                progress=lambda *rest: None, note=lambda text: None, again=asked,
            )  # fmt: skip
            found = sweep.run_trials(session, TRIALS)
            if asked is not None:
                asked.finish()
            return found
    finally:
        patch.undo()


def new(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
    return write(trial, directory, NEW)


def noting(ran: list[int]) -> Runner:
    """Measure, and note which round it was."""

    def runner(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
        ran.append(trial.round)
        return new(trial, directory)

    return runner


def test_every_round_is_measured_anew_and_the_earlier_ones_are_a_run_of_their_own(run: RunDirectory) -> None:
    assert [result["samples_per_second"] for result in measure_anew(run, new, again=False)] == [OLD] * 3
    assert [result["samples_per_second"] for result in measure_anew(run, new)] == [NEW] * 3
    first = RunDirectory(run.path / "earlier" / "1")
    assert rates(run) == dict.fromkeys("012", NEW) and rates(first) == dict.fromkeys("012", OLD)
    with run.results_csv.open(newline="") as file:
        assert [row["samples_per_second"] for row in csv.DictReader(file)] == ["2.0"] * 3
    measure_anew(run, lambda trial, directory: write(trial, directory, 3.0))
    assert rates(RunDirectory(run.path / "earlier" / "2")) == dict.fromkeys("012", NEW)
    assert rates(first) == dict.fromkeys("012", OLD), "a second call keeps what the first one kept"
    assert sorted(path.name for path in run.path.iterdir() if not path.name.startswith(".")) == [
        "earlier", "results.csv", "sweep.json", "trials"
    ]  # fmt: skip


def test_while_a_trial_runs_the_earlier_records_are_in_their_place(run: RunDirectory) -> None:
    seen = []

    def look(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
        seen.append((rates(run), directory.path != run.trial(trial.trial_id).path))
        return new(trial, directory)

    measure_anew(run, look)
    assert seen == [
        ({"0": OLD, "1": OLD, "2": OLD}, True),
        ({"0": NEW, "1": OLD, "2": OLD}, True),
        ({"0": NEW, "1": NEW, "2": OLD}, True),
    ]


def test_an_interrupted_call_is_continued_by_the_same_one(run: RunDirectory) -> None:
    ran: list[int] = []

    def stopped(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
        ran.append(trial.round)
        if trial.round == 1:
            write(trial, directory, 0.5, "interrupted")
            raise KeyboardInterrupt
        return new(trial, directory)

    with pytest.raises(KeyboardInterrupt):
        measure_anew(run, stopped)
    assert rates(run) == {"0": NEW, "1": OLD, "2": OLD} and not list((run.path / "again").iterdir())
    assert Again(run, IDS).continued and not Again(run, IDS[:1]).continued
    ran.clear()
    measure_anew(run, noting(ran))
    assert ran == [1, 2] and rates(run) == dict.fromkeys("012", NEW)
    assert rates(RunDirectory(run.path / "earlier" / "1")) == dict.fromkeys("012", OLD)
    ran.clear()
    measure_anew(run, noting(ran))
    assert ran == [0, 1, 2], "that call is over: the next one measures all"


@pytest.mark.parametrize(("status", "kept"), [("refused", OLD), ("oom", 0.0), ("crashed", 0.0), ("timeout", 0.0)])
def test_a_trial_that_was_refused_leaves_the_earlier_records(run: RunDirectory, status: str, kept: float) -> None:
    found = measure_anew(run, lambda trial, directory: write(trial, directory, 0.0, status))
    assert [result["status"] for result in found] == [status] * 3
    assert rates(run) == dict.fromkeys("012", kept)
    earlier = rates(RunDirectory(run.path / "earlier" / "1"))
    assert earlier == ({} if kept else dict.fromkeys("012", OLD)), "an end of its own is what is true now"


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(run: RunDirectory, where: str) -> None:
    """In a process of its own: measure anew and be killed with the second trial."""

    def runner(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
        if trial.round == 1 and where == "measuring":
            directory.path.mkdir(parents=True)
            write_record(directory.trial_json, trial.to_json())
            kill_self()
        result = new(trial, directory)
        if trial.round == 1 and where == "before the swap":
            kill_self()
        if trial.round == 1 and where == "between the moves":
            real = Path.rename

            def rename(path: Path, target: Path) -> Path:
                moved = real(path, target)
                kill_self()
                return moved

            Path.rename = rename  # type: ignore[method-assign, assignment]
        if trial.round == 1 and where == "before it is noted":
            Again.done = lambda self, trial_id: kill_self()  # type: ignore[method-assign]
        return result

    measure_anew(run, runner)


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("measuring", [1, 2]),
        ("before the swap", [2]),
        ("between the moves", [2]),
        ("before it is noted", [2]),
    ],
)
def test_nothing_is_lost_by_kill_9_at_any_point(run: RunDirectory, where: str, left: list[int]) -> None:
    child = multiprocessing.get_context("fork").Process(target=die_in, args=(run, where))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    everywhere = [json.loads(path.read_text()) for path in run.path.rglob("result.json")]
    measured = sorted((result["trial_id"], result["samples_per_second"]) for result in everywhere)
    whole = sorted([*((name, OLD) for name in IDS), (IDS[0], NEW), *([] if 1 in left else [(IDS[1], NEW)])])
    assert measured == whole, "all of what had ended is there"
    ran: list[int] = []
    measure_anew(run, noting(ran))
    assert ran == left, "and only the rest is measured"
    assert rates(run) == dict.fromkeys("012", NEW)
    assert rates(RunDirectory(run.path / "earlier" / "1")) == dict.fromkeys("012", OLD)
    assert not (run.path / "again").exists() and not (run.path / "again.json").exists()


def test_a_call_without_again_tidies_up_and_measures_nothing(run: RunDirectory) -> None:
    child = multiprocessing.get_context("fork").Process(target=die_in, args=(run, "between the moves"))
    child.start()
    child.join(60)
    measure_anew(run, lambda trial, directory: pytest.fail("all are finished"), again=False)
    assert rates(run) == {"0": NEW, "1": NEW, "2": OLD}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1, "asked": 5, "done": 5}'])
def test_a_damaged_note_of_an_interrupted_call_is_as_none(run: RunDirectory, text: str) -> None:
    (run.path / "again.json").write_text(text)
    assert not Again(run, IDS).continued
    measure_anew(run, new)
    assert rates(run) == dict.fromkeys("012", NEW)


def test_the_command_measures_anew_only_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Trial] = []

    def runner(trial: Trial, directory: TrialDirectory, *rest: object) -> dict[str, Any]:
        ran.append(trial)
        return write(trial, directory, NEW)

    monkeypatch.setattr(sweep, "run_trial", runner)
    words = ["pretrain", "--preset", "tiny", "--batch-size", "4", "8", "--device", "cpu", "--devices", "1"]
    words += ["--rounds", "2", "--out", str(tmp_path), "--json"]
    for more, count in (([], 4), ([], 0), (["--again"], 4), (["--again"], 4)):
        ran.clear()
        assert result("throughput", *words, *more).code == 0 and len(ran) == count
        assert (str(tmp_path / "earlier") in capsys.readouterr().err) is bool(more)
    ran.clear()

    def interrupted(trial: Trial, directory: TrialDirectory, *rest: object) -> dict[str, Any]:
        if len(ran) == 2:
            raise KeyboardInterrupt
        return runner(trial, directory)

    monkeypatch.setattr(sweep, "run_trial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        result("throughput", *words, "--again")
    monkeypatch.setattr(sweep, "run_trial", runner)
    assert result("throughput", *words, "--again").code == 0
    assert len(ran) == 4, "two before the interrupt, the other two after it"
    asked = Sweep(presets=("tiny",), batch_sizes=(4, 8), devices=(1,), rounds=2)
    assert [trial.round for trial in ran] == [trial.round for trial in expand(asked, Devices("cpu", (), 2))]
