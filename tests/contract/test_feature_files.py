"""What the feature files of every task must survive: each state of a file or folder has its code, and is resumed."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import gap_files, glue_folders, squad_columns
from support.refusals import refused

from bert.data.columns import map_columns, write_columns
from bert.data.features import FeatureForm
from bert.data.preparation import PARTS, Summary
from bert.tasks.base import DataIdentity
from bert.train.checkpoint import vocabulary_text
from common.errors import BertbenchError, SchemaError


@dataclass
class Case:
    """One task with a small source of its own."""

    form: FeatureForm[Any, Any]
    vocab: Path
    source: Path
    """What is trained on."""
    prepare: Callable[..., list[Summary]]
    """Takes options; the first summary is that of `source`."""
    output: Path
    group: str | None = None
    other_split: str = "evaluation"

    def make(self, **options: Any) -> Summary:
        return self.prepare(**{"output": self.output, "vocab": self.vocab, **options})[0]

    def file(self, **options: Any) -> Path:
        path = self.make(**options).features
        assert path is not None
        return path

    @property
    def split(self) -> str:
        return "train" if self.form.has_groups else "training"

    def rewrite(self, path: Path, change: Callable[[dict[str, str], dict[str, Any]], None]) -> None:
        """Write a file with other metadata or columns, with no checksum."""
        metadata, columns = map_columns(path)
        del metadata["crc32"]
        changed = {name: column.copy() for name, column in columns.items()}
        change(metadata, changed)
        path.unlink()
        with path.open("wb") as file:
            write_columns(file, {name: [column] for name, column in changed.items()}, metadata)


def squad(folder: Path) -> Case:
    from bert.tasks.squad.config import SquadConfig
    from bert.tasks.squad.features import FORM
    from bert.tasks.squad.prepare import prepare

    rows = [squad_columns.question(f"q{number}", "what is it?", ("c d", 4)) for number in range(3)]
    source = squad_columns.dataset(folder / "train.json", squad_columns.paragraph("a b c d e f", *rows))
    vocab = squad_columns.small_vocabulary(folder)

    def make(**options: Any) -> list[Any]:
        return list(prepare(SquadConfig(**{"input": (source,), "workers": 1, **options}), squad_columns.silent))

    return Case(FORM, vocab, source, make, folder / "out")


def gap(folder: Path) -> Case:
    from bert.tasks.gap.config import GapConfig
    from bert.tasks.gap.features import FORM
    from bert.tasks.gap.prepare import prepare

    source = gap_files.write(folder / "gap-development.tsv", gap_files.learnable(12))
    vocab = gap_files.vocabulary(folder / "vocab.txt")

    def make(**options: Any) -> list[Any]:
        return list(prepare(GapConfig(**{"input": (source,), **options}), squad_columns.silent))

    return Case(FORM, vocab, source, make, folder / "out", other_split="validation")


def glue(folder: Path) -> Case:
    from bert.tasks.glue.config import GlueConfig
    from bert.tasks.glue.features import FORM
    from bert.tasks.glue.prepare import prepare

    tables = glue_folders.make_glue(folder / "glue", ["rte"])
    for split in ("dev", "test"):
        (tables / "RTE" / f"{split}.tsv").unlink()
    vocab = glue_folders.write_vocabulary(folder / "vocab.txt")

    def make(split: str | None = None, **options: Any) -> list[Any]:
        if split is not None:
            (tables / "RTE/dev.tsv").write_bytes((tables / "RTE/train.tsv").read_bytes())
            return list(reversed(prepare(GlueConfig(input=tables, **options), squad_columns.silent)))
        return list(prepare(GlueConfig(input=tables, **options), squad_columns.silent))

    return Case(FORM, vocab, tables / "RTE/train.tsv", make, folder / "out", "rte", "dev")


@pytest.fixture(params=[squad, gap, glue], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every task in turn."""
    made: Case = request.param(tmp_path)
    return made


def test_a_folder_is_opened_where_it_holds_exactly_one_file_of_the_split(case: Case) -> None:
    form, folder = case.form, case.output.with_name("out out")
    command = f"`bertbench data {form.task}"
    for path in (folder, folder / f"{form.task}-x.safetensors"):
        with refused("data-unprepared", path, command) as caught:
            form.open(path, case.split, group=case.group)
        assert str(caught.value).endswith(f"--output '{folder}'`"), "what is made there is found there"
    folder.mkdir()
    with refused("data-unprepared", folder, case.split, command):
        form.open(folder, case.split, group=case.group)
    made = case.file(output=folder)
    assert len(form.open(folder)) == len(form.open(folder, case.split, group=case.group)) == len(form.open(made))
    other = case.file(output=folder, split=case.other_split)
    assert form.open(folder, case.other_split).settings.split == case.other_split
    with refused("data-ambiguous", "2 files", made.name, other.name):
        form.open(folder)
    (folder / f".{made.name}").write_bytes(b"hidden")
    assert form.find(folder, case.split) == made


