"""Any file that a training of a classification left gives its result; other and damaged files are refused."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.classification_document import document
from support.refusals import refused

from bert.tasks.classify.store import APPLICATION_ID, TABLES
from common.errors import Code
from records.classification import DATABASE_ID, is_classification, read_result, root_of


def leave(folder: Path) -> dict[str, Path]:
    """The files of a training, as `train classify` names them."""
    text = json.dumps(document())
    (folder / "a_train_test_stats.json").write_text(text)
    (folder / "a_testset_predictions.csv").write_text("prediction,true_label\nham,ham\nham,ham\nspam,ham\nspam,spam\n")
    (folder / "a_trained_model").mkdir()
    (folder / "a_trained_model/results.json").write_text(text)
    connection = sqlite3.connect(folder / "a.sqlite")
    connection.executescript(f"{TABLES} PRAGMA application_id = {APPLICATION_ID}")
    connection.commit()
    connection.close()
    names = ("a_train_test_stats.json", "a_testset_predictions.csv", "a_trained_model", "a.sqlite")
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
    assert all(map(is_classification, paths.values()))


def test_other_files_are_no_classification(tmp_path: Path) -> None:
    for name, content in (("a.csv", "text,label\n"), ("a.sqlite", "SQLite format 3\0" + 99 * "x"), ("a.json", "{}")):
        (tmp_path / name).write_text(content)
    assert not any(map(is_classification, [*tmp_path.iterdir(), tmp_path, tmp_path / "absent"]))


def test_each_file_is_enough_alone_and_predictions_of_another_model_are_not_mixed(tmp_path: Path) -> None:
    paths = leave(tmp_path)
    for name in ("a_train_test_stats.json", "a_trained_model", "a_testset_predictions.csv"):
        alone = tmp_path / "alone" / name
        alone.parent.mkdir(exist_ok=True)
        (shutil.copytree if paths[name].is_dir() else shutil.copy)(paths[name], alone)
        assert sum(read_result(alone).pairs.values()) == 4
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
        ("a.csv", "prediction,true_label\na\n", "rows-invalid", ("line 2",)),
        ("a.txt", "anything", "file-format", ()),
        ("a.sqlite", "", "file-empty", ()),
    ],
    ids=["other csv", "header alone", "short row", "text", "empty database"],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str, code: Code, facts: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(content)
    with refused(code, name, *facts):
        read_result(tmp_path / name)


def test_a_database_without_statistics_beside_it_is_refused(tmp_path: Path) -> None:
    leave(tmp_path)["a_train_test_stats.json"].unlink()
    with refused("path-missing", "a_train_test_stats.json"):
        read_result(tmp_path / "a.sqlite")


def test_the_reader_knows_the_databases_that_are_written() -> None:
    assert DATABASE_ID == APPLICATION_ID
