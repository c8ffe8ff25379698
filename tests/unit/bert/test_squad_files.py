"""What the inputs and the files of features must survive: named clearly, counted, never half-written."""

import errno
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import refused
from support.squad_columns import dataset, made, make, paragraph, question, silent, small_vocabulary

from bert.tasks.base import DataIdentity
from bert.tasks.squad.config import SquadConfig, cpu_count
from bert.tasks.squad.features import FORM
from bert.tasks.squad.prepare import prepare
from bert.tasks.squad.reading import read_dataset
from bert.train.state import vocabulary_text
from common.errors import Code, InputError, SchemaError


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return small_vocabulary(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [question(f"q{number}", "what is it?", ("c d", 4)) for number in range(3)]
    return dataset(tmp_path / "train.json", paragraph("a b c d e f", *rows))


def broken(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


GOOD = {"context": "a b", "qas": [{"id": "1", "question": "?", "answers": []}]}


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        ("", "file-empty", ()),
        ("{", "file-damaged", ()),
        ("<!doctype html>", "file-damaged", ()),
        ("version https://git-lfs.github.com/spec/v1\n", "file-format", ("Git LFS",)),
        ([1], "file-format", ()),
        ({"rows": []}, "file-format", ("`data`",)),
        ({"data": []}, "file-empty", ()),
        ({"data": [{"title": "T"}]}, "rows-invalid", ("article 1:", "`paragraphs`")),
        ({"data": [{"paragraphs": [GOOD]}, {"paragraphs": 3}]}, "rows-invalid", ("article 2:", "paragraphs")),
        (
            {"data": [{"title": "Tea", "paragraphs": [GOOD, {"qas": []}]}]},
            "rows-invalid",
            ("('Tea'), paragraph 2:", "`context`"),
        ),
        ({"data": [{"title": "T", "paragraphs": [{"context": "a"}]}]}, "rows-invalid", ("paragraph 1:", "`qas`")),
        (
            {"data": [{"paragraphs": [{"context": "a", "qas": [GOOD["qas"][0], {"id": "x"}]}]}]},
            "rows-invalid",
            ("question 2:", "`question`"),
        ),
        (
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "x"}]}]}]},
            "rows-invalid",
            ("question 1:", "`id`"),
        ),
        (
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 7, "question": "x"}]}]}]},
            "rows-invalid",
            ("question 1:", "int"),
        ),
        (
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "a", "question": "x", "answers": [{}]}]}]}]},
            "rows-invalid",
            ("article 1, paragraph 1: question 1:", "`text`"),
        ),
    ],
)
def test_a_file_that_is_no_squad_is_refused_by_name_and_place(
    content: Any, code: Code, facts: tuple[str, ...], tmp_path: Path, vocab: Path
) -> None:
    path = broken(tmp_path / "dev.json", content)
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
    with refused("rows-invalid", path, "the answer is not found at its place: 1", "no answer: 1"):
        make(path, vocab, tmp_path)


def test_what_nothing_came_of_leaves_no_folder(tmp_path: Path, vocab: Path) -> None:
    source = dataset(tmp_path / "train.json", paragraph("a b", question("q", "what?", ("z", 0))))
    with refused("rows-invalid", source, ": 1)"):
        make(source, vocab, tmp_path / "out", split="training")
    assert not (tmp_path / "out").exists()


def test_questions_without_an_answer_to_score_are_told(tmp_path: Path, vocab: Path) -> None:
    source = dataset(tmp_path / "dev.json", paragraph("a b", question("q", "what?"), question("r", "what?", ("", 0))))
    told = make(source, vocab, tmp_path / "out", split="evaluation")
    assert any("2 questions without answers, such as q" in note for note in told.notes), told.notes


def test_more_workers_than_cpus_are_not_used_and_that_is_said(source: Path, tmp_path: Path, vocab: Path) -> None:
    summary = make(source, vocab, tmp_path, workers=None)
    assert summary.workers == 1, "a small input"
    for path in tmp_path.glob("squad-*"):
        path.unlink()
    summary = make(source, vocab, tmp_path, workers=cpu_count() + 7)
    assert summary.workers == cpu_count() and "is more than the" in summary.notes[0]


def test_finished_features_are_kept_and_damaged_ones_made_again(source: Path, tmp_path: Path, vocab: Path) -> None:
    first = make(source, vocab, tmp_path)
    content, state = first.features.read_bytes(), first.features.stat()
    again = make(source, vocab, tmp_path)
    assert again.kept and first.features.stat().st_mtime_ns == state.st_mtime_ns
    assert again.counts.numbers == first.counts.numbers
    first.features.write_bytes(content[:-5])
    repaired = make(source, vocab, tmp_path)
    assert not repaired.kept and any("cut off or damaged and is made again" in note for note in repaired.notes)
    assert first.features.read_bytes() == content
    assert {path.name for path in tmp_path.glob("squad-*")} == {first.features.name, f"{first.features.stem}.json"}