def test_a_file_of_another_split_is_refused_and_a_source_is_no_feature_file(case: Case) -> None:
    made = case.file()
    if case.form.any_split:
        assert len(case.form.open(made, case.other_split))
    else:
        with refused("data-mismatch", made, case.split, case.other_split, "`bertbench data"):
            case.form.open(made, case.other_split)
    with refused("data-unprepared", case.source, f"`bertbench data {case.form.task}"):
        case.form.open(case.source, case.split)


def test_every_cut_and_every_changed_bit_is_refused_and_made_again(case: Case) -> None:
    path = case.file()
    content = path.read_bytes()
    for size in [0, 4, 9, 100, *range(200, len(content), 197), len(content) - 1]:
        path.write_bytes(content[:size])
        with refused("file-truncated", path, f"`bertbench data {case.form.task}"):
            case.form.open(path)
    path.write_bytes(content + b"x")
    with refused("file-damaged", path, f"{len(content):,}", f"{len(content) + 1:,}"):
        case.form.open(path)
    header = 8 + int.from_bytes(content[:8], "little")
    for place in [*range(0, header, 7), *range(header, len(content), 11), len(content) - 1]:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        if place < header and changed[place : place + 1].isspace() == content[place : place + 1].isspace() is True:
            continue  # one kind of white space for another
        path.write_bytes(changed)
        with pytest.raises(BertbenchError):
            case.form.read(path)
    again = case.make()
    assert not again.kept and any(path.name in note for note in again.notes)
    assert path.read_bytes() == content


def test_what_was_finished_is_kept_with_its_counts_and_lost_notes_are_written_again(case: Case) -> None:
    first = case.make()
    path = first.features
    assert path is not None
    beside = {other: other.read_bytes() for other in path.parent.iterdir() if other.name != ".lock"}
    state = path.stat()
    for other in beside.keys() - {path}:
        other.unlink()
    again = case.make()
    assert again.kept and path.stat().st_mtime_ns == state.st_mtime_ns
    assert again.counts.numbers == first.counts.numbers
    assert {other: other.read_bytes() for other in path.parent.iterdir() if other.name != ".lock"} == beside
    settings, fingerprint, counts = case.form.described(path, map_columns(path)[0])
    assert counts.numbers == first.counts.numbers
    assert fingerprint == case.form.fingerprint(settings, fingerprint_of(case, path)), "made of content and settings"


def fingerprint_of(case: Case, path: Path) -> str:
    """The hash of the whole content that stands in the file's name by its first digits."""
    if case.form.task == "squad":
        return case.form.content_of(case.source)
    if case.form.task == "gap":
        from bert.tasks.gap.reading import read_gap

        return read_gap(case.source).fingerprint
    from bert.tasks.glue.tables import read_table
    from bert.tasks.glue.tasks import TASKS

    return read_table(case.source, TASKS["rte"], "train").fingerprint


def test_a_file_of_an_earlier_version_without_a_checksum_is_still_read_and_kept(case: Case) -> None:
    path = case.file()
    content = path.read_bytes()
    key = content.index(b'"crc32":"')
    older = content[: key - 1] + b" " * 19 + content[key + 18 :]
    assert b"crc32" not in older and len(older) == len(content)
    path.write_bytes(older)
    assert len(case.form.read(path)) and case.make().kept


def test_what_a_newer_version_made_is_refused_and_not_written_over(case: Case) -> None:
    path = case.file()
    case.rewrite(path, lambda metadata, columns: metadata.update(schema_version="9"))
    newer = path.read_bytes()
    with refused("record-version", path, "version 9", kind=SchemaError):
        case.form.open(path)
    with refused("record-version", path, kind=SchemaError):
        case.make()
    assert path.read_bytes() == newer


def test_what_other_settings_or_an_older_version_made_is_made_again(case: Case) -> None:
    path = case.file()
    content = path.read_bytes()
    case.rewrite(path, lambda metadata, columns: metadata.update(fingerprint="0" * 32))
    again = case.make()
    assert not again.kept and any(path.name in note for note in again.notes) and path.read_bytes() == content


