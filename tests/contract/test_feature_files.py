"""What the feature files of every task must survive: each state of a file or folder has its code, and is resumed."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from support import datasets
from support.refusals import refused

from bert.data.features import (
    Summary,
    features_in,
    find_features,
    made_of,
    read_features,
    vocabulary_of,
)
from bert.tasks.base import DataIdentity
from bert.train.checkpoint import vocabulary_text
from common.errors import SchemaError


@dataclass
class Case:
    """One task with a small source of its own."""

    task: str
    vocab: Path
    source: Path
    """What is trained on."""
    prepare: Callable[..., list[Summary]]
    """Takes options; the first summary is that of `source`."""
    output: Path
    kind: str
    other_split: str = "evaluation"

    def make(self, **options: Any) -> Summary:
        return self.prepare(**{"output": self.output, "vocab": self.vocab, **options})[0]

    def file(self, **options: Any) -> Path:
        path = self.make(**options).features
        assert path is not None
        return path


def squad(folder: Path) -> Case:
    from bert.tasks.squad.prepare import SquadConfig, prepare

    rows = [datasets.question(f"q{number}", "what is it?", ("c d", 4)) for number in range(3)]
    source = datasets.write_squad(folder / "train.json", datasets.paragraph("a b c d e f", *rows))
    vocab = datasets.write_vocabulary(folder)

    def make(**options: Any) -> list[Any]:
        return list(prepare(SquadConfig(**{"input": (source,), "workers": 1, **options}), datasets.silent))

    return Case("squad", vocab, source, make, folder / "out", "squad-training")


def gap(folder: Path) -> Case:
    from bert.tasks.gap.features import GapConfig, prepare

    source = datasets.write_gap(folder / "gap-development.tsv", datasets.learnable_gap(12))
    vocab = datasets.gap_vocabulary(folder)

    def make(**options: Any) -> list[Any]:
        return list(prepare(GapConfig(**{"input": (source,), **options}), datasets.silent))

    return Case("gap", vocab, source, make, folder / "out", "gap-training", other_split="validation")


def glue(folder: Path) -> Case:
    from bert.tasks.glue.features import GlueConfig, prepare

    tables = datasets.make_glue(folder / "glue", ["rte"])
    for split in ("dev", "test"):
        (tables / "RTE" / f"{split}.tsv").unlink()
    vocab = datasets.glue_vocabulary(folder)

    def make(split: str | None = None, **options: Any) -> list[Any]:
        if split is not None:
            (tables / "RTE/dev.tsv").write_bytes((tables / "RTE/train.tsv").read_bytes())
            return list(reversed(prepare(GlueConfig(input=tables, **options), datasets.silent)))
        return list(prepare(GlueConfig(input=tables, **options), datasets.silent))

    return Case("glue", vocab, tables / "RTE/train.tsv", make, folder / "out", "glue-*-train", "dev")


@pytest.fixture(params=[squad, gap, glue], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Every task in turn."""
    made: Case = request.param(tmp_path)
    return made


def test_a_folder_is_opened_where_it_holds_exactly_one_file_of_the_kind(case: Case) -> None:
    command = f"`bertbench data {case.task} --input"
    for _ in range(2):
        with refused("data-unprepared", case.output, command):
            read_features(case.output, case.kind)
        case.output.mkdir(exist_ok=True)
    made = case.file()
    (case.output / f".{made.name}").write_bytes(b"hidden")
    assert find_features(case.output, "squad-none", case.kind) == find_features(made, case.kind) == made
    assert read_features(case.output, case.kind).path == made
    shutil.copy(made, made.with_name(made.name.replace("-uncased", "-uncased-copy")))
    with refused("data-ambiguous", "2 files", made.name):
        read_features(case.output, case.kind)


def test_the_source_is_known_while_it_is_there(case: Case) -> None:
    path = case.file()
    assert made_of(path, case.task) == case.source == made_of(case.output, case.kind)
    case.source.unlink()
    assert made_of(path, case.task) is None


