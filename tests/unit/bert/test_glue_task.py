"""The task glue: as many outputs as the task of GLUE has, its scores, its data by name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.glue_folders import make_glue, write_vocabulary
from support.refusals import refused

from bert.data.lengths import glue
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import given_options, make_task, resolve_options, task_data
from bert.tasks.base import DataSpec, EvaluationSpec
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.prepare import prepare
from bert.tasks.glue.tasks import TASKS

SHAPE = preset("tiny").replace(vocab_size=40, hidden_size=16, num_heads=2, intermediate_size=32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    tasks = ["cola", "stsb", "mnli"]
    config = GlueConfig(input=make_glue(tmp_path / "glue", tasks), vocab=vocab, output=tmp_path / "out")
    prepare(config, lambda stage, done, total: None)
    return tmp_path / "out"


def task_for(name: str | None, source: str) -> tuple[str, object]:
    given = given_options("glue", {} if name is None else {"task": name})
    found = task_data("glue").inspect(source, None, given)
    text = resolve_options("glue", given, found)
    return text, make_task("glue", text)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_score_of_a_task_is_known_by_its_label(name: str) -> None:
    task = make_task("glue", f'{{"task":"{name}"}}')
    assert task.deciding_score in task.scores


@pytest.mark.parametrize("name", ["cola", "stsb", "mnli"])
def test_a_task_trains_and_is_scored_by_its_own_metrics(name: str, folder: Path) -> None:
    text, task = task_for(name, str(folder))
    assert text == f'{{"task":"{name}"}}'
    spec = DataSpec(data=str(folder), seq_len=128, micro_batch_size=4, vocab_size=40)
    model = task.build_model(SHAPE)  # type: ignore[attr-defined]
    batch = next(iter(task.batches(spec)))  # type: ignore[attr-defined]
    output = model(batch)
    assert output.logits.shape == (4, TASKS[name].labels) and output.loss.isfinite()
    assert batch.tensors["labels"].dtype == (torch.float32 if name == "stsb" else torch.int64)
    rows = task.evaluator(spec, EvaluationSpec())  # type: ignore[attr-defined]
    found = rows.score(rows.measure(model.eval(), torch.device("cpu"), Precision("fp32", "cpu")))
    assert tuple(found.values) == task.scores and task.deciding_score in found.values  # type: ignore[attr-defined]
    assert found.samples == 12


def test_the_task_follows_from_the_features_where_none_is_named(folder: Path) -> None:
    path = next(folder.glob("glue-stsb-train-*.safetensors"))
    text, task = task_for(None, str(path))
    assert text == '{"task":"stsb"}' and task.regression  # type: ignore[attr-defined]
    # The dev rows beside a file of training rows are taken where nothing else is named.
    spec = DataSpec(data=str(path), seq_len=128, micro_batch_size=4, vocab_size=40)
    assert task.evaluator(spec, EvaluationSpec()).rows.has_labels  # type: ignore[attr-defined]
    with refused("data-ambiguous", "--task"):
        task_for(None, str(folder))
    assert task_for(None, "synthetic")[0] == '{"task":"cola"}'


def test_mismatched_rows_can_be_evaluated_on_and_test_rows_cannot(folder: Path) -> None:
    _, task = task_for("mnli", str(folder))
    spec = DataSpec(data=str(folder), seq_len=128, micro_batch_size=4, vocab_size=40)
    matched = task.evaluator(spec, EvaluationSpec())  # type: ignore[attr-defined]
    other = next(folder.glob("glue-mnli-dev_mismatched-*.safetensors"))
    mismatched = task.evaluator(spec, EvaluationSpec(source=str(other)))  # type: ignore[attr-defined]
    assert matched.fingerprint != mismatched.fingerprint
    test = next(folder.glob("glue-mnli-test_matched-*.safetensors"))
    with refused("data-mismatch", test, "test_matched"):
        task.evaluator(spec, EvaluationSpec(source=str(test)))  # type: ignore[attr-defined]


def test_an_unknown_task_is_refused_with_the_names_of_those_there_are() -> None:
    with refused("option-choice", "boolq", "cola, sst2, mrpc"):
        given_options("glue", {"task": "boolq"})
    with refused("option-missing", "--task cola"):
        make_task("glue").build_model(SHAPE)


def test_made_up_rows_have_the_lengths_of_pairs_of_sentences() -> None:
    lengths = glue(np.random.default_rng(0), 50_000, 128)
    assert lengths.min() >= 5 and lengths.max() <= 128 and abs(lengths.mean() - 27.8) < 0.5
    assert glue(np.random.default_rng(0), 1000, 16).max() == 16
    _, task = task_for("stsb", "synthetic")
    spec = DataSpec(data="synthetic", seq_len=64, micro_batch_size=8, vocab_size=40)
    batch = next(iter(task.batches(spec)))  # type: ignore[attr-defined]
    assert batch.tensors["labels"].dtype == torch.float32 and batch.tensors["input_ids"].shape[0] == 8