def test_a_file_of_something_else_is_refused_and_not_touched(case: Case) -> None:
    path = case.file()
    case.rewrite(path, lambda metadata, columns: metadata.clear())
    foreign = path.read_bytes()
    with refused("file-format", path, f"`bertbench data {case.form.task}"):
        case.form.read(path)
    with refused("folder-occupied", path, "--output"):
        case.make()
    assert path.read_bytes() == foreign


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", "{}"),
        ("settings", "[" * 100_000),
        ("settings", '{"max_seq_length": "many"'),
        ("counts", "[]"),
        ("fingerprint", None),
        ("schema_version", "one"),
        ("strange", "x"),
    ],
)
def test_damaged_metadata_are_refused_with_the_command_that_makes_features(
    case: Case, name: str, value: str | None
) -> None:
    path = case.file()

    def change(metadata: dict[str, str], columns: dict[str, Any]) -> None:
        metadata.pop(name, None)
        metadata.update({} if value is None else {name: value})

    case.rewrite(path, change)
    with refused("file-damaged", path, f"`bertbench data {case.form.task}"):
        case.form.read(path)


def other_type(column: Any) -> Any:
    return column.astype(np.uint8 if column.dtype == np.bool_ else np.bool_)


def test_columns_that_do_not_fit_are_refused_by_name(case: Case) -> None:
    path = case.file()
    content = path.read_bytes()

    def damaged(change: Callable[[dict[str, Any]], None], *facts: object) -> None:
        path.unlink()
        path.write_bytes(content)
        case.rewrite(path, lambda metadata, columns: change(columns))
        with refused("file-damaged", path, *facts):
            case.form.read(path)

    for name, column in case.form.columns.items():
        for one in column.stored(name):
            damaged(lambda columns, one=one: columns.pop(one), one)  # type: ignore[misc]
            damaged(lambda columns, one=one: columns.update({one: other_type(columns[one])}), one)  # type: ignore[misc]
        if column.kind == "ragged":
            damaged(lambda columns, n=name: columns.update({f"{n}.offsets": columns[f"{n}.offsets"] + 1}), name)  # type: ignore[misc]
        elif column.kind == "ends":
            damaged(lambda columns, n=name: columns.update({n: columns[n][::-1].copy()}), name)  # type: ignore[misc]
        else:
            damaged(lambda columns, n=name: columns.update({n: columns[n][:-1]}))  # type: ignore[misc]
        if column.kind == "values" and column.of:
            damaged(lambda columns, n=name: columns.update({n: columns[n] + 10_000}), name)  # type: ignore[misc]


def test_the_vocabulary_is_found_where_it_lay_beside_the_features_or_where_it_is_given(
    case: Case, tmp_path: Path
) -> None:
    form, first, second = case.form, case.vocab.rename(tmp_path / "first.txt"), tmp_path / "second.txt"
    second.write_text(first.read_text() + "zzz\n")
    files = [case.file(vocab=vocab) for vocab in (first, second)]
    kept = {first: first.read_text(), second: second.read_text()}
    settings = [form.read(path).settings for path in files]
    for path, own, vocab in zip(files, settings, kept, strict=True):
        assert form.vocabulary_of(path, own).fingerprint == own.vocabulary
        assert form.vocabulary_of(path, own, vocab).fingerprint == own.vocabulary
    with refused("vocabulary-mismatch", files[0], second):
        form.vocabulary_of(files[0], settings[0], second)
    for path, own, (vocab, text) in zip(files, settings, kept.items(), strict=True):
        vocab.unlink()
        if not form.keeps_vocabulary:
            with refused("vocabulary-mismatch", path, vocab):
                form.vocabulary_of(path, own)
            continue
        assert form.vocabulary_of(path, own).fingerprint == own.vocabulary
        data = DataIdentity(source=str(path), fingerprint="x", vocabulary=own.vocabulary)
        assert vocabulary_text(data) == text, "what a checkpoint carries"


def test_a_source_that_has_changed_since_is_noticed_where_its_hash_was_kept(case: Case) -> None:
    path, content = case.file(), case.source.read_bytes()
    keeps_hash = "input_fingerprint" in json.loads(path.with_suffix(".json").read_bytes())
    assert keeps_hash == (case.form.task == "squad")
    assert case.form.made_of(path) == case.source
    case.source.write_bytes(content)  # touched, and the same
    assert len(case.form.open(path))
    case.source.write_bytes(content.replace(b"e", b"o"))
    if keeps_hash:
        with refused("data-mismatch", path, case.source, "`bertbench data"):
            case.form.open(path)
    case.source.unlink()
    assert len(case.form.open(path)) and case.form.made_of(path) is None, "the features stand on their own"


