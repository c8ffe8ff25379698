"""Any file that a training of a classification left gives its result; other and damaged files are refused."""

import json
import sqlite3
from pathlib import Path

import pytest
from support.fake_run import classification
from support.refusals import refused

from bert.tasks.classify.store import APPLICATION_ID, TABLES
from common.errors import Code
from records.classification import DATABASE_ID, is_classification, read_result, root_of


def leave(folder: Path) -> dict[str, Path]:
    """The files of a training, as `train classify` names them."""
    text = json.dumps(classification())
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
    for path in paths.values():
        result = read_result(path)
        assert result.pairs == {("ham", "ham"): 2, ("ham", "spam"): 1, ("spam", "spam"): 1}
        assert result.curve == [(1, 0.9), (2, 0.5)] and result.labels == ("spam", "ham")
        assert result.label_distribution["train"] == {"ham": 8, "spam": 2} and len(result.evaluations) == 1
        assert result.root == root_of(path) == tmp_path.resolve() / "a"
    assert all(map(is_classification, paths.values())) and DATABASE_ID == APPLICATION_ID


def test_other_files_are_no_classification(tmp_path: Path) -> None:
    for name, content in (("a.csv", "text,label\n"), ("a.sqlite", "SQLite format 3\0" + 99 * "x"), ("a.json", "{}")):
        (tmp_path / name).write_text(content)
    assert not any(map(is_classification, [*tmp_path.iterdir(), tmp_path, tmp_path / "absent"]))


@pytest.mark.parametrize("name", ["a_testset_predictions.csv", "a.sqlite"])
def test_a_file_that_lies_apart_from_its_statistics_is_refused(tmp_path: Path, name: str) -> None:
    path = leave(tmp_path)[name]
    (tmp_path / "a_train_test_stats.json").unlink()
    with refused("path-missing", "a_train_test_stats.json"):
        read_result(path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "file-damaged"), ("[]", "record-foreign"), ("{}", "record-foreign"),
        (json.dumps(classification(schema_version=2)), "record-version"),
        (json.dumps(classification(test={"confusion": [["a", "b", -1]]})), "file-damaged"),
        (json.dumps(classification(test={})), "file-damaged"), (json.dumps(classification(curve=[1])), "file-damaged"),
        (json.dumps(classification(labels=None)), "file-damaged"),
    ],
    ids=["empty", "list", "object", "newer", "negative", "no test", "curve", "labels"],
)  # fmt: skip
def test_damaged_statistics_are_refused(tmp_path: Path, content: str, code: Code) -> None:
    (tmp_path / "a.json").write_text(content)
    facts = (2, 1) if code == "record-version" else ()
    with refused(code, "a.json", *facts):
        read_result(tmp_path / "a.json")
