"""Checkpoints: whole or not there, exact, refused where they are damaged or another model's."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_runs
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from bert.checkpoints.files import save_model
from bert.checkpoints.read import SCHEMA_VERSION, STATE_FILE, checkpoint_path, newest_whole, saved_steps
from bert.model.config import model_config
from bert.model.heads import BertForPretraining
from bert.train.checkpoint import read
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
