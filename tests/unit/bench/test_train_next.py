"""What `train` names as the next command: one that can be run as it is, with files that are there."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import datasets
from support.training_runs import shards

from bench.cli.train import next_command
from bench.machine.devices import find_devices
from bench.sweep.training import TrainOptions, plan_training
from records.files import write_record
from records.training import TrainRun


def following_of(task: str, tmp_path: Path, **changes: Any) -> list[str]:
    fields = {"preset": "tiny", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1, **changes}
    options = TrainOptions(task=task, device="cpu", **fields)
    plan = plan_training(options, find_devices("cpu"))
    return shlex.split(next_command([task], TrainRun(tmp_path / "run"), plan, True))


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_gap_predicts_test_rows_else_those_it_was_evaluated_on(tmp_path: Path) -> None:
    folder = datasets.gap_features(tmp_path)
    (validation,) = folder.glob("gap-validation-*.safetensors")
    words = following_of("gap", tmp_path, data=str(folder))
    assert words[:3] == ["bertbench", "predict", "gap"] and value_of(words, "--features") == str(validation)
    test = folder / validation.name.replace("validation", "test")
    test.write_bytes(validation.read_bytes())
    assert value_of(following_of("gap", tmp_path, data=str(folder)), "--features") == str(test)
    words = following_of("gap", tmp_path, data=str(folder), eval_data=str(validation))
    assert value_of(words, "--features") == str(validation)


def test_pretraining_goes_on_with_phase_2_then_a_conversion(tmp_path: Path) -> None:
    place = TrainRun(tmp_path / "my run")
    options = TrainOptions(
        task="pretrain", data=str(shards(tmp_path / "data")), seq_len=32, device="cpu", preset="tiny"
    )
    plan = plan_training(options, find_devices("cpu"))
    words = ["pretrain", "--out", "my run"]
    assert next_command(words, place, plan, False) == "bertbench train pretrain --out 'my run'"
    following = shlex.split(next_command(words, place, plan, True))
    assert (value_of(following, "--phase"), value_of(following, "--init")) == ("2", str(place.path))
    assert value_of(following, "--data") == "FOLDER_OF_512_TOKENS"
    assert value_of(following_of("pretrain", tmp_path, data="synthetic"), "--data") == "synthetic"
    write_record(place.state_json, {"checkpoint": "step-0000009"})
    second = next_command(words, place, replace(plan, phase=2), True)
    assert second.startswith("bertbench convert") and "step-0000009" in second


@pytest.mark.parametrize("task", ["squad", "gap", "classify", "glue"])
def test_after_made_up_data_and_of_squad_without_evaluation_there_is_the_report(task: str, tmp_path: Path) -> None:
    assert following_of(task, tmp_path, data="synthetic") == ["bertbench", "report", str(tmp_path / "run")]
    questions = datasets.squad_splits(tmp_path)
    questions["evaluation"].unlink()
    assert following_of("squad", tmp_path, data=str(questions["training"]))[:2] == ["bertbench", "report"]
