"""`bertbench data glue`: tables to files of features, and to text. Imports no torch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert.data.features import Columns, Summary, make_features, vocabulary_notes, vocabulary_settings
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import Settings, make_columns
from bert.tasks.glue.tables import GlueTable, find_table, read_hub, read_table
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

    Raises:
        InputError: a table or the vocabulary is not as it must be, or there is none.
        MissingToolError: `datasets` is not installed.
        StorageError: the output cannot be written.
    """
    vocabulary = None if config.vocab is None else load_vocabulary(config.vocab, config.lower_case)
    done: list[GlueSummary] = []
    specs = _with_tables(config)
    for number, spec in enumerate(specs):
        progress("tasks of GLUE", number, len(specs))
        done += [_prepare(config, spec, split, table, vocabulary) for split, table in _tables(config, spec)]
        progress("tasks of GLUE", number + 1, len(specs))
    return done


def _with_tables(config: GlueConfig) -> list[GlueSpec]:
    """Return the tasks that are wanted, of a folder those that it has tables of. Raises InputError: it lacks one."""
    specs, folder = [task_of(name) for name in config.wanted], config.input
    if folder is None:
        return specs
    found = [spec for spec in specs if any(find_table(folder, spec, split) for split in spec.splits)]
    missing = [spec for spec in specs if spec not in found]
    if missing and (config.tasks or not found):
        needed = ", ".join(f"{spec.folder}/{spec.splits[0]}.tsv" for spec in missing)
        raise InputError("data-missing", f"{folder} does not hold {needed}: give a folder with GLUE's tables")
    return found


def _tables(config: GlueConfig, spec: GlueSpec) -> Iterator[tuple[str, GlueTable]]:
    if config.dataset is not None:
        yield from read_hub(config.dataset, spec).items()
        return
    assert config.input is not None
    for split in spec.splits:
        if path := find_table(config.input, spec, split):
            yield split, read_table(path, spec, split)


def _prepare(
    config: GlueConfig, spec: GlueSpec, split: str, table: GlueTable, vocabulary: Vocabulary | None
) -> GlueSummary:
    began, text = time.monotonic(), None
    counts, features, kept = table.counts, None, False
    if vocabulary is not None and config.vocab is not None:
        settings = Settings(
            task=spec.name, split=split, **vocabulary_settings(vocabulary), max_seq_length=config.max_seq_length
        )

        def make() -> tuple[Columns, Counts]:
            counts = Counts()
            counts.merge(table.counts.to_json())
            return make_columns(table, settings, vocabulary, counts), counts

        features, counts, kept = make_features(
            config.output, settings, table.source, table.fingerprint, config.vocab, make
        )
    if config.text is not None and split == TRAIN:
        text = config.text / f"{spec.name}.txt"
        # One paragraph for each example: its sentences.
        write_text(text, "".join(f"{' '.join(filter(None, (row.first, row.second)))}\n\n" for row in table.rows))
    notes = [
        f"{table.source}: {counts.get(name):,} row(s) {name}: {', '.join(counts.names[name])}" for name in counts.names
    ]
    return GlueSummary(
        input=table.source,
        features=features,
        kept=kept,
        counts=counts,
        seconds=time.monotonic() - began,
        notes=(*notes, *(vocabulary_notes(vocabulary, counts) if vocabulary else ())),
        task=spec.name,
        split=split,
        text=text,
    )
