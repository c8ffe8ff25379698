"""Figures of a classification are those of their definitions, and any file that a training left gives them."""

import json
import shutil
import sqlite3
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import result as command
from support.commands import text
from support.examples import examples
from support.refusals import refused

from analysis.metrics import classification
from analysis.metrics.classification import classify
from analysis.render.classification_page import write_classification_report
from bert.tasks.classify.store import APPLICATION_ID, SCHEMA_VERSION, TABLES
from common.errors import Code
from records.classification import DATABASE_ID, DATABASE_VERSION, FORMAT, read_result, root_of

LABELS = ["ham", "spam", "=1+1", "Größe"]
PAIRS = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=examples(25))
@given(PAIRS)
def test_scores_are_those_of_their_definitions(pairs: list[tuple[str, str]]) -> None:
    found = classify(Counter(pairs), LABELS)
    assert found.texts == len(pairs) and found.labels == tuple(LABELS)
    assert found.accuracy == pytest.approx(sum(true == given for true, given in pairs) / len(pairs))
    recalls = []
    for row, label in enumerate(LABELS):
        right = sum(pair == (label, label) for pair in pairs)
        support, predicted = sum(true == label for true, _ in pairs), sum(given == label for _, given in pairs)
        one = found.scores[row]
        assert (one.support, one.predicted) == (support, predicted)
        assert one.recall == (None if not support else pytest.approx(right / support))
        assert one.precision == (None if not predicted else pytest.approx(right / predicted))
        assert one.f1 == (pytest.approx(2 * right / (support + predicted)) if support + predicted else None)
        recalls += [right / support] if support else []
        for column, other in enumerate(LABELS):
            count = sum(pair == (label, other) for pair in pairs)
            assert found.confusion[row, column] == count
            share = found.normalized[row, column]
            assert np.isnan(share) if not support else share == pytest.approx(count / support)
    assert found.balanced_accuracy == pytest.approx(np.mean(recalls))
    assert found.majority == max(Counter(true for true, _ in pairs).values()) / len(pairs)
    assert sum(count for *_, count, _ in found.most_confused(99)) == sum(true != given for true, given in pairs)


@settings(deadline=None, max_examples=examples(15))
@given(PAIRS)
def test_means_over_labels_are_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import balanced_accuracy_score, f1_score

    true, predicted = zip(*pairs, strict=True)
    found = classify(Counter(pairs), [*LABELS, "of no text"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels that are predicted and do not occur
        assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(true, predicted))
    for score, average in ((found.macro_f1, "macro"), (found.weighted_f1, "weighted")):
        assert score == pytest.approx(f1_score(true, predicted, average=average, zero_division=0))


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema_version": 1,
        "labels": ["spam", "ham"],
        "label_distribution": {"train": {"ham": 8, "spam": 2}, "validate": {"ham": 1}, "test": {"ham": 3, "spam": 1}},
        "curve": [[1, 0.9], [2, 0.5]],
        "evaluations": [{"applied_steps": 2, "accuracy": 0.75, "balanced_accuracy": 0.7, "log_loss": 0.6}],
        "run": {"model": "tiny", "updates": 2, "begun_from": None},
        "test": {"confusion": [["ham", "ham", 2], ["ham", "spam", 1], ["spam", "spam", 1]]},
        **changes,
    }


def leave(folder: Path) -> dict[str, Path]:
    """The files of a training, as `train classify` names them."""
    text = json.dumps(document())
    (folder / "a_train_test_stats.json").write_text(text)
    (folder / "a_testset_predictions.csv").write_text("prediction,true_label\nham,ham\nham,ham\nspam,ham\nspam,spam\n")
    (folder / "a_trained_model").mkdir()
    (folder / "a_trained_model/results.json").write_text(text)
    connection = sqlite3.connect(folder / "a.sqlite")
    connection.executescript(
        f"{TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}"
    )
    connection.execute("INSERT INTO meta VALUES ('fingerprint', '\"now\"')")
    runs = [("", "now", "{}"), ("", "now", text), ("", "before", "{}")]
    connection.executemany("INSERT INTO runs (ended, fingerprint, result) VALUES (?, ?, ?)", runs)
    connection.commit()
    connection.close()
    (folder / "a.csv").write_text("text,label\nhello,ham\n")
    names = ("a_train_test_stats.json", "a_testset_predictions.csv", "a_trained_model", "a.sqlite", "a.csv")
    return {name: folder / name for name in names}


def test_every_file_gives_the_same_result(tmp_path: Path) -> None:
    paths = leave(tmp_path)
    found = {name: read_result(path) for name, path in paths.items()}
    first = found["a.sqlite"]
    assert first.pairs == {("ham", "ham"): 2, ("ham", "spam"): 1, ("spam", "spam"): 1}
    assert first.curve == [(1, 0.9), (2, 0.5)] and first.labels == ("spam", "ham")
    for result in found.values():
        assert (result.pairs, result.labels, result.curve) == (first.pairs, first.labels, first.curve)
        assert (result.distribution, result.evaluations) == (first.distribution, first.evaluations)
    assert {root_of(path) for path in paths.values()} == {tmp_path.resolve() / "a"}