def test_finished_features_are_kept_in_a_folder_that_cannot_be_written(
    source: Path, tmp_path: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    first = make(source, vocab, tmp_path / "out")
    monkeypatch.setattr("tempfile.mkstemp", failing)
    monkeypatch.setattr("common.locks.os.open", failing)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert make(source, vocab, tmp_path / "out").features == first.features
    with refused("write-failed", tmp_path / "out"):
        make(source, vocab, tmp_path / "out", max_seq_length=100)


def test_someone_elses_file_of_that_name_is_not_touched(source: Path, tmp_path: Path, vocab: Path) -> None:
    from safetensors.numpy import save_file

    path = make(source, vocab, tmp_path).features
    save_file({"tokens.values": np.zeros(3, np.uint16)}, path)
    foreign = path.read_bytes()
    with refused("folder-occupied", path, "--output"):
        make(source, vocab, tmp_path)
    with refused("file-format", path, "bertbench data squad"):
        FORM.read(path)
    assert path.read_bytes() == foreign


def test_every_option_that_changes_the_content_changes_the_name(source: Path, tmp_path: Path, vocab: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"split": "evaluation"},
        {"lower_case": False},
        {"max_seq_length": 200},
        {"doc_stride": 64},
        {"max_query_length": 32},
        {"drop_unanswerable_windows": True},
    ]
    names = {make(source, vocab, tmp_path, **change).features.name for change in changes}
    other = small_vocabulary(tmp_path / "..", "other").rename(tmp_path / "other.txt")
    names.add(make(source, other, tmp_path).features.name)
    source.write_text(source.read_text().replace("what", "when"))
    names.add(make(source, vocab, tmp_path).features.name)
    assert len(names) == len(changes) + 2
    assert all(name.startswith(("squad-training-v1.1-", "squad-evaluation-v1.1-")) for name in names)
    for mode, workers in (("spill", 1), ("merge", 2)):
        assert make(source, vocab, tmp_path, mode=mode, workers=workers).kept


def test_other_programs_can_read_the_file(source: Path, tmp_path: Path, vocab: Path) -> None:
    from safetensors.numpy import load_file

    path = make(source, vocab, tmp_path).features
    features, columns = FORM.open(path), load_file(path)
    assert columns["input_ids.values"].tolist() == features.input_ids.values.tolist()
    assert columns["question_windows"].tolist() == features.question_windows.tolist()
    assert not features.input_ids.values.flags.writeable
    notes = json.loads(path.with_suffix(".json").read_text())
    assert notes["counts"]["questions"] == 3 and notes["settings"]["doc_stride"] == 128


