"""What the inputs and the files of features must survive: named clearly, counted, never half-written."""

import gzip
from pathlib import Path

import pytest
from support.refusals import refused
from support.squad_columns import dataset, made, make, paragraph, question, small_vocabulary

from bert.tasks.squad.prepare import SquadConfig, cpu_count, worker_count
from bert.tasks.squad.reading import read_dataset
from common.errors import Code


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return small_vocabulary(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [question(f"q{number}", "what is it?", ("c d", 4)) for number in range(3)]
    return dataset(tmp_path / "train.json", paragraph("a b c d e f", *rows))


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        ("", "file-damaged", ()),
        ("{", "file-damaged", ()),
        ("[1]", "file-format", ()),
        ('{"data": []}', "file-empty", ()),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": []}, {"qas": []}]}]}', "file-format", ("paragraphs[1]",)),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 7}]}]}]}', "file-format", ("qas[0].id", "int")),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "a", "answers": [{}]}]}]}]}',
            "file-format",
            ("qas[0].answers[0]", "`text`"),
        ),
    ],
)
def test_a_file_that_is_no_squad_is_refused_by_name_and_place(
    content: str, code: Code, facts: tuple[str, ...], tmp_path: Path, vocab: Path
) -> None:
    path = tmp_path / "dev.json"
    path.write_text(content, encoding="utf-8")
    with refused(code, path, *facts):
        make(path, vocab, tmp_path / "out")
    assert not list(tmp_path.glob("out/squad-*"))


def test_gzip_and_a_byte_order_mark_are_read_and_a_cut_file_is_named(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "train.json.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + source.read_bytes()))
    assert read_dataset(packed).paragraphs == read_dataset(source).paragraphs
    assert read_dataset(packed).fingerprint == read_dataset(source).fingerprint
    packed.write_bytes(packed.read_bytes()[:-12])
    with refused("file-truncated", packed):
        read_dataset(packed)
    with refused("path-missing", tmp_path / "absent.json"):
        read_dataset(tmp_path / "absent.json")


def test_a_file_of_the_other_version_is_refused_and_auto_takes_either(
    source: Path, tmp_path: Path, vocab: Path
) -> None:
    with refused("data-mismatch", "1.1", "2.0", "--squad-version 1.1"):
        make(source, vocab, tmp_path, squad_version="2.0")
    newer = dataset(tmp_path / "dev.json", paragraph("a", question("a", is_impossible=True)), version="v2.0")
    with refused("data-mismatch", "1.1", "2.0", "--squad-version 2.0"):
        make(newer, vocab, tmp_path, squad_version="1.1")
    assert made(newer, vocab, tmp_path).settings.version == "2.0"
    # Text that speaks of the field is no field.
    older = dataset(tmp_path / "dev1.json", paragraph('"is_impossible": true', question("a", '"is_impossible":')))
    assert made(older, vocab, tmp_path).settings.version == "1.1"


def test_what_features_are_for_is_told_by_the_name_or_asked_for(tmp_path: Path, vocab: Path) -> None:
    for name in ("mine.json", "train-dev.json"):
        (tmp_path / name).touch()
        with refused("option-missing", name, "--split training", "--split evaluation"):
            make(tmp_path / name, vocab, tmp_path)
    with refused("option-conflict", "--split training", "--input", 2):
        SquadConfig(input=(tmp_path, tmp_path), vocab=vocab, split="training")
    with refused("option-conflict", "--drop-unanswerable-windows"):
        SquadConfig(input=(tmp_path,), vocab=vocab, split="evaluation", drop_unanswerable_windows=True)


def test_a_training_set_of_which_nothing_can_be_used_is_refused_with_the_reasons(tmp_path: Path, vocab: Path) -> None:
    path = dataset(tmp_path / "train.json", paragraph("a b", question("a", "?", ("z", 0)), question("b", "?")))
    with refused("rows-invalid", path, "the answer is not found at its place", "no answer"):
        make(path, vocab, tmp_path)


def test_there_are_never_more_workers_than_cpus(source: Path, vocab: Path) -> None:
    dataset = read_dataset(source)
    counts = [
        worker_count(SquadConfig(input=(source,), vocab=vocab, workers=workers), dataset)
        for workers in (None, 1, cpu_count() + 7)
    ]
    assert counts == [1, 1, cpu_count()], "one by default for a small input"
