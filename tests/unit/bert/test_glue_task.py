"""The task glue: as many outputs as the task of GLUE has, its scores, its data by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.glue_folders import make_glue, prepared
from support.refusals import refused

from bert.data.batches import DataSpec
from bert.data.synthetic import glue
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import given_options, make_task, resolve_options, task_data
from bert.tasks.base import EvaluationSpec
from bert.tasks.glue.tables import TASKS

SHAPE = preset("tiny").replace(vocab_size=40, hidden_size=16, num_heads=2, intermediate_size=32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepared(make_glue(tmp_path / "glue", ["cola", "stsb", "mnli"]), tmp_path / "out")
    return tmp_path / "out"


def task_for(name: str | None, source: object) -> Any:
    given = given_options("glue", {"task": name})
    text = resolve_options("glue", given, task_data("glue").inspect(str(source), None, given))
    return make_task("glue", text)


def spec(source: object) -> DataSpec:
    return DataSpec(data=str(source), seq_len=128, micro_batch_size=4, vocab_size=40)


@pytest.mark.parametrize("name", ["cola", "stsb", "mnli"])
def test_a_task_trains_and_is_scored_by_its_own_metrics(name: str, folder: Path) -> None:
    task = task_for(name, folder)
    model = task.build_model(SHAPE)
    batch = next(iter(task.batches(spec(folder))))
    output = model(batch)
    assert output.logits.shape == (4, TASKS[name].labels) and output.loss.isfinite()
    assert batch.tensors["labels"].dtype == (torch.float32 if name == "stsb" else torch.int64)
    rows = task.evaluator(spec(folder), EvaluationSpec())
    found = rows.score(rows.measure(model.eval(), torch.device("cpu"), Precision("fp32", "cpu")))
    assert tuple(found.values) == task.scores and task.deciding_score in found.values and found.samples == 12


def test_the_task_follows_from_the_features_where_none_is_named(folder: Path) -> None:
    path = next(folder.glob("glue-stsb-train-*.safetensors"))
    task = task_for(None, path)
    assert task.values == {"task": "stsb"} and task.regression
    # The dev rows beside a file of training rows are taken where nothing else is named.
    assert task.evaluator(spec(path), EvaluationSpec()).rows.has_labels
    assert task_for(None, "synthetic").values == {"task": "cola"}
    with refused("data-ambiguous", "--task"):
        task_for(None, folder)
    with refused("option-choice", "boolq", "cola, sst2, mrpc"):
        given_options("glue", {"task": "boolq"})
    with refused("option-missing", "--task cola"):
        make_task("glue").build_model(SHAPE)


def test_mismatched_rows_can_be_evaluated_on_and_test_rows_cannot(folder: Path) -> None:
    task = task_for("mnli", folder)
    matched = task.evaluator(spec(folder), EvaluationSpec())
    other = next(folder.glob("glue-mnli-dev_mismatched-*.safetensors"))
    assert matched.fingerprint != task.evaluator(spec(folder), EvaluationSpec(source=str(other))).fingerprint
    test = next(folder.glob("glue-mnli-test_matched-*.safetensors"))
    with refused("data-mismatch", test, "test_matched"):
        task.evaluator(spec(folder), EvaluationSpec(source=str(test)))


def test_made_up_rows_have_the_lengths_of_pairs_of_sentences() -> None:
    lengths = glue(np.random.default_rng(0), 50_000, 128)
    assert lengths.min() >= 5 and lengths.max() <= 128 and abs(lengths.mean() - 27.8) < 0.5
    assert glue(np.random.default_rng(0), 1000, 16).max() == 16
    batch = next(iter(task_for("stsb", "synthetic").batches(spec("synthetic"))))
    assert batch.tensors["labels"].dtype == torch.float32 and batch.tensors["input_ids"].shape[0] == 4
