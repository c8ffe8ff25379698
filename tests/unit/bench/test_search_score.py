"""`bertbench tune` from its words to its files, with trainings that are written down instead of made."""

import csv
import json
import math
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.commands import result

pytest.importorskip("optuna")

from support.training_runs import SEQ_LEN

from bench.cli.parser import parse
from bench.search import score
from bench.sweep.training import TrainOptions
from common.errors import StorageError
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun

Scores = Callable[[Mapping[str, Any], int], float | None]


class Trainings:
    """Stands for bench.sweep.training.train_once: writes the evaluations that `scores` gives for the settings."""

    def __init__(self) -> None:
        self.scores: Scores = lambda settings, number: abs(math.log10(settings["learning_rate"]) + 3) + 1 / number
        self.ends: dict[int, Mapping[str, Any] | BaseException] = {}
        self.made: list[Mapping[str, Any]] = []
        self.score = "mlm_loss"

    def __call__(self, run: TrainRun, plan: Any, devices: Any, watcher: Any) -> tuple[TrialDirectory, dict[str, Any]]:
        settings = plan.settings.to_json()
        self.made.append(settings)
        number, training = len(run.attempts()), tuple(sorted(settings.items()))
        trial = plan.trial(kind="train", device=devices.kind, round=number, training=training)
        directory = run.run.trial(trial.trial_id)
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, trial.to_json())
        (run.checkpoints / "step-1").mkdir(parents=True, exist_ok=True)
        finished = True
        for number, applied in enumerate(range(2, settings["steps"] + 1, settings["eval_every"]), start=1):
            event = {"event": "evaluated", "time_ns": 0, "applied_steps": applied, "samples": 20}
            with directory.events_jsonl.open("a") as file:
                file.write(json.dumps({**event, self.score: self.scores(settings, number)}) + "\n")
            watcher.read()
            if watcher.stop_wanted() and applied < settings["steps"]:
                finished = False
                break
        end = self.ends.get(len(self.made) - 1, {"status": "ok", "outcome": {"finished": finished}})
        if isinstance(end, BaseException):
            raise end
        write_record(directory.result_json, {"wall_seconds": 1.5, **end})
        return directory, dict(end)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, for Optuna's storage waits for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(score, "train_once", made)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return made


def words(data: Path | str, out: Path, *more: str) -> list[str]:
    fixed = ["--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--steps", "10"]
    search = ["--search", "learning_rate=log:1e-5:1e-1"]
    return ["pretrain", *fixed, "--data", str(data), "--global-batch-size", "8", "--out", str(out), *search, *more]


def called(data: Path, out: Path, *more: str) -> dict[str, Any]:
    result("tune", *words(data, out), *more)
    found: dict[str, Any] = json.loads((out / "tune.json").read_text())
    return found


def states(document: Mapping[str, Any]) -> list[str]:
    return [row["state"] for row in document["trials"]]


