"""`bertbench tune` from its words to its page, with trainings that are written down instead of made."""

import json
import math
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.commands import facts, result
from support.refusals import refused

pytest.importorskip("optuna")

from support.studies import memory_folder
from support.training_runs import SEQ_LEN

from bench.cli.main import run
from bench.cli.parser import parse
from bench.plan.training import TrainOptions
from bench.run import attempt
from bench.tune import worker
from bench.tune.worker import Objective
from common.errors import Code, StorageError
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, events_jsonl, write_curve

Told = Callable[[Mapping[str, Any], int], float | None]


class Trainings:
    """Stands for bench.run.attempt.train_once: writes the evaluations that `told` gives for the settings."""

    def __init__(self) -> None:
        self.told: Told = lambda settings, number: abs(math.log10(settings["learning_rate"]) + 3) + 1 / number
        self.ends: dict[int, Mapping[str, Any] | BaseException] = {}
        self.made: list[Mapping[str, Any]] = []
        self.score = "mlm_loss"

    def __call__(self, run: TrainRun, plan: Any, devices: Any, watcher: Any) -> tuple[TrialDirectory, dict[str, Any]]:
        settings = plan.settings.to_json()
        self.made.append(settings)
        trial = attempt._trial(run, plan, devices)
        directory = run.run.trial(trial.trial_id)
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, trial.to_json())
        (run.checkpoints / "step-1").mkdir(parents=True, exist_ok=True)
        watcher.begin(directory)
        finished = True
        steps = range(settings["eval_every"] or 1, settings["steps"] + 1, settings["eval_every"] or 1)
        for number, applied in enumerate(steps, start=1):
            event = {"event": "evaluated", "time_ns": 0, "applied_steps": applied, "samples": 20}
            with events_jsonl(directory).open("a") as file:
                file.write(json.dumps({**event, self.score: self.told(settings, number)}) + "\n")
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
    with memory_folder() as path:
        yield path


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(worker, "train_once", made)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return made


def words(data: Path, out: Path, *more: str) -> list[str]:
    fixed = ["--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--steps", "10"]
    search = ["--search", "learning_rate=log:1e-5:1e-1"]
    return ["pretrain", *fixed, "--data", str(data), "--global-batch-size", "8", "--out", str(out), *search, *more]


def called(data: Path, out: Path, *more: str) -> dict[str, Any]:
    result("tune", *words(data, out), *more)
    found: dict[str, Any] = json.loads((out / "tune.json").read_text())
    return found


