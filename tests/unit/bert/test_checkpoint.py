"""Checkpoints: whole or not there, exact, refused where they are damaged; the best one, kept beside the latest."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_runs
from support.examples import DRAWS_ALL
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from bert.checkpoints.files import save_model
from bert.checkpoints.read import SCHEMA_VERSION, STATE_FILE, checkpoint_path, newest_whole, saved_steps
from bert.model.config import model_config
from bert.model.heads import BertForPretraining
from bert.tasks import make_task
from bert.tasks.base import Evaluation, deciding
from bert.tasks.pretrain.batches import TestShards
from bert.train.checkpoint import read
from bert.train.settings import resolve_settings
from common.errors import Code

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates with a checkpoint after each; the latest three stayed."""
    place = tmp_path_factory.mktemp("finished")
    run(settings(training_runs.shards(place / "data"), steps=4, save_every=1), place / "run")
    return place


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def again(finished: Path, folder: Path, recorder: Recorder | None = None, **changes: Any) -> Any:
    return run(settings(finished / "data", **{"steps": 4, "save_every": 1, **changes}), folder, recorder)


def test_the_latest_checkpoints_stay_and_nothing_else(finished: Path) -> None:
    assert saved_steps(finished / "run") == [2, 3, 4]
    names = {path.name for path in (finished / "run").iterdir()}
    assert names == {"step-0000002", "step-0000003", "step-0000004", ".lock"}
    files = {path.name for path in (finished / "run/step-0000004").iterdir()}
    assert files == {
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "rng-0.safetensors",
        "state.json",
        "vocab.txt",
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path / "model.safetensors", 1000),
        lambda path: os.truncate(path / "optimizer.safetensors", 0),
        lambda path: os.truncate(path / STATE_FILE, 100),
        lambda path: (path / STATE_FILE).unlink(),
        lambda path: (path / "rng-0.safetensors").unlink(),
        lambda path: [file.unlink() for file in path.iterdir()],
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    finished: Path, copy: Path, damage: Any
) -> None:
    damage(copy / "step-0000004")
    recorder = Recorder()
    outcome = again(finished, copy, recorder)
    assert outcome.resumed_from == copy / "step-0000003"
    assert outcome.finished and list(recorder.losses) == [3]
    assert "step-0000004" in recorder.warnings
    assert read(copy / "step-0000004").state.applied_steps == 4, "it is written anew"


def test_a_checkpoint_of_another_version_or_with_damaged_values_is_refused_not_passed_over(copy: Path) -> None:
    path = copy / "step-0000004" / STATE_FILE
    whole = json.loads(path.read_text())
    for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1):
        path.write_text(json.dumps({**whole, "schema_version": version}))
        with refused("record-version", "step-0000004", str(version)):
            newest_whole(copy, print)
    changes: list[dict[str, Any]] = [{name: None} for name in ("settings", "data")]
    changes += [{"evaluation": {"odd": 1}}, {"best": 3}, {"settings": {**whole["settings"], "steps": "many"}}]
    for change in changes:
        path.write_text(json.dumps({**whole, **change}))
        with refused("file-damaged", "step-0000004"):
            read(copy / "step-0000004")


def test_when_all_checkpoints_are_damaged_nothing_begins_from_scratch(finished: Path, copy: Path) -> None:
    for step in saved_steps(copy):
        os.truncate(checkpoint_path(copy, step) / "model.safetensors", 10)
    with refused("checkpoint-missing", "3", copy):
        again(finished, copy)


@pytest.mark.parametrize(
    ("changes", "code", "facts"),
    [
        (
            {"preset": "mini"},
            "weights-mismatch",
            ["num_layers=2, hidden_size=128", "num_layers=4, hidden_size=256"],
        ),
        ({"optimizer": "adamw"}, "settings-changed", ["--optimizer lamb", "--optimizer adamw"]),
        ({"steps": 3}, "option-value", ["--steps 3", "4 updates"]),
        ({"data": "synthetic"}, "data-mismatch", ["data", "than synthetic has"]),
    ],
)
def test_what_must_not_change_is_refused_with_both_sides(
    finished: Path, copy: Path, changes: dict[str, Any], code: Code, facts: list[str]
) -> None:
    data = changes.get("data", finished / "data")
    wanted = settings(data, **{"steps": 4, **{name: value for name, value in changes.items() if name != "data"}})
    with refused(code, *facts):
        run(wanted, copy)


