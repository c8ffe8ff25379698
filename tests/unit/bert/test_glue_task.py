"""The task glue: scores by their definitions, as many outputs as the task of GLUE has, its data by name."""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import glue_features, make_glue
from support.refusals import refused

from bert.data.batches import DataSpec
from bert.data.synthetic import glue
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import given_options, make_task, resolve_options, task_data
from bert.tasks.base import EvaluationSpec
from bert.tasks.glue.tables import TASKS
from bert.tasks.glue.task import decided, score_names, scores

PAIRS = st.integers(1, 60).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 1), min_size=n, max_size=n) for _ in range(2)))
)
VALUES = st.one_of(st.integers(0, 5).map(float), st.integers(-1000, 1000).map(lambda number: number / 99))
NUMBERS = st.integers(2, 60).flatmap(lambda n: st.tuples(*(st.lists(VALUES, min_size=n, max_size=n) for _ in range(2))))


@given(PAIRS)
def test_scores_of_classes_are_those_of_their_definitions(pair: tuple[list[int], list[int]]) -> None:
    predictions, labels = map(np.array, pair)
    hits, misses = (int(((predictions == 1) & (labels == right)).sum()) for right in (1, 0))
    left, rejected = (int(((predictions == 0) & (labels == right)).sum()) for right in (1, 0))
    sides = (hits + misses) * (hits + left) * (rejected + misses) * (rejected + left)
    expected = {
        "matthews": (hits * rejected - misses * left) / math.sqrt(sides) if sides else 0.0,
        "accuracy": (hits + rejected) / len(labels),
        "f1_score": 2 * hits / (2 * hits + misses + left) if hits + misses + left else 0.0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of what is scored while a model trains
        found = scores(TASKS["cola"], predictions, labels) | scores(TASKS["mrpc"], predictions, labels)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    assert found["f1_score_accuracy"] == pytest.approx((expected["f1_score"] + expected["accuracy"]) / 2, abs=1e-12)


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's, with fractions in place of floats; not a number where one side is all alike."""
    one, other = ([Fraction(value) for value in values] for values in (first, second))
    one, other = ([value - sum(values, Fraction()) / len(values) for value in values] for values in (one, other))
    squares = sum(value * value for value in one) * sum(value * value for value in other)
    if not squares:
        return math.nan
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return math.copysign(math.sqrt(product * product / squares), product)


def ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
            for value in values]  # fmt: skip


@given(NUMBERS)
def test_correlations_are_those_of_their_definitions(pair: tuple[list[float], list[float]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scores(TASKS["stsb"], *map(np.array, pair))
    spearman = correlation(*map(ranks, pair))
    assert found["spearman"] == pytest.approx(spearman, abs=1e-9, nan_ok=True)
    pearson = correlation(*pair)
    assert found["pearson"] == pytest.approx(pearson, abs=1e-6, nan_ok=True)
    assert found["pearson_spearman"] == pytest.approx((pearson + spearman) / 2, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("task", list(TASKS))
def test_each_task_has_the_headline_of_the_benchmark_among_its_scores(task: str) -> None:
    spec = TASKS[task]
    ones = np.array([0.0, 1.0, 1.0, 0.0])
    assert tuple(scores(spec, ones, ones)) == score_names(spec)
    assert set(scores(spec, ones, ones).values()) == {1.0}
    headlines = {"cola": "matthews", "stsb": "pearson_spearman", "mrpc": "f1_score", "qqp": "f1_score"}
    assert spec.headline == headlines.get(task, "accuracy")
    assert spec.labels == {"mnli": 3, "stsb": 1}.get(task, 2)


def test_logits_become_the_greatest_class_or_the_number() -> None:
    logits = np.array([[0.0, 1.0, 1.0], [3.0, 1.0, 2.0]], dtype=np.float32)
    assert decided(TASKS["mnli"], logits).tolist() == [1, 0]
    assert decided(TASKS["stsb"], logits[:, :1]).tolist() == [0.0, 3.0]


SHAPE = preset("tiny").replace(vocab_size=128, hidden_size=16, num_heads=2, intermediate_size=32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    glue_features(make_glue(tmp_path / "glue", ["cola", "stsb", "mnli"]), tmp_path / "out")
    return tmp_path / "out"


def task_for(name: str | None, source: object) -> Any:
    given = given_options("glue", {"task": name})
    text = resolve_options("glue", given, task_data("glue").inspect(str(source), None, given))
    return make_task("glue", text)


def spec(source: object) -> DataSpec:
    return DataSpec(data=str(source), seq_len=128, micro_batch_size=4, vocab_size=128)


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