def test_finished_features_are_kept_in_a_folder_that_cannot_be_written(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    opened = os.open

    def unwritable(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            failing()
        return opened(path, flags, *rest, **named)

    first = case.make()
    monkeypatch.setattr("secrets.token_hex", failing)
    monkeypatch.setattr("common.locks.os.open", unwritable)
    monkeypatch.setattr("os.access", lambda *_: False)
    again = case.make()
    assert again.kept and again.features == first.features
    with refused("write-failed", case.output):
        case.make(max_seq_length=100)


def test_what_a_killed_call_left_is_removed_by_the_next_one_and_nothing_else(case: Case) -> None:
    case.make()
    before = {path.name for path in case.output.iterdir()}
    (case.output / ".vocab.txt.s9q1z4n_.tmp").write_bytes(b"x")
    (case.output / ".mine.tmp").write_bytes(b"x")
    parts = case.output / f".{case.form.task}-{case.split}.x{PARTS}"
    parts.mkdir()
    (parts / "0.safetensors").write_bytes(b"x")
    assert case.make().kept
    assert {path.name for path in case.output.iterdir()} == before | {".mine.tmp"}


def test_what_cannot_be_prepared_leaves_no_folder(case: Case) -> None:
    case.source.write_bytes(b"nothing\n")
    with pytest.raises(BertbenchError):
        case.make()
    assert not case.output.exists()
    case.vocab.unlink()
    with pytest.raises(BertbenchError):
        case.make()
    assert not case.output.exists()


def test_every_option_that_changes_the_content_changes_the_name(case: Case, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"lower_case": False}, {"max_seq_length": 100}, {"split": case.other_split}]
    if case.form.task == "squad":
        changes += [{"doc_stride": 64}, {"max_query_length": 32}, {"drop_unanswerable_windows": True}]
    names = {case.file(**change).name for change in changes}
    other = tmp_path / "other.txt"
    other.write_text(case.vocab.read_text() + "zzz\n")
    names.add(case.file(vocab=other).name)
    case.source.write_bytes(
        case.source.read_bytes().replace(b"was", b"xas").replace(b"One", b"Two").replace(b"what", b"when")
    )
    names.add(case.file().name)
    assert len(names) == len(changes) + 2
    assert all(name.startswith(f"{case.form.task}-") for name in names)


def test_other_programs_read_the_file_and_ours_maps_it(case: Case) -> None:
    from safetensors.numpy import load_file

    path = case.file()
    ours, theirs = map_columns(path)[1], load_file(path)
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        assert column.tolist() == theirs[name].tolist() and not column.flags.writeable
    notes = json.loads(path.with_suffix(".json").read_text())
    assert notes["features"] == path.name and notes["vocab"] == str(case.vocab)


def test_features_of_another_task_are_something_else(tmp_path: Path) -> None:
    cases = []
    for make in (squad, gap, glue):
        folder = tmp_path / make.__name__
        folder.mkdir()
        cases.append(make(folder))
    for case in cases:
        path = case.file()
        for other in cases:
            if other is not case:
                with refused("file-format", path, f"`bertbench data {other.form.task}"):
                    other.form.read(path)


def test_a_group_is_asked_for_where_there_are_several(tmp_path: Path) -> None:
    case = glue(tmp_path)
    glue_folders.make_glue(tmp_path / "glue", ["mnli", "wnli"])
    case.make()
    form, folder = case.form, case.output
    assert form.open(folder, "dev_matched", "dev_mismatched", group="mnli").settings.split == "dev_matched"
    assert form.open(folder, "dev_mismatched", group="mnli").settings.split == "dev_mismatched"
    dev = form.find(folder, "dev", group="wnli")
    with refused("data-ambiguous", "--task"):
        form.open(folder, "train")
    with refused("data-missing", "rte", "train", "RTE/dev.tsv", "`bertbench data glue --task rte"):
        form.open(folder, "dev", group="rte")
    with refused("data-unprepared", "cola", "train", "`bertbench data glue --task cola"):
        form.open(folder, "train", group="cola")
    with refused("data-mismatch", dev, "wnli", "mnli"):
        form.open(dev, "dev", group="mnli")