def test_a_study_exports_its_best_trial_with_command_and_checkpoint(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    out = tmp_path / "a study of 100%"
    ended = result("tune", *words(data, out), "--trials", "6", "--pruner", "none")
    assert ended.code == 0 and states(ended.document) == ["complete"] * 6
    best = min(ended.document["trials"], key=lambda row: row["value"])
    exported = json.loads((out / "best.json").read_text())
    assert exported["number"] == best["number"] and exported["value"] == best["value"] == best["readings"][-1][1]
    command = shlex.split(exported["command"])
    assert command[:3] == ["bertbench", "train", "pretrain"]
    options = parse(TrainOptions, command[2:], "bertbench train")
    assert options.learning_rate == best["values"]["learning_rate"] and options.eval_every == 2
    assert [path.parent.name for path in out.glob("trial-*/checkpoints")] == [best["folder"]]
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == [row["value"] for row in ended.document["trials"]]


def test_the_same_command_resumes_and_a_larger_number_adds_trials(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    first = called(data, tmp_path / "study", "--trials", "2")
    assert called(data, tmp_path / "study", "--trials", "2")["trials"] == first["trials"]
    assert len(trainings.made) == 2
    more = called(data, tmp_path / "study", "--trials", "4")
    assert more["trials"][:2] == first["trials"] and len(trainings.made) == 4
    whole = called(data, tmp_path / "whole", "--trials", "4")
    assert [row["values"] for row in whole["trials"]] == [row["values"] for row in more["trials"]]


def test_trials_that_are_refused_diverge_or_run_out_of_memory_are_rows_with_their_reason(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    trainings.ends = {
        0: {"status": "crashed", "reason": "the loss of step 3 is nan"},
        1: {"status": "oom", "reason": "no memory"},
    }
    trainings.scores = lambda settings, number: None if len(trainings.made) == 3 else 1.0
    search = ("--search", "micro_batch_size=3,4,8", "--sampler", "random")
    found = called(data, tmp_path / "study", "--trials", "10", *search)
    reasons = {row["reason"] for row in found["trials"] if row["state"] == "failed"}
    assert {"crashed: the loss of step 3 is nan", "oom: no memory", "its last mlm_loss is not finite"} <= reasons
    assert any(reason.startswith("refused: --global-batch-size 8") for reason in reasons)
    assert len(found["trials"]) == 10 and "complete" in states(found)


def test_a_study_without_a_complete_trial_has_exit_code_3(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    trainings.ends = {number: {"status": "crashed", "reason": "no luck"} for number in range(100)}
    ended = result("tune", *words(data, tmp_path / "study"), "--trials", "3")
    assert ended.code == 3 and ended.document["best"] is None and states(ended.document) == ["failed"] * 3


def test_trials_that_lag_are_pruned_by_the_median(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    trainings.scores = lambda settings, number: len(trainings.made) + 1 / number  # each worse than those before
    found = called(data, tmp_path / "study", "--trials", "7")
    assert states(found) == ["complete"] * 5 + ["pruned"] * 2
    assert len(found["trials"][-1]["readings"]) == 2 and len(found["trials"][0]["readings"]) == 5


def test_values_that_were_tried_are_not_trained_again(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    given = words(data, tmp_path / "study")[:-1]
    ended = result("tune", *given, "dropout=0,0.1", "--trials", "6")
    assert len(trainings.made) == 2 and states(ended.document) == ["complete"] * 6
    assert sum(row["same_as"] is not None for row in ended.document["trials"]) == 4
    assert ended.document["best"]["same_as"] is None


def test_a_signal_saves_the_trial_and_the_next_call_resumes_it(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    def scores(settings: Mapping[str, Any], number: int) -> float:
        if len(trainings.made) == 2 and number == 2:
            signal.raise_signal(signal.SIGINT)
        return 1 / number

    trainings.scores = scores
    ended = result("tune", *words(data, tmp_path / "study"), "--trials", "3")
    assert ended.code == 130 and ended.document["ended"] == "stopped by SIGINT" and len(ended.notes) == 1
    assert states(ended.document) == ["complete", "waiting"]
    assert (tmp_path / "study" / "trial-0001" / "checkpoints").is_dir()
    trainings.scores = lambda settings, number: 1 / number
    found = called(data, tmp_path / "study", "--trials", "3")
    assert states(found) == ["complete"] * 3 and [row["resumed"] for row in found["trials"]] == [0, 1, 0]
    assert trainings.made[1]["learning_rate"] == trainings.made[2]["learning_rate"]
    assert len(list((tmp_path / "study" / "trial-0001" / "trials").iterdir())) == 2, "two attempts of one training"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), StorageError("disk-full", "the disk is full")], ids=["twice", "disk"]
)
def test_an_error_that_ends_the_call_leaves_the_trial_to_the_next_one(
    error: BaseException, data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    trainings.ends = {0: error}
    with pytest.raises(type(error)):
        result("tune", *words(data, tmp_path / "study"), "--trials", "2")
    trainings.ends = {}
    found = called(data, tmp_path / "study", "--trials", "2")
    assert states(found) == ["complete"] * 2 and found["trials"][0]["resumed"] == 1
