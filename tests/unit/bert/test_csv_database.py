"""The database of a CSV, made once and never read where it is damaged, and the classification of its texts."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import document
from support.datasets import colours_and_animals, csv_database, write_csv, write_vocabulary
from support.examples import examples
from support.refusals import refused

from bert.data.batches import DataSpec
from bert.data.vocabulary import Vocabulary
from bert.model.config import preset
from bert.optim.precision import Precision
from bert.tasks import make_task, resolve_options, task_data
from bert.tasks.base import EvaluationSpec
from bert.tasks.classify import commands, store
from bert.tasks.classify import prepare as preparing
from bert.tasks.classify.commands import TextClassifier, open_classifier
from bert.tasks.classify.prepare import fold
from bert.tasks.classify.reading import NO_PIECES
from bert.tasks.classify.task import ClassifyTask, class_scores, probabilities, text_probabilities
from common.errors import Code, SchemaError
from records import classification


@settings(deadline=None)
@given(pieces=st.lists(st.integers(0, 99)), longest=st.integers(3, 20))
def test_folds_of_a_text_hold_all_of_it_in_order(pieces: list[int], longest: int) -> None:
    rows = list(fold(pieces, longest, 101, 102))
    assert [piece for row in rows for piece in row[1:-1]] == pieces
    assert all(row[0] == 101 and row[-1] == 102 and 3 <= len(row) <= longest for row in rows)
    assert all(len(row) == longest for row in rows[:-1])


TEXTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=examples(60))
@given(texts=TEXTS, shares=st.tuples(st.floats(0, 0.45), st.floats(0, 0.45)), seed=st.integers(0, 3))
def test_equal_texts_are_in_one_split_and_labels_keep_their_share(
    texts: list[tuple[int, int]], shares: tuple[float, float], seed: int
) -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(store.TABLES)
    rows = [
        (number, number, label, store.text_key([text], seed), "train") for number, (text, label) in enumerate(texts)
    ]
    connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", rows)
    store.divide(connection, *shares)
    found = connection.execute("SELECT key, label, split FROM texts").fetchall()
    splits: dict[int, set[str]] = {}
    for key, _, split in found:
        splits.setdefault(key, set()).add(split)
    assert all(len(used) == 1 for used in splits.values())
    labels = {key: min(label for other, label, _ in found if other == key) for key in splits}
    for label in set(labels.values()):
        keys = [key for key in splits if labels[key] == label]
        for split, share in (("validate", shares[0]), ("test", shares[1])):
            taken = sum(splits[key] == {split} for key in keys)
            # One text of each label that any of these texts has may have been taken back.
            back = len({other for key, other, _ in found if key in keys})
            assert -2 - back < taken - share * len(keys) < 2 if len(keys) > 1 else taken == 0
    assert {label for _, label, split in found if split == "train"} == {label for _, label, _ in found}


def test_a_second_call_keeps_it_and_other_options_or_another_csv_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", colours_and_animals(60))
    first = csv_database(path)
    path.touch()
    again, other = csv_database(path), csv_database(path, output=tmp_path / "b.sqlite")
    assert (first.kept, again.kept, other.kept) == (False, True, False)
    assert first.source.fingerprint == again.source.fingerprint == other.source.fingerprint
    assert samples_of(first.source.path) == samples_of(other.source.path)
    with refused("folder-occupied", "a.sqlite", "max_seq_length 128, not 8", "--output"):
        csv_database(path, max_seq_length=8)
    store.add_run(first.source.path, first.source.fingerprint, {"accuracy": 0.5})
    with refused("folder-occupied", "a.sqlite", "a.csv", "digest"):
        csv_database(write_csv(path, colours_and_animals(63)))
    assert store.read_runs(first.source.path) == [{"accuracy": 0.5}]


def test_texts_that_are_equal_to_the_model_are_in_one_split(tmp_path: Path) -> None:
    forms = (str, str.upper, lambda text: f"  {text.replace(' ', '   ')} ", lambda text: text.replace("e", "é"))
    rows = [(form(f"red cat e{number}"), f"L{number % 2}") for number in range(40) for form in forms]
    source = csv_database(write_csv(tmp_path / "a.csv", rows), validation=0.3, test=0.3).source
    connection = sqlite3.connect(source.path)
    splits = dict(connection.execute("SELECT number, split FROM texts").fetchall())
    connection.close()
    assert set(splits.values()) == set(store.SPLITS)
    assert all(len({splits[number + form] for form in range(4)}) == 1 for number in range(0, 160, 4))


def test_what_a_killed_preparation_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", colours_and_animals(60))
    for name in (".a.sqlite.x1.tmp", ".a.sqlite.x1.tmp-journal", ".b.sqlite.x1.tmp"):
        (tmp_path / name).write_text("half")
    csv_database(path)
    assert files(tmp_path) == {"a.csv", "a.sqlite", "vocab.txt", ".a.lock", ".b.sqlite.x1.tmp"}


def test_processes_that_start_together_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "a.csv", colours_and_animals(200))
    write_vocabulary(tmp_path)
    built = []
    build = preparing._build
    monkeypatch.setattr(preparing, "_build", lambda *given: (built.append(1), build(*given)))
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(csv_database(path).kept)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and sorted(found) == [False, True, True, True]


def test_texts_without_a_word_piece_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n\x01,b\none,a\ntwo,b\n\x01,b\n")
    source = csv_database(tmp_path / "a.csv").source
    assert store.left_out(source.path) == [(2, NO_PIECES), (5, NO_PIECES)]
    assert source.counts.names == {f"left out: {NO_PIECES}": ["line 2", "line 5"]}


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [("text,label\n", "rows-invalid", ()), ("text,label\n,a\n", "rows-invalid", ("1 left out: empty text",)),
     ("text,label\none,a\ntwo,a\n,b\n", "labels-invalid", ("1 label", "1 left out: empty text"))],
    ids=["header alone", "nothing usable", "one label"],
)  # fmt: skip
def test_what_nothing_can_be_learned_from_is_refused_and_leaves_nothing(
    tmp_path: Path, content: str, code: Code, facts: tuple[str, ...]
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with refused(code, *facts):
        csv_database(tmp_path / "a.csv")
    assert files(tmp_path) == {"a.csv", "vocab.txt", ".a.lock"}


def test_labels_of_any_kind_and_number_are_kept_as_they_are(tmp_path: Path) -> None:
    labels = ["1", "0", "-1.5", "=1+1", "Größe", "a b", "x" * 500, "NULL", "'", '"', *map(str, range(200, 600))]
    rows = [(f"one {number}", label) for number, label in enumerate(labels * 2)]
    source = csv_database(write_csv(tmp_path / "a.csv", rows)).source
    assert source.labels == tuple(labels) and set(source.label_texts) == {2}


def samples_of(path: Path) -> list[object]:
    source = store.open_source(path)
    found = [store.read_split(source, split) for split in store.SPLITS]
    return [(rows.labels.tolist(), rows.ids.values.tolist(), texts.tolist()) for rows, texts in found]


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def damaged_copy(tmp_path: Path) -> Path:
    return csv_database(write_csv(tmp_path / "a.csv", colours_and_animals(90))).source.path


@pytest.mark.parametrize(
    ("kept", "code"), [(0, "data-unprepared"), (10, "data-unprepared"), (100, "file-damaged"), (5000, "file-damaged")]
)
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int, code: Code) -> None:
    path = damaged_copy(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with refused(code, path):
        source = store.open_source(path)
        for split in store.SPLITS:
            store.read_split(source, split)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = damaged_copy(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {store.SCHEMA_VERSION + 1}")
    for use in (store.open_source, lambda _: csv_database(tmp_path / "a.csv")):
        with refused("record-version", path, store.SCHEMA_VERSION + 1, store.SCHEMA_VERSION, kind=SchemaError):
            use(path)


def test_what_a_killed_writer_left_half_done_is_put_right(tmp_path: Path) -> None:
    path = damaged_copy(tmp_path)
    before = store.open_source(path).fingerprint, store.read_runs(path), samples_of(path)
    program = f"""