def test_a_study_ends_with_the_best_trial_and_its_command(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    out = tmp_path / "study"
    ended = result("tune", *words(data, out), "--trials", "8", "--startup-trials", "3", "--prune-after", "9")
    found = ended.document
    assert [row["state"] for row in found["trials"]] == ["complete"] * 8
    best = min(found["trials"], key=lambda row: row["value"])
    assert found["best"]["number"] == best["number"] and found["objective"]["name"] == "mlm_loss"
    command = shlex.split(found["best"]["command"])
    assert command[:3] == ["bertbench", "train", "pretrain"] and f"{out}-trial-{best['number']}" in command
    options = parse(TrainOptions, command[2:], "bertbench train")
    assert options.learning_rate == best["values"]["learning_rate"] and options.eval_every == 2
    assert [path.parent.name for path in out.glob("trial-*/checkpoints")] == [f"trial-{best['number']:04d}"]
    shown = dict(facts(ended.blocks))
    assert shown["charts"] == f"optuna-dashboard sqlite:///{out / 'study.db'}"
    assert shown["best"].startswith(f"trial {best['number']}") and shown["command"] == found["best"]["command"]


def test_trials_and_the_command_choose_their_best_checkpoint_by_the_objective(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    trainings.score = "nsp_loss"
    found = called(data, tmp_path / "study", "--trials", "2", "--objective", "nsp_loss")
    assert [settings["best_by"] for settings in trainings.made] == ["nsp_loss"] * 2
    assert not found["objective"]["maximize"]
    command = shlex.split(found["best"]["command"])
    options = parse(TrainOptions, command[2:], "bertbench train")
    assert (options.best_by, options.eval_every) == ("nsp_loss", 2)
    trainings.score = "mlm_loss"
    own = called(data, tmp_path / "own", "--trials", "1", "--objective", "mlm_loss")
    assert trainings.made[-1]["best_by"] is None and "--best-by" not in own["best"]["command"]
    loss = called(data, tmp_path / "loss", "--trials", "1", "--objective", "loss")
    assert trainings.made[-1]["best_by"] is None and loss["objective"]["name"] == "loss"


def test_several_searches_may_follow_one_word(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    found = called(data, tmp_path / "study", "dropout=0,0.1", "--trials", "1")
    assert found["space"] == {"learning_rate": "log:1e-05:0.1", "dropout": "0.0,0.1"}


def test_the_same_command_goes_on_and_a_larger_number_adds_trials(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    first = called(data, tmp_path / "study", "--trials", "2")
    assert called(data, tmp_path / "study", "--trials", "2")["trials"] == first["trials"]
    assert len(trainings.made) == 2
    more = called(data, tmp_path / "study", "--trials", "3", "--checkpoints", "all")
    assert more["trials"][:2] == first["trials"] and len(trainings.made) == 3


def test_trials_that_are_refused_diverge_or_crash_fail_with_their_reason_and_the_study_goes_on(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    trainings.ends = {
        0: {"status": "crashed", "reason": "the loss of step 3 is nan"},
        1: {"status": "oom", "reason": "no memory"},
    }
    trainings.told = lambda settings, number: None if len(trainings.made) == 3 else 1.0
    search = ("--search", "micro_batch_size=3,8", "--sampler", "random", "--sampler-seed", "2")
    found = called(data, tmp_path / "study", "--trials", "8", *search)
    states = [row["state"] for row in found["trials"]]
    assert states.count("complete") >= 1 and states.count("failed") >= 4
    reasons = {row["reason"] for row in found["trials"] if row["state"] == "failed"}
    assert {"crashed: the loss of step 3 is nan", "oom: no memory", "its last mlm_loss is not finite"} <= reasons
    assert any(reason.startswith("refused: --global-batch-size 8 is not --micro-batch-size 3") for reason in reasons)


def test_a_study_without_a_complete_trial_says_so(
    data: Path,
    tmp_path: Path,
    trainings: Trainings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MOST_FAILURES", 6)
    trainings.ends = {number: {"status": "crashed", "reason": "no luck"} for number in range(100)}
    ended = result("tune", *words(data, tmp_path / "study"), "--trials", "100")
    shown = dict(facts(ended.blocks))
    assert ended.code == 3 and shown["best"].startswith("none") and "no luck" in shown["failed"]
    assert shown["ended"].startswith("6 trials failed")
    assert len(trainings.made) == worker.MOST_FAILURES


def test_trials_that_lag_are_pruned(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    trainings.told = lambda settings, number: len(trainings.made) + 1 / number  # each worse than those before
    found = called(data, tmp_path / "study", "--trials", "5", "--prune-after", "2")
    assert [row["state"] for row in found["trials"]] == ["complete", "complete", "pruned", "pruned", "pruned"]
    assert len(found["trials"][2]["readings"]) == 2
    unpruned = called(data, tmp_path / "other", "--trials", "4", "--pruner", "none", "--eval-every", "2")
    assert {row["state"] for row in unpruned["trials"]} == {"complete"}


def test_a_signal_lets_the_trial_wait_and_the_next_call_goes_on_with_it(
    data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    def told(settings: Mapping[str, Any], number: int) -> float:
        if len(trainings.made) == 2 and number == 2:
            signal.raise_signal(signal.SIGINT)
        return 1 / number

    trainings.told = told
    ended = result("tune", *words(data, tmp_path / "study"), "--trials", "3")
    assert ended.code == 130 and len(ended.notes) == 1 and dict(facts(ended.blocks))["ended"] == "stopped by SIGINT"
    assert [trial["state"] for trial in ended.document["trials"]] == ["complete", "waiting"]
    trainings.told = lambda settings, number: 1 / number
    found = called(data, tmp_path / "study", "--trials", "3")
    assert [row["state"] for row in found["trials"]] == ["complete"] * 3
    assert trainings.made[1]["learning_rate"] == trainings.made[2]["learning_rate"]  # the same trial, gone on with


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), StorageError("disk-full", "the disk is full")], ids=["twice", "disk"]
)
def test_what_ends_the_call_lets_the_trial_wait(
    error: BaseException, data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    trainings.ends = {0: error}
    with pytest.raises(type(error)):
        result("tune", *words(data, tmp_path / "study"), "--trials", "2")
    trainings.ends = {}
    assert [row["state"] for row in called(data, tmp_path / "study", "--trials", "2")["trials"]] == ["complete"] * 2


def test_what_goes_wrong_after_a_trial_ended_leaves_it_ended(
    data: Path, tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_longer(study: Any) -> None:
        raise StorageError("write-failed", "the disk went away")

    with monkeypatch.context() as patched, refused("write-failed", "the disk went away", kind=StorageError):
        patched.setattr(worker, "tidy", no_longer)
        result("tune", *words(data, tmp_path / "study"), "--trials", "2")
    assert [row["state"] for row in called(data, tmp_path / "study", "--trials", "1")["trials"]] == ["complete"]
    assert len(trainings.made) == 1


def test_a_time_limit_stops_the_search(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    assert result("tune", *words(data, tmp_path / "study"), "--max-seconds", "0.001").code == 0
    assert trainings.made == []


@pytest.mark.parametrize(
    ("more", "code", "facts"),
    [
        (["--learning-rate", "1e-3"], "option-conflict", ["--learning-rate"]),
        (["dropout"], "option-value", ["dropout"]),
        (["--search", "speed=1,2"], "option-choice", ["'speed'"]),
        (["--objective", "f1"], "option-choice", ["pretrain", "'f1'"]),
        (["--best-by", "nsp_loss"], "option-not-applicable", ["--best-by nsp_loss", "--objective nsp_loss"]),
        (["--sampler", "grid"], "option-choice", ["grid"]),
        (["--trials", "0"], "option-value", ["--trials 0", 1]),
        (["--max-seconds", "nan"], "option-value", ["--max-seconds nan"]),
        (["--head", "mul"], "option-not-applicable", ["--head", "gap"]),
    ],
)
def test_what_means_nothing_is_refused_before_anything_runs(
    more: list[str], code: Code, facts: list[object], data: Path, tmp_path: Path, trainings: Trainings
) -> None:
    with refused(code, *facts):
        result("tune", *words(data, tmp_path / "study"), *more)
    assert trainings.made == [] and not (tmp_path / "study").exists()


def test_another_search_in_the_same_folder_is_refused(data: Path, tmp_path: Path, trainings: Trainings) -> None:
    called(data, tmp_path / "study", "--trials", "1")
    with refused("settings-changed", tmp_path / "study", "dropout", "'0.0:0.2'"):
        result("tune", *words(data, tmp_path / "study"), "--search", "dropout=0:0.2")
    with refused("settings-changed", tmp_path / "study", "steps 10", 20):
        result("tune", *words(data, tmp_path / "study"), "--steps", "20")


def test_made_up_data_are_judged_by_their_training_loss(tmp_path: Path, trainings: Trainings) -> None:
    with refused("option-not-applicable", "--objective mlm_accuracy", "--data"):
        result("tune", *words(Path("synthetic"), tmp_path / "study"), "--objective", "mlm_accuracy")
    run = TrainRun(tmp_path / "run")
    rows = [
        {"step": step, "applied_steps": step + 1, "samples": 8 * step, "loss": loss, "learning_rate": 0.1}
        for step, loss in enumerate([4.0, 3.0, 2.0, 1.0, 0.5])
    ]
    run.path.mkdir()
    write_curve(run.curve_csv, rows)
    loss = Objective(name="loss", maximize=False)
    assert loss.readings(run, 5) == [4.0, 3.0, 2.0, 1.0, 0.5]
    assert loss.readings(run, 20) == [3.5, 1.5]  # a tenth is two steps; the third one is not over
    assert loss.result(loss.readings(run, 5)) == 0.5


def test_inside_a_world_of_ranks_it_is_refused(
    data: Path, tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    with refused("option-not-applicable", "torchrun"):
        result("tune", *words(data, tmp_path / "study"))


@pytest.mark.parametrize("words", [["tune"], ["train", "pretrain", "--vary"]])
def test_help_shows_the_values_that_an_option_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([*words, "--help"])
    shown = capsys.readouterr().out
    assert "{None}" not in shown and ("INT" in shown or "PATH" in shown)
