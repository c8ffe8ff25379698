"""`bertbench data glue`: tables to files of features, and to text. Imports no torch."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bert.data.features import Columns, Summary, make_features, vocabulary_notes, vocabulary_settings
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import Settings, make_columns
from bert.tasks.glue.hub import read_hub
from bert.tasks.glue.tables import (
    GlueRow,
    GlueTable,
    find_table,
    missing_tables,
    read_table,
)
from bert.tasks.glue.tasks import TRAIN, GlueSpec, task_of
from common.atomic import write_text
from common.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueSummary(Summary):
    """Result for one table."""

    task: str
    split: str
    text: Path | None
    """The file of text; None if none was asked for, and of tables that are not trained on."""


def prepare(config: GlueConfig, progress: Progress) -> list[GlueSummary]:
    """Make the features, the text, or both, of each table; finished features are kept.

    Args:
        config: what to make.
        progress: called with the number of finished tables.

    Raises:
        InputError: a table or the vocabulary is not as it must be, or there is none.
        MissingToolError: `datasets` is not installed.
        StorageError: the output cannot be written.
    """
    vocabulary = None if config.vocab is None else load_vocabulary(config.vocab, config.lower_case)
    done: list[GlueSummary] = []
    tables = _found(config)
    for number, spec in enumerate(tables):
        progress("tasks of GLUE", number, len(tables))
        for split, table, seconds in _tables(config, spec):
            done.append(_prepare(config, spec, split, table, vocabulary, seconds))
        progress("tasks of GLUE", number + 1, len(tables))
    if config.input is not None:
        notes = [note for spec in tables for note in missing_tables(config.input, spec)]
        done[0] = replace(done[0], notes=(*notes, *done[0].notes))
    return done


def _found(config: GlueConfig) -> list[GlueSpec]:
    specs = [task_of(name) for name in config.wanted]
    if config.input is None:
        return specs
    folder = config.input
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing",
            f"{folder} {what}: give the folder of GLUE's archive or of one of its tasks",
        )
    found = [spec for spec in specs if any(find_table(folder, spec, split) for split in spec.splits)]
    missing = [spec for spec in specs if spec not in found]
    if missing and (config.tasks or not found):
        needed = ", ".join(f"{spec.folder}/{spec.splits[0]}.tsv" for spec in missing)
        raise InputError(
            "data-missing",
            f"{folder} holds no table of {', '.join(spec.name for spec in missing)}: give a folder with {needed}",
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
    counts, features, kept = table.counts, None, False
    if vocabulary is not None:
        assert config.vocab is not None
        settings = Settings(
            task=spec.name, split=split, **vocabulary_settings(vocabulary), max_seq_length=config.max_seq_length
        )
        make = partial(_make, table, settings, vocabulary)
        features, counts, kept = make_features(
            config.output, settings, Path(table.source), table.fingerprint, config.vocab, make
        )
    text = None
    if config.text is not None and split == TRAIN:
        text = config.text / f"{spec.name}.txt"
        write_text(text, _text(table.rows))
    return GlueSummary(
        input=table.source,
        features=features,
        kept=kept,
        counts=counts,
        seconds=seconds + time.monotonic() - began,
        notes=(*_notes(counts, table.source), *(vocabulary_notes(vocabulary) if vocabulary else ())),
        task=spec.name,
        split=split,
        text=text,
    )


def _make(table: GlueTable, settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    counts = Counts()
    counts.merge(table.counts.to_json())
    return make_columns(table, settings, vocabulary, counts), counts


def _text(rows: Iterable[GlueRow]) -> str:
    """One paragraph for each example: its sentences."""
    return "".join(f"{' '.join(filter(None, (row.first, row.second)))}\n\n" for row in rows)


def _notes(counts: Counts, source: Path) -> list[str]:
    said = []
    for name, count in counts.numbers.items():
        if (name.startswith("left out") or name == "empty sentences") and count:
            what = f"{count:,} row(s) {name}" if name.startswith("left out") else f"{count:,} row(s) with an empty text"
            said.append(f"{source}: {what}: {'; '.join(counts.names.get(name, [])[:3])}")
    return said
