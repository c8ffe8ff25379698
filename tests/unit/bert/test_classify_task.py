"""Classification of texts: rows of one text count as one, and what is trained on is what the database holds."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import document
from support.datasets import colours_and_animals, csv_database, write_csv
from support.examples import examples
from support.refusals import refused

from bert.data.batches import DataSpec
from bert.data.vocabulary import Vocabulary
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import make_task, resolve_options, task_data
from bert.tasks.base import EvaluationSpec
from bert.tasks.classify import commands
from bert.tasks.classify.commands import TextClassifier, open_classifier
from bert.tasks.classify.task import ClassifyTask, class_scores, probabilities, text_probabilities
from records import classification


@settings(deadline=None, max_examples=examples(50))
@given(folds=st.lists(st.integers(1, 4), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_a_text_gets_the_mean_of_what_its_rows_get(folds: list[int], seed: int) -> None:
    texts = np.repeat(np.arange(len(folds)) * 3, folds)
    logits = np.random.default_rng(seed).normal(size=(len(texts), 3)).astype(np.float32) * 5
    first, found = text_probabilities(logits, texts)
    rows = torch.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    expected = np.array([rows[texts == number].mean(axis=0) for number in np.unique(texts)])
    assert np.allclose(found, expected) and np.allclose(found.sum(axis=1), 1)
    assert (texts[first] == np.unique(texts)).all()


def test_scores_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss

    generator = np.random.default_rng(3)
    logits = generator.normal(size=(200, 5)).astype(np.float32) * 2
    labels = generator.integers(0, 4, 200)  # one class never occurs
    found, shares = class_scores(probabilities(logits), labels), probabilities(logits)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, shares.argmax(axis=1)))
    seen = shares.argmax(axis=1)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, seen))
    assert found["log_loss"] == pytest.approx(log_loss(labels, shares, labels=range(5)))


def test_labels_follow_from_the_data_and_the_three_splits_are_told_apart(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", colours_and_animals(120))
    database = csv_database(path, max_seq_length=16).source.path
    data = task_data("classify")
    source = data.inspect(str(database), None)
    assert (source.seq_len, source.samples) == (16, len(ClassifyTask().rows(database, "training")))
    assert resolve_options("classify", {}, source) == '{"labels":3}'
    fingerprints = {ClassifyTask().rows(database, split).fingerprint for split in ("training", "evaluation", "test")}
    assert len(fingerprints) == 3
    with refused("data-unprepared", path, "bertbench data csv"):
        data.inspect(str(path), None)


def test_an_evaluation_counts_texts_not_rows_and_takes_some_of_them(tmp_path: Path) -> None:
    rows = [(f"{text} {'a b c d e f ' * (number % 3)}", label)
            for number, (text, label) in enumerate(colours_and_animals(150))]  # fmt: skip
    summary = csv_database(write_csv(tmp_path / "a.csv", rows), max_seq_length=8, validation=0.3)
    vocab_size = len(summary.source.vocabulary.pieces)
    task = make_task("classify", '{"labels":3}')
    spec = DataSpec(data=str(summary.source.path), seq_len=8, micro_batch_size=7, vocab_size=vocab_size)
    model = task.build_model(preset("tiny").replace(vocab_size=vocab_size)).eval()
    found = {}
    for samples in (0, 10):
        evaluator = task.evaluator(spec, EvaluationSpec(samples=samples))
        total = evaluator.measure(model, torch.device("cpu"), Precision("fp32", "cpu"))
        found[samples] = evaluator.score(total)
    assert found[0].samples == summary.sizes["validate"]["texts"] < found[0].counts["rows"]
    assert found[10].samples == 10
    assert set(found[0].values) == {"accuracy", "balanced_accuracy", "log_loss"}


def test_other_texts_are_no_data_to_evaluate_on(tmp_path: Path) -> None:
    database = csv_database(write_csv(tmp_path / "a.csv", colours_and_animals(90))).source.path
    with refused("option-not-applicable", "b.sqlite", "predict classify"):
        make_task("classify", '{"labels":3}').check_evaluation(str(database), 128, "b.sqlite")


def test_another_folder_is_no_classifier(tmp_path: Path) -> None:
    for content, code in (({"format": "other"}, "record-foreign"), ({}, "record-foreign"), ([], "file-format")):
        (tmp_path / "results.json").write_text(json.dumps(content))
        with refused(code, tmp_path):
            open_classifier(tmp_path, None)  # type: ignore[arg-type]
    found = commands.RESULTS_FORMAT, commands.RESULTS_FILE
    assert found == (classification.FORMAT, classification.RESULTS_FILE)


class Knowing(TextClassifier):
    """Takes every text for spam."""

    __slots__ = ()

    def predict(self, texts: Sequence[str], *_: Any) -> list[tuple[str, float] | None]:
        return [("spam", 0.75)] * len(texts)


def test_labels_that_the_model_does_not_know_count_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(ready=lambda *_: None)
    classifier = Knowing(opened, ("ham", "spam"), Vocabulary((), True), 8)  # type: ignore[arg-type]
    monkeypatch.setattr("bert.tasks.classify.commands.open_classifier", lambda *_: classifier)
    labels = ["spam", "ham", "", "Spam", "junk", "junk"]
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"a b,{label}\n" for label in labels))
    words = ("--checkpoint", tmp_path, "--data", tmp_path / "new.csv", "--device", "cpu")
    found = document("predict", "classify", *words)
    assert (found["texts"], found["accuracy"], found["unknown_labels"]) == (6, 0.2, 3)