def test_a_file_of_another_kind_is_refused_and_a_source_is_no_feature_file(case: Case) -> None:
    made = case.file()
    with refused("data-mismatch", made, f"`bertbench data {case.task} --input"):
        read_features(made, f"{case.task}-other")
    for other in {"squad", "gap", "glue"} - {case.task}:
        with refused("data-mismatch", made):
            read_features(made, other)
    with refused("file-damaged", case.source):
        read_features(case.source, case.kind)
    save_file(load_file(made), case.output / "weights.safetensors")
    with refused("file-format", "weights.safetensors"):
        read_features(case.output / "weights.safetensors", case.kind)


def test_every_cut_is_refused(case: Case) -> None:
    path = case.file()
    content = path.read_bytes()
    for size in [0, 4, 9, 100, *range(200, len(content), 197), len(content) - 1]:
        path.write_bytes(content[:size])
        with refused("file-damaged", path, f"`bertbench data {case.task} --input"):
            read_features(path, case.kind)


def test_what_was_finished_is_kept_with_its_counts_and_a_lost_vocabulary_is_asked_for(case: Case) -> None:
    first = case.make()
    path = first.features
    assert path is not None
    state = path.stat()
    again = case.make()
    assert again.kept and not first.kept and path.stat().st_mtime_ns == state.st_mtime_ns
    assert again.counts == first.counts == read_features(path).counts
    settings = import_module(f"bert.tasks.{case.task}.features").Settings(**read_features(path).settings)
    assert vocabulary_of(path, settings).fingerprint == settings.vocabulary
    data = DataIdentity(source=str(path), fingerprint="x", vocabulary=settings.vocabulary)
    assert vocabulary_text(data) == case.vocab.read_text(), "what a checkpoint carries"
    (case.output / "vocab.txt").unlink()
    with refused("path-missing", case.output / "vocab.txt"):
        vocabulary_of(path, settings)
    assert vocabulary_of(path, settings, case.vocab).fingerprint == settings.vocabulary
    case.vocab.write_text(case.vocab.read_text() + "zzz\n")
    with refused("vocabulary-mismatch", case.vocab, "--vocab"):
        vocabulary_of(path, settings, case.vocab)


def test_features_of_another_vocabulary_are_refused_in_the_same_folder(case: Case, tmp_path: Path) -> None:
    case.make()
    other = tmp_path / "other.txt"
    other.write_text(case.vocab.read_text() + "zzz\n")
    with refused("folder-occupied", case.output / "vocab.txt", other, "--output"):
        case.make(vocab=other)


def test_what_another_version_made_is_refused(case: Case) -> None:
    path = case.file()
    save_file(load_file(path), path, {"bertbench features": '{"version": 9}'})
    with refused("record-version", path, "version 9", kind=SchemaError):
        read_features(path, case.kind)


def test_what_a_killed_call_left_is_removed_by_the_next_one_and_nothing_else(case: Case) -> None:
    case.make()
    before = {path.name for path in case.output.iterdir()}
    (case.output / ".vocab.txt.s9q1z4n_.tmp").write_bytes(b"x")
    (case.output / ".mine.tmp").write_bytes(b"x")
    made = case.file(max_seq_length=100)
    added = {path.name for path in case.output.iterdir()} - before
    assert {name for name in added if not name.endswith(".tsv")} == {made.name, ".mine.tmp"}


def test_every_option_that_changes_the_content_changes_the_name(case: Case) -> None:
    changes: list[dict[str, Any]] = [{}, {"lower_case": False}, {"max_seq_length": 100}, {"split": case.other_split}]
    if case.task == "squad":
        changes += [{"doc_stride": 64}, {"max_query_length": 32}, {"drop_unanswerable_windows": True}]
    names = {case.file(**change).name for change in changes}
    case.source.write_bytes(
        case.source.read_bytes().replace(b"was", b"xas").replace(b"One", b"Two").replace(b"what", b"when")
    )
    names.add(case.file().name)
    assert len(names) == len(changes) + 1
    assert all(name.startswith(f"{case.task}-") for name in names)
    assert len(features_in(case.output, case.task)) >= len(names)