def test_every_cut_of_a_file_is_refused_with_the_command_that_makes_it(
    source: Path, tmp_path: Path, vocab: Path
) -> None:
    path = make(source, vocab, tmp_path, max_seq_length=200).features
    content = path.read_bytes()
    for size in [0, 4, 9, 100, *range(200, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        with refused("file-truncated", path) as caught:
            FORM.open(path)
        command = f"bertbench data squad --input {source} --vocab {vocab} --split training --max-seq-length 200"
        assert f"`{command} --output {tmp_path}`" in str(caught.value)
    path.write_bytes(content + b"x")
    with refused("file-damaged", path, f"{len(content):,}", f"{len(content) + 1:,}"):
        FORM.open(path)


def test_damaged_headers_and_offsets_are_refused_without_a_traceback(source: Path, tmp_path: Path, vocab: Path) -> None:
    path = make(source, vocab, tmp_path).features
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    drawn = np.random.default_rng(1)
    seen = 0
    for place in range(8, 8 + length, 41):
        changed = bytearray(content)
        changed[place] = int(drawn.integers(1, 127))
        path.write_bytes(changed)
        try:
            FORM.open(path)
        except (InputError, SchemaError):
            seen += 1
    assert seen > 20
    begin = 8 + length + header["question_windows"]["data_offsets"][0]
    path.write_bytes(content[:begin] + b"\x7f" * 16 + content[begin + 16 :])
    with refused("file-damaged", path, "question_windows"):
        FORM.open(path)
    newer = content.replace(b'"schema_version":"1"', b'"schema_version":"9"')
    path.write_bytes(newer)
    with refused("record-newer", path, "version 9", kind=SchemaError):
        FORM.open(path)


def test_a_folder_is_opened_where_it_holds_exactly_one_file_of_the_split(
    source: Path, tmp_path: Path, vocab: Path
) -> None:
    out = tmp_path / "out out"
    with refused("data-unprepared", out) as caught:
        FORM.open(out, "training")
    assert str(caught.value).endswith(f"--output '{out}'`"), "what is made there is found there"
    with refused("data-unprepared", out) as caught:
        FORM.open(out / "squad-x.safetensors", "training")
    assert str(caught.value).endswith(f"--output '{out}'`")
    out.mkdir()
    with refused("data-unprepared", out, "training") as caught:
        FORM.open(out, "training")
    assert f"`bertbench data squad --input TRAIN.json --vocab VOCAB.txt --output '{out}'`" in str(caught.value)
    training = make(source, vocab, out).features
    assert len(FORM.open(out)) == 3
    evaluation = make(source, vocab, out, split="evaluation").features
    assert FORM.open(out, "evaluation").settings.split == "evaluation"
    with refused("data-ambiguous", "2 files") as caught:
        FORM.open(out)
    assert training.name in str(caught.value) and evaluation.name in str(caught.value)
    with refused("data-mismatch", training, "training", "evaluation"):
        FORM.open(training, "evaluation")
    with refused("data-unprepared", f"bertbench data squad --input {source}"):
        FORM.open(source, "training")


def test_a_dataset_that_has_changed_since_is_noticed(source: Path, tmp_path: Path, vocab: Path) -> None:
    path = make(source, vocab, tmp_path / "out").features
    content = source.read_text()
    source.write_text(content)  # touched, and the same
    assert len(FORM.open(path)) == 3
    source.write_text(content.replace("what", "when"))
    with refused("data-mismatch", path, source, "bertbench data squad --input"):
        FORM.open(path)
    source.unlink()
    assert len(FORM.open(path)) == 3, "the features stand on their own"


def test_several_inputs_make_one_file_each(source: Path, tmp_path: Path, vocab: Path) -> None:
    other = tmp_path / "dev.json"
    shutil.copy(source, other)
    config = SquadConfig(input=(source, other), vocab=vocab, output=tmp_path / "out", workers=1)
    assert [summary.settings.split for summary in prepare(config, silent)] == ["training", "evaluation"]


def test_any_changed_bit_is_refused_and_a_file_without_a_checksum_is_still_read(
    source: Path, tmp_path: Path, vocab: Path
) -> None:
    path = make(source, vocab, tmp_path).features
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in [*range(0, header, 3), *range(header, len(content), 5), len(content) - 1]:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        if place < header and changed[place : place + 1].isspace() == content[place : place + 1].isspace() is True:
            continue  # one kind of white space for another
        path.write_bytes(changed)
        with pytest.raises((InputError, SchemaError)):
            FORM.read(path)
    assert any("damaged and is made again" in note for note in make(source, vocab, tmp_path).notes)
    assert path.read_bytes() == content
    key = content.index(b'"crc32":"')
    older = content[: key - 1] + b" " * 19 + content[key + 18 :]
    assert b"crc32" not in older and len(older) == len(content)
    path.write_bytes(older)
    assert FORM.read(path).question_ids.text(0) == "q0" and make(source, vocab, tmp_path).kept


def test_the_vocabulary_lies_beside_the_features_whatever_vocab_txt_is_there(source: Path, tmp_path: Path) -> None:
    first, second = small_vocabulary(tmp_path / "..", "other").rename(tmp_path / "first.txt"), tmp_path / "second.txt"
    second.write_text(first.read_text() + "zzz\n")
    out = tmp_path / "out"
    features = [make(source, vocabulary, out).features for vocabulary in (first, second)]
    assert (out / "vocab.txt").read_text() == first.read_text()
    kept = {vocabulary: vocabulary.read_text() for vocabulary in (first, second)}
    for path, (vocabulary, text) in zip(features, kept.items(), strict=True):
        vocabulary.unlink()
        settings = FORM.read(path).settings
        assert FORM.vocabulary_of(path, settings).fingerprint == settings.vocabulary
        data = DataIdentity(source=str(path), fingerprint="x", vocabulary=settings.vocabulary)
        assert vocabulary_text(data) == text, "what a checkpoint carries"
    (out / features[1].name).unlink()
    data = DataIdentity(source=str(out), fingerprint="x", vocabulary=FORM.read(features[0]).settings.vocabulary)
    assert vocabulary_text(data) == kept[first], "of a folder, too"


def test_notes_that_are_lost_are_written_again_byte_by_byte(source: Path, vocab: Path, tmp_path: Path) -> None:
    path = make(source, vocab, tmp_path / "out").features.with_suffix(".json")
    before = path.read_bytes()
    path.unlink()
    assert make(source, vocab, tmp_path / "out").kept
    assert path.read_bytes() == before