def test_another_vocabulary_is_refused_with_both_sides(finished: Path, copy: Path, tmp_path: Path) -> None:
    with refused("vocabulary-mismatch", "67", "100"):
        run(settings(finished / "data", vocab_size=100), tmp_path / "new")
    other = training_runs.shards(tmp_path / "other")
    metadata = json.loads((other / "metadata.json").read_text())
    (other / "metadata.json").write_text(json.dumps({**metadata, "vocab": "another"}))
    with refused("vocabulary-mismatch", copy, other):
        run(settings(other), copy)
    with refused("vocabulary-mismatch", copy, other):
        run(settings(other, init=str(copy)), tmp_path / "new")


def test_weights_without_the_same_padding_load(finished: Path, tmp_path: Path) -> None:
    wanted = settings(finished / "data", steps=1, init=str(tmp_path / "weights"))
    unpadded = BertForPretraining(model_config(wanted).replace(vocab_multiple=1))
    save_model(tmp_path / "weights", unpadded)
    recorder = Recorder()
    assert run(wanted, tmp_path / "run", recorder).finished
    assert recorder.of("Resumed")[0].new_phase and not recorder.of("Resumed")[0].moments


def test_what_a_killed_process_left_is_removed(finished: Path, copy: Path) -> None:
    (copy / ".step-0000009.new").mkdir()
    (copy / ".step-0000009.new" / "model.safetensors").write_bytes(b"half")
    (copy / ".step-0000001.old").mkdir()
    (copy / "notes").mkdir()
    again(finished, copy)
    assert sorted(path.name for path in copy.iterdir() if path.is_dir()) == [
        "notes", "step-0000002", "step-0000003", "step-0000004",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "failing",
    ["save_rng", "write_safetensors", "write_json", "sync_folder"],
)
def test_a_failed_save_leaves_the_earlier_checkpoints_and_no_half_one(
    finished: Path, copy: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"bert.train.checkpoint.{failing}", full)
    with refused("disk-full", "step-0000005"):
        again(finished, copy, steps=6)
    monkeypatch.undo()
    assert sorted(path.name for path in copy.iterdir() if path.is_dir()) == [
        "step-0000002", "step-0000003", "step-0000004",
    ]  # fmt: skip
    assert again(finished, copy, steps=6).finished


