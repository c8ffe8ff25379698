"""What tasks on whole rows have in common: model, loss, evaluation, synthetic batches, options."""

from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.row_task import NAME, VOCAB, made_rows, write_rows

from bert.data.batches import DataSpec
from bert.data.rows import TokenRows
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import TASKS, given_options, make_task, resolve_options
from bert.tasks.base import DataSource, EvaluationSpec
from common.errors import Code

SHAPE = preset("tiny").replace(vocab_size=VOCAB, hidden_size=16, num_heads=2, intermediate_size=32)


@pytest.fixture(autouse=True)
def rows_task(monkeypatch):
    monkeypatch.setitem(TASKS, NAME, "support.row_task:RowTask")


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path / "rows", made_rows(40), made_rows(11, seed=1))


def spec(source: Any, **changes: Any) -> DataSpec:
    values = {"data": str(source), "seq_len": 24, "micro_batch_size": 4, "vocab_size": VOCAB, **changes}
    return DataSpec(**values)


def task(**options: Any) -> Any:
    source = DataSource("synthetic", "", None, None, VOCAB)
    return make_task(NAME, resolve_options(NAME, given_options(NAME, {"labels": 3, **options}), source))


@pytest.mark.parametrize("samples", [0, 5])
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_evaluation_by_several_ranks_equals_that_of_one(folder, ranks, samples):
    found = task()
    torch.manual_seed(1)
    model = found.build_model(SHAPE).eval()
    device, precision = torch.device("cpu"), Precision("fp32", "cpu")

    def evaluator(rank: int, world_size: int) -> Any:
        wanted = EvaluationSpec(samples=samples)
        return found.evaluator(spec(folder, rank=rank, world_size=world_size, micro_batch_size=3), wanted)

    alone = evaluator(0, 1)
    expected = alone.score(alone.measure(model, device, precision))
    parts = [evaluator(rank, ranks).measure(model, device, precision) for rank in range(ranks)]
    together = evaluator(0, ranks).score(torch.stack(parts).sum(0))
    assert together.samples == expected.samples == (samples or 11)
    assert set(together.values) == set(found.scores)
    assert together.values == pytest.approx(dict(expected.values), abs=1e-6)


def test_scores_are_those_of_the_rows_one_by_one(folder):
    found = task()
    model = found.build_model(SHAPE).eval()
    evaluator = found.evaluator(spec(folder), EvaluationSpec())
    total = evaluator.measure(model, torch.device("cpu"), Precision("fp32", "cpu"))
    rows: TokenRows = evaluator.rows
    right, loss = 0, 0.0
    for number in range(len(rows)):
        ids = torch.tensor(np.array([rows.ids[number]]), dtype=torch.int64)
        segments = (torch.arange(ids.shape[1]) >= int(rows.second[number])).long()[None]
        with torch.no_grad():
            logits = model.classifier(model.encoder(ids, None, segments).pooled)[0]
        label = int(rows.labels[number])
        right += int(logits.argmax()) == label
        loss -= float(torch.log_softmax(logits.double(), 0)[label])
    values = evaluator.score(total).values
    assert values["accuracy"] == right / len(rows)
    assert values["log_loss"] == pytest.approx(loss / len(rows), abs=1e-6)


def test_logits_that_are_no_numbers_are_refused(folder):
    found = task()
    evaluator = found.evaluator(spec(folder), EvaluationSpec())
    with refused("logits-not-finite", "3 of 33"):
        evaluator.score(torch.tensor([[float("nan")] * 3] + [[0.0] * 3] * 10).flatten())


def test_labels_that_the_task_has_not_are_refused_before_anything_is_trained(tmp_path):
    folder = write_rows(tmp_path / "rows", made_rows(20, labels=3), made_rows(5, labels=5, seed=3))
    with refused("labels-invalid", "0 to 1"):
        task(labels=2).identify(spec(folder))
    with refused("labels-invalid", "0 to 2"):
        task(labels=3).evaluator(spec(folder), EvaluationSpec())
    folder = write_rows(tmp_path / "values", made_rows(20, regression=True), made_rows(5))
    with refused("labels-invalid", "int64"):
        task().batches(spec(folder))


@pytest.mark.parametrize("source", ["synthetic", "synthetic:uniform"])
def test_made_up_batches_differ_by_rank_and_have_all_labels(source):
    found = task(labels=4)
    ours, others = (
        next(iter(found.batches(spec(source, seq_len=64, rank=rank, world_size=2, micro_batch_size=16))))
        for rank in (0, 1)
    )
    assert not torch.equal(ours.tensors["labels"], others.tensors["labels"])
    assert set(ours.tensors["labels"].tolist()) == {0, 1, 2, 3}
    assert found.build_model(SHAPE)(ours).loss.item() > 0


def test_options_are_filled_and_kept_as_one_text():
    assert given_options(NAME, {"head": None, "labels": 2}) == {"labels": 2, "head": "concat", "train_on_all": False}
    source = DataSource("synthetic", "", None, None, VOCAB)
    text = resolve_options(NAME, {"head": "mul", "labels": 7}, source)
    assert text == '{"head":"mul","labels":7,"train_on_all":false}'
    assert make_task(NAME, text).values == {"head": "mul", "labels": 7, "train_on_all": False}


@pytest.mark.parametrize(
    ("name", "options", "code", "fact"),
    [
        (NAME, {"head": "sum"}, "option-choice", "concat, mul"),
        (NAME, {"tail": 1}, "option-not-applicable", "labels, head"),
        (NAME, {"sample_limit": 0}, "option-value", 1),
        (NAME, {"sample_limit": True}, "option-value", "whole number"),
        (NAME, {"train_on_all": 1}, "option-value", "true or false"),
        ("squad", {"head": "mul"}, "option-not-applicable", "squad"),
    ],
)
def test_options_that_a_task_has_not_are_refused(name: str, options: dict[str, object], code: Code, fact: object):
    with refused(code, *options, fact):
        given_options(name, options)
