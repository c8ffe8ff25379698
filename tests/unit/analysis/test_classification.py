"""Figures of a classification are those of their definitions, and any file that a training left gives them."""

import json
import math
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import result as command
from support.commands import text
from support.examples import examples
from support.fake_run import classification

from analysis.metrics.classification import classify
from analysis.render.pages import write_classification_report
from records.classification import read_result

LABELS = ["ham", "spam", "=1+1", "Größe"]
PAIRS = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=examples(25))
@given(PAIRS)
def test_scores_are_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    true, predicted = zip(*pairs, strict=True)
    labels = [*LABELS, "of no text"]
    found = classify(Counter(pairs), labels)
    assert found.confusion.tolist() == confusion_matrix(true, predicted, labels=labels).tolist()
    assert found.majority == max(Counter(true).values()) / len(pairs)
    assert sum(count for *_, count, _ in found.most_confused(99)) == sum(one != other for one, other in pairs)
    scores = precision_recall_fscore_support(true, predicted, labels=labels, zero_division=np.nan)
    for name, values in zip(("precision", "recall", "f1", "support"), scores, strict=True):
        ours = [math.nan if row[name] is None else row[name] for row in found.report]
        assert ours == pytest.approx(values.tolist(), nan_ok=True), name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels that are predicted and do not occur
        assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(true, predicted))
    for score, average in ((found.macro_f1, "macro"), (found.weighted_f1, "weighted")):
        assert score == pytest.approx(f1_score(true, predicted, average=average, zero_division=0))


@pytest.mark.more
@pytest.mark.usefixtures("pictures_of_one_pixel")
@pytest.mark.parametrize("count", [2, 40])
def test_the_page_holds_its_pictures_and_escapes_labels(tmp_path: Path, count: int) -> None:
    names = ["<script>alert(1)</script>", "$x_1$", *(f"label_{number}" for number in range(count - 2))]
    pairs = [[name, names[number // 2], 1 + number] for number, name in enumerate(names)]
    content = classification(
        labels=names, test={"confusion": pairs}, label_distribution={"train": dict.fromkeys(names, 3)}
    )
    (tmp_path / "a_train_test_stats.json").write_text(json.dumps(content))
    result = read_result(tmp_path / "a_train_test_stats.json")
    page = write_classification_report(result, classify(result.pairs, result.labels), tmp_path / "out").read_text()
    assert page.count('<div class="chart"') == 4 and "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"confusion_matrix.csv", "classification_report.csv", "loss_and_accuracy.png"} <= files


def test_labels_without_texts_have_no_shares_and_are_not_the_hardest(tmp_path: Path) -> None:
    path = tmp_path / "a_train_test_stats.json"
    path.write_text(json.dumps(classification(labels=["ham", "spam", "never met"])))
    said = text(command("report", path).blocks)
    assert "nan" not in said and "33.3 %" in said
    names = [f"label-{number:02}" for number in range(30)]
    path.write_text(
        json.dumps(classification(labels=names, test={"confusion": [[name, name, 1] for name in names[25:]]}))
    )
    said = text(command("report", path).blocks)
    assert "the 5 of 30 labels" in said and "label-00" not in said and "label-25" in said