# Of the evaluations after 2, 4, ... 12 updates.
LOSSES = (5.0, 3.0, 4.0, float("nan"), 3.0, 2.5)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the evaluation after n updates find LOSSES, whatever the model."""
    updates = {"made": 0.0}
    original = TestShards.measure

    def measure(shards: TestShards, model: Any, *rest: Any) -> torch.Tensor:
        updates["made"] = run_of["recorder"].progress[-1].applied_steps
        return original(shards, model, *rest)

    def score(shards: TestShards, total: torch.Tensor) -> Evaluation:
        return Evaluation(values={"mlm_loss": LOSSES[int(updates["made"]) // 2 - 1]}, samples=5)

    monkeypatch.setattr(TestShards, "measure", measure)
    monkeypatch.setattr(TestShards, "score", score)


run_of: dict[str, Recorder] = {}


def go(data: Path, folder: Path, recorder: Recorder | None = None, **changes: Any) -> tuple[Any, Recorder]:
    run_of["recorder"] = recorder or Recorder()
    wanted = settings(data, **{"eval_every": 2, "steps": 12, "save_every": 3, "keep": 1, **changes})
    return run(wanted, folder, run_of["recorder"]), run_of["recorder"]


def test_the_best_is_saved_when_it_is_found_and_never_pruned(data: Path, tmp_path: Path, scored: None) -> None:
    outcome, recorder = go(data, tmp_path, steps=11)
    assert saved_steps(tmp_path) == [4, 11]
    assert [event.applied_steps for event in recorder.of("Saved")] == [2, 3, 4, 6, 9, 11]
    assert [event.best for event in recorder.of("Evaluated")] == [True, True, False, False, False, False]
    assert outcome.best.applied_steps == 4 and outcome.best.value == 3.0 and outcome.best.score == "mlm_loss"
    outcome, _ = go(data, tmp_path, steps=12)
    assert outcome.best.applied_steps == 12 and saved_steps(tmp_path) == [12]


@pytest.mark.more
def test_a_crash_anywhere_leaves_the_same_checkpoints_and_the_same_best(
    data: Path, tmp_path: Path, scored: None
) -> None:
    whole, heard = go(data, tmp_path / "whole")
    for crash in (3, 5, 7, 10) if DRAWS_ALL else (5,):
        folder = tmp_path / f"crash-{crash}"
        with pytest.raises(KeyboardInterrupt):
            go(data, folder, Recorder(crash_after=crash))
        outcome, recorder = go(data, folder)
        assert outcome.best == whole.best and saved_steps(folder) == saved_steps(tmp_path / "whole")
        assert recorder.losses.items() <= heard.losses.items()


def find(monkeypatch: pytest.MonkeyPatch, losses: tuple[float, ...], accuracies: tuple[float, ...]) -> None:
    """Let the next evaluations find these, whatever the model."""
    found = iter(zip(losses, accuracies, strict=True))

    def score(shards: TestShards, total: torch.Tensor) -> Evaluation:
        return Evaluation(values=dict(zip(("mlm_loss", "mlm_accuracy"), next(found), strict=True)), samples=5)

    monkeypatch.setattr(TestShards, "score", score)


def test_another_score_may_decide_and_its_checkpoint_stays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, (5.0, 3.0, 2.0), (0.1, 0.4, 0.3))
    outcome, _ = go(data, tmp_path, steps=6, best_by="mlm_accuracy")
    assert (outcome.best.score, outcome.best.value, outcome.best.applied_steps) == ("mlm_accuracy", 0.4, 4)
    assert saved_steps(tmp_path) == [4, 6]


@pytest.mark.parametrize("name", ["best_exact_thresh", "best_f1_thresh"])
def test_a_threshold_says_not_which_model_is_better_and_the_scores_that_do_are_named(name: str) -> None:
    wanted = resolve_settings(None, {"task": "squad", "data": "synthetic", "preset": "tiny", "steps": 2})
    task = make_task(wanted.task, wanted.task_options)
    names = ("exact, f1, HasAns_exact, ", ", best_exact, best_f1")
    with refused("option-choice", name, *names):
        deciding(task, name)
    assert deciding(task, "best_f1") == ("best_f1", True)


def test_a_best_that_is_gone_or_of_other_samples_is_looked_for_anew(data: Path, tmp_path: Path, scored: None) -> None:
    go(data, tmp_path / "run", steps=9)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    outcome, recorder = go(data, tmp_path / "other", steps=10, eval_samples=3)
    assert outcome.best.applied_steps == 10 and "on other samples" in recorder.warnings
    shutil.rmtree(tmp_path / "run" / "step-0000004")
    outcome, recorder = go(data, tmp_path / "run", steps=10)
    assert outcome.best.applied_steps == 10 and "step-0000004, the best checkpoint so far," in recorder.warnings


def test_a_run_that_was_stopped_is_evaluated_at_its_new_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, (5.0, 4.0, 3.0), (0.1, 0.2, 0.3))
    stopped, _ = go(data, tmp_path, Recorder(stop_after=5))
    assert not stopped.finished and stopped.best.applied_steps == 4
    outcome, recorder = go(data, tmp_path, steps=5)
    assert [event.applied_steps for event in recorder.of("Evaluated")] == [5]
    assert (outcome.best.applied_steps, outcome.best.value) == (5, 3.0) and saved_steps(tmp_path) == [5]