def test_each_file_is_enough_alone_and_predictions_of_another_model_are_not_mixed(tmp_path: Path) -> None:
    paths = leave(tmp_path)
    for name in ("a_train_test_stats.json", "a_trained_model", "a.sqlite", "a_testset_predictions.csv"):
        alone = tmp_path / "alone" / name
        alone.parent.mkdir(exist_ok=True)
        (shutil.copytree if paths[name].is_dir() else shutil.copy)(paths[name], alone)
        assert classify(read_result(alone).pairs).accuracy == 0.75
        assert bool(read_result(alone).curve) != name.endswith(".csv")
        (shutil.rmtree if alone.is_dir() else Path.unlink)(alone)
    paths["a_testset_predictions.csv"].write_text("prediction,true_label\nspam,ham\n")
    assert not read_result(paths["a_testset_predictions.csv"]).curve


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "file-empty"), (" ", "file-damaged"), ("[]", "record-foreign"), ("{}", "record-foreign"),
        (json.dumps(document(schema_version=2)), "record-version"),
        (json.dumps(document(test={"confusion": [["a", "b", -1]]})), "file-damaged"),
        (json.dumps(document(test={})), "file-damaged"), (json.dumps(document(curve=[1])), "file-damaged"),
        (json.dumps(document(labels=None)), "file-damaged"),
    ],
    ids=["empty", "blank", "list", "object", "newer", "negative", "no test", "curve", "labels"],
)  # fmt: skip
def test_damaged_statistics_are_refused(tmp_path: Path, content: str, code: Code) -> None:
    (tmp_path / "a.json").write_text(content)
    facts = (2, 1) if code == "record-version" else ()
    with refused(code, "a.json", *facts):
        read_result(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "content", "code", "facts"),
    [
        ("a.csv", "text,label\na,b\n", "columns-missing", ("prediction", "true_label")),
        ("a.csv", "prediction,true_label\n", "file-empty", ()),
        ("a.csv", "prediction,true_label\na\n", "rows-invalid", ("line 2", "1 field")),
        ("a.txt", "anything", "file-format", ()),
        ("a.sqlite", "SQLite format 3\0 and nothing else", "file-damaged", ()),
        ("a.sqlite", "", "file-empty", ()),
    ],
    ids=["other csv", "header alone", "short row", "text", "database", "empty database"],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str, code: Code, facts: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(content)
    with refused(code, name, *facts):
        read_result(tmp_path / name)


@pytest.mark.parametrize(
    ("statement", "code", "facts"),
    [
        ("PRAGMA application_id = 1", "record-foreign", ()),
        *(
            (f"PRAGMA user_version = {version}", "record-version", (version, SCHEMA_VERSION))
            for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1)
        ),
        ("DROP TABLE runs", "file-damaged", ()),
        ("DELETE FROM runs", "run-incomplete", ("bertbench train classify",)),
        ("UPDATE runs SET fingerprint = 'before'", "data-mismatch", ("3 results", "bertbench train classify")),
    ],
    ids=["program", "older", "newer", "damaged", "none", "other samples"],
)
def test_what_is_wrong_with_a_database_is_named(
    tmp_path: Path, statement: str, code: Code, facts: tuple[object, ...]
) -> None:
    path = leave(tmp_path)["a.sqlite"]
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with refused(code, path, *facts):
        read_result(path)


def test_the_reader_knows_the_databases_that_are_written() -> None:
    assert (DATABASE_ID, DATABASE_VERSION) == (APPLICATION_ID, SCHEMA_VERSION)


@pytest.mark.more
@pytest.mark.usefixtures("pictures_of_one_pixel")
@pytest.mark.parametrize("count", [2, 40])
def test_the_page_holds_its_pictures_and_escapes_labels(tmp_path: Path, count: int) -> None:
    names = ["<script>alert(1)</script>", "$x_1$", *(f"label_{number}" for number in range(count - 2))]
    pairs = [[name, names[number // 2], 1 + number] for number, name in enumerate(names)]
    content = document(labels=names, test={"confusion": pairs}, label_distribution={"train": dict.fromkeys(names, 3)})
    (tmp_path / "a_train_test_stats.json").write_text(json.dumps(content))
    result = read_result(tmp_path / "a_train_test_stats.json")
    page = write_classification_report(result, classify(result.pairs, result.labels), tmp_path / "out").read_text()
    assert page.count('<div class="chart"') == 4 and "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"confusion_matrix.csv", "classification_report.csv", "loss_and_accuracy.png"} <= files


def test_labels_without_a_matrix_have_all_other_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MOST_IN_MATRIX", 2)
    pairs = [["a", "a", 2], ["a", "b", 1], ["c", "a", 1]]
    content = document(labels=["a", "b", "c"], test={"confusion": pairs}, label_distribution={})
    (tmp_path / "a_train_test_stats.json").write_text(json.dumps(content))
    result = read_result(tmp_path / "a_train_test_stats.json")
    found = classify(result.pairs, result.labels)
    assert found.to_json()["confusion"] is None and found.to_json()["confusion_pairs"] == pairs
    write_classification_report(result, found, tmp_path / "out")
    rows = (tmp_path / "out/confusion_pairs.csv").read_text().split()
    assert rows == ["true_label,prediction,texts", "a,a,2", "a,b,1", "c,a,1"]
    assert not list((tmp_path / "out").glob("confusion_matrix*"))


def test_a_label_without_texts_has_no_shares_in_the_terminal(
    tmp_path: Path,
) -> None:
    content = document(labels=["ham", "spam", "never met"])
    (tmp_path / "a_train_test_stats.json").write_text(json.dumps(content))
    said = text(command("results", tmp_path / "a_train_test_stats.json").blocks)
    assert "nan" not in said and "2 (66.7 %)" in said


def test_the_hardest_labels_are_such_as_occur(tmp_path: Path) -> None:
    names = [f"label-{number:02}" for number in range(30)]
    pairs = [[name, name, 1] for name in names[25:]]
    (tmp_path / "a_train_test_stats.json").write_text(json.dumps(document(labels=names, test={"confusion": pairs})))
    said = text(command("results", tmp_path / "a_train_test_stats.json").blocks)
    assert "the 5 of 30 labels" in said and "label-00" not in said and "label-25" in said
