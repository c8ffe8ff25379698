"""`bertbench data glue`: tables to files of features, and to text. Imports no torch."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert.data.feature_files import SUFFIX, lock_for_features, new_folder
from bert.data.pool import Progress
from bert.data.stages import Counts
from bert.data.vocabulary import Vocabulary, casing_note, load_vocabulary
from bert.tasks.glue.archive import find_table, missing_tables, unused_folders, what_is_there
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import Settings, make_columns
from bert.tasks.glue.hub import read_hub
from bert.tasks.glue.store import FORM, file_name, write_features, write_notes
from bert.tasks.glue.tables import GlueRow, GlueTable, read_table
from bert.tasks.glue.tasks import TRAIN, GlueSpec, task_of
from common.atomic import write_text
from common.errors import InputError


@dataclass(frozen=True, slots=True)
class GlueSummary:
    """What became of one table."""

    task: str
    split: str
    source: Path
    features: Path | None
    """The file of features; None where none was asked for."""
    text: Path | None
    """The file of text; None where none was asked for, and of tables that are not trained on."""
    kept: bool
    counts: Counts
    seconds: float
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = {
            name: None if getattr(self, name) is None else str(getattr(self, name))
            for name in ("task", "split", "source", "features", "text")
        }
        counts = {"counts": self.counts.numbers, "examples": self.counts.names}
        return {**plain, "kept": self.kept, **counts, "seconds": self.seconds, "notes": list(self.notes)}


def prepare(config: GlueConfig, progress: Progress) -> list[GlueSummary]:
    """Make the features, the text, or both, of each table; finished features are kept.

    Args:
        config: what to make.
        progress: told about tables.

    Raises:
        InputError: a table or the vocabulary is not as it has to be, or there is none.
        MissingToolError: `datasets` is not installed.
        StorageError: the output cannot be written.
    """
    vocabulary = None if config.vocab is None else load_vocabulary(config.vocab, config.lower_case)
    done: list[GlueSummary] = []
    with new_folder(config.output):
        tables = _found(config)
        for number, spec in enumerate(tables):
            progress("tasks of GLUE", number, len(tables))
            for split, table, seconds in _tables(config, spec):
                done.append(_prepare(config, spec, split, table, vocabulary, seconds))
            progress("tasks of GLUE", number + 1, len(tables))
    if config.input is not None:
        notes = [note for spec in tables for note in missing_tables(config.input, spec)]
        notes += [f"not used: {found}" for found in unused_folders(config.input, tables)]
        done[0] = replace(done[0], notes=(*notes, *done[0].notes))
    return done


def _found(config: GlueConfig) -> list[GlueSpec]:
    """The tasks there are tables of."""
    specs = [task_of(name) for name in config.wanted]
    if config.input is None:
        return specs
    folder = config.input
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing",
            f"{folder} {what}: give the folder of GLUE's archive, or that of one of its tasks",
        )
    found = [spec for spec in specs if any(find_table(folder, spec, split) for split in spec.splits)]
    missing = [spec for spec in specs if spec not in found]
    if missing and (config.tasks or not found):
        looked = ", ".join(f"{spec.folder}/{spec.splits[0]}.tsv" for spec in missing)
        there = what_is_there(folder)
        raise InputError(
            "data-missing",
            f"{folder} holds no table of {', '.join(spec.name for spec in missing)}: {looked} and its neighbours are "
            f"looked for{there and '; '}{there}",
        )
    return found


def _tables(config: GlueConfig, spec: GlueSpec) -> Iterator[tuple[str, GlueTable, float]]:
    began = time.monotonic()
    if config.dataset is not None:
        found = read_hub(config.dataset, spec)
        share = (time.monotonic() - began) / len(found)
        yield from ((split, table, share) for split, table in found.items())
        return
    assert config.input is not None
    for split in spec.splits:
        path = find_table(config.input, spec, split)
        if path is not None:
            began = time.monotonic()
            table = read_table(path, spec, split)
            yield split, table, time.monotonic() - began


def _prepare(
    config: GlueConfig, spec: GlueSpec, split: str, table: GlueTable, vocabulary: Vocabulary | None, seconds: float
) -> GlueSummary:
    began = time.monotonic()
    notes: list[str] = []
    counts, features, kept = table.counts, None, False
    if vocabulary is not None:
        settings = Settings(
            task=spec.name,
            split=split,
            lower_case=config.lower_case,
            vocabulary=vocabulary.fingerprint,
            vocab_size=len(vocabulary.pieces),
            max_seq_length=config.max_seq_length,
        )
        features = config.output / file_name(settings, table.fingerprint)
        fingerprint = FORM.fingerprint(settings, table.fingerprint)
        with lock_for_features(config.output, lambda: FORM.finished(features, fingerprint, []) is not None):
            counts, kept = _features(config, features, settings, table, vocabulary, notes)
    text = None
    if config.text is not None and split == TRAIN:
        text = config.text / f"{spec.name}.txt"
        write_text(text, _text(table.rows))
    notes = [*_notes(counts, table.source), *notes, *_casing(vocabulary)]
    return GlueSummary(
        spec.name, split, table.source, features, text, kept, counts, seconds + time.monotonic() - began, tuple(notes)
    )


def _features(
    config: GlueConfig, path: Path, settings: Settings, table: GlueTable, vocabulary: Vocabulary, notes: list[str]
) -> tuple[Counts, bool]:
    """Make a file unless it is finished; return what was met, and whether it was."""
    assert config.vocab is not None
    fingerprint = FORM.fingerprint(settings, table.fingerprint)
    known = FORM.finished(path, fingerprint, notes)
    counts = known or Counts(dict(table.counts.numbers), {name: [*some] for name, some in table.counts.names.items()})
    if known is None:
        columns = make_columns(table, settings, vocabulary, counts)
        write_features(path, columns, settings, fingerprint, vocabulary.pad_id, counts)
    write_notes(path, table.source, config.vocab, settings, counts)
    others = sorted(
        other.name for other in path.parent.glob(f"glue-{settings.task}-{settings.split}-*{SUFFIX}") if other != path
    )
    if others:
        notes.append(f"{path.parent} holds other features of this split, too ({others[0]}): name the file to use")
    return counts, known is not None


def _text(rows: Iterable[GlueRow]) -> str:
    """One paragraph for each example: its sentences."""
    return "".join(f"{' '.join(filter(None, (row.first, row.second)))}\n\n" for row in rows)


def _notes(counts: Counts, source: Path) -> list[str]:
    """Return what is odd about a table."""
    said = []
    for name, count in counts.numbers.items():
        if (name.startswith("left out") or name == "empty sentences") and count:
            what = f"{count:,} row(s) {name}" if name.startswith("left out") else f"{count:,} row(s) with an empty text"
            said.append(f"{source}: {what}: {'; '.join(counts.names.get(name, ())[:3])}")
    return said


def _casing(vocabulary: Vocabulary | None) -> list[str]:
    found = None if vocabulary is None else casing_note(vocabulary)
    return [] if found is None else [found]