import os, sqlite3
connection = sqlite3.connect({str(path)!r})
connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
connection.execute("UPDATE samples SET label = 0")
connection.execute("INSERT INTO runs (ended, fingerprint, result) VALUES ('', '', ?)", ("x" * 200_000,))
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert path.with_name("a.sqlite-journal").is_file()
    source = store.open_source(path)
    assert before == (source.fingerprint, store.read_runs(path), samples_of(path))
    assert csv_database(tmp_path / "a.csv").kept and not path.with_name("a.sqlite-journal").exists()


def test_views_of_a_foreign_database_may_call_no_function_that_touches_the_machine(tmp_path: Path) -> None:
    path = damaged_copy(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE left_out RENAME TO kept")
        connection.execute("CREATE VIEW left_out AS SELECT 1 AS line, load_extension('/tmp/evil') AS reason")
    with store.opened(path) as database:
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)
    with refused("file-damaged", path):
        store.left_out(path)


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
    model = SimpleNamespace(ready=lambda *_: None)
    classifier = Knowing(model, ("ham", "spam"), Vocabulary((), True), 8)  # type: ignore[arg-type]
    monkeypatch.setattr("bert.tasks.classify.commands.open_classifier", lambda *_: classifier)
    labels = ["spam", "ham", "", "Spam", "junk", "junk"]
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"a b,{label}\n" for label in labels))
    words = ("--checkpoint", tmp_path, "--data", tmp_path / "new.csv", "--device", "cpu")
    found = document("predict", "classify", *words)
    assert (found["texts"], found["accuracy"], found["unknown_labels"]) == (6, 0.2, 3)
