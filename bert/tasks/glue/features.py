"""Features of GLUE's tables, a file for each split: [CLS] sentence [SEP] or [CLS] first [SEP] second [SEP].

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.features import (
    Columns,
    FeatureSettings,
    Summary,
    features_in,
    find_features,
    prepare_features,
    read_features,
    vocabulary_settings,
)
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.rows import Int64, TokenRows, offsets_of
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.glue.tables import TASKS, TRAIN, GlueRow, GlueSpec, GlueTable, find_table, read_hub, read_table, task_of
from common.errors import InputError, UsageError

_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]; one of them is not needed where there is one sentence."""
CUT = "rows cut to the sequence length"
_BATCH = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueConfig:
    """GLUE's tables in, features out, a file for each split; a call with the same options keeps what is finished."""

    tasks: tuple[str, ...] = ()
    """Tasks of GLUE: cola sst2 mrpc qqp stsb mnli qnli rte wnli; default all whose tables exist, with --dataset all."""
    input: Path | None = None
    """Folder of the GLUE archive (CoLA, SST-2, ...), or of one task (train.tsv, dev.tsv, test.tsv)."""
    dataset: str | None = None
    """Instead of --input: data set for datasets.load_dataset, nyu-mll/glue or a local folder in that format."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path = Path("runs/glue-data")
    """Folder for the features."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = 128
    """Maximum tokens of a row: [CLS] first [SEP] second [SEP]; longer rows are truncated."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        for name in self.tasks:
            task_of(name)
        if (self.input is None) == (self.dataset is None):
            raise UsageError(
                "option-missing" if self.input is None else "option-conflict",
                "give either --input FOLDER with GLUE's tables, or --dataset nyu-mll/glue",
            )
        if self.max_seq_length < _SPECIAL_TOKENS + 2:
            raise UsageError(
                "option-value", f"--max-seq-length {self.max_seq_length}: give {_SPECIAL_TOKENS + 2} or more"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GLUE features."""

    task: str
    """A name in bert.tasks.glue.tables.TASKS."""

    @property
    def kind(self) -> str:
        """Task and split."""
        return f"glue-{self.task}-{self.split}"

    @property
    def spec(self) -> GlueSpec:
        """The task."""
        return TASKS[self.task]


@dataclass(frozen=True, slots=True)
class GlueFeatures:
    """The rows of one table."""

    path: Path
    settings: Settings
    rows: TokenRows
    index: Int64
    """Number of each row in its table [N]."""


def prepare(config: GlueConfig, progress: Progress) -> list[Summary]:
    """Make the features of each table; finished ones are kept.

    Raises InputError (a table or the vocabulary is not as it must be), MissingToolError (`datasets`), StorageError.
    """
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    about = {**vocabulary_settings(vocabulary), "max_seq_length": config.max_seq_length}
    done: list[Summary] = []
    specs = _with_tables(config)
    for number, spec in enumerate(specs):
        progress("tasks of GLUE", number, len(specs))
        if config.input is None:
            tables = read_hub(str(config.dataset), spec)
        else:
            paths = {split: find_table(config.input, spec, split) for split in spec.splits}
            tables = {split: read_table(path, spec, split) for split, path in paths.items() if path}
        for split, table in tables.items():
            settings = Settings(task=spec.name, split=split, **about)
            make = partial(make_columns, table, settings, vocabulary)
            place, source = config.output, table.source
            done.append(prepare_features(place, settings, source, table.fingerprint, config.vocab, vocabulary, make))
    progress("tasks of GLUE", len(specs), len(specs))
    return done


def _with_tables(config: GlueConfig) -> list[GlueSpec]:
    """Return the tasks that are wanted, of a folder those that it has tables of. Raises InputError: it lacks one."""
    specs, folder = [TASKS[name] for name in config.tasks or TASKS], config.input
    if folder is None:
        return specs
    present = [spec for spec in specs if any(find_table(folder, spec, split) for split in spec.splits)]
    missing = [spec for spec in specs if spec not in present]
    if missing and (config.tasks or not present):
        needed = ", ".join(f"{spec.folder}/{spec.splits[0]}.tsv" for spec in missing)
        raise InputError("data-missing", f"{folder} does not hold {needed}: give a folder with GLUE's tables")
    return present


def make_columns(table: GlueTable, settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    """Return the columns of the feature file of a table, and the table's counts with tokens and rows that were cut.

    Where two sentences are too long together, the longer loses its last piece until they fit, the second one on a tie
    (google-research/bert, run_classifier.py).
    """
    counts = Counts()
    counts.merge(table.counts.to_json())
    kind = np.dtype(np.uint16 if len(vocabulary.pieces) <= 2**16 else np.int32)
    pairs = len(settings.spec.texts) > 1
    ids: list[npt.NDArray[Any]] = []
    lengths: list[int] = []
    second: list[int] = []
    for begin in range(0, len(table.rows), _BATCH):
        flat: list[int] = []
        for first_ids, second_ids in _encoded(table.rows[begin : begin + _BATCH], vocabulary):
            kept = fitted(len(first_ids), len(second_ids), settings.max_seq_length - 2 - pairs)
            counts.add(CUT, kept != (len(first_ids), len(second_ids)))
            row = [vocabulary.cls_id, *first_ids[: kept[0]], vocabulary.sep_id]
            second.append(len(row))
            row += [*second_ids[: kept[1]], vocabulary.sep_id] if pairs else []
            lengths.append(len(row))
            flat += row
        ids.append(np.array(flat, dtype=kind))
    counts.add("tokens", sum(lengths))
    labels = [row.label for row in table.rows if row.label is not None]
    columns = {
        "ids.values": np.concatenate(ids),
        "ids.offsets": offsets_of(lengths),
        "second": np.array(second, dtype=np.int64),
        "labels": np.array(labels, dtype=np.float32 if settings.spec.is_regression else np.int64),
        "index": np.array([row.index for row in table.rows], dtype=np.int64),
    }
    return columns, counts


def _encoded(rows: Sequence[GlueRow], vocabulary: Vocabulary) -> Iterator[tuple[list[int], list[int]]]:
    first = vocabulary.encode([row.first for row in rows])
    second = vocabulary.encode([row.second for row in rows if row.second is not None])
    return zip(first, second or ([] for _ in first), strict=True)


def fitted(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the pieces that are kept of two sentences of so many pieces."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def open_features(path: Path, *splits: str, task: str | None = None) -> GlueFeatures:
    """Return the features of a file, or of a folder that holds exactly one file of the first split that it has any of.

    Without `splits` or `task` any will do.
    """
    file = read_features(path, *(f"glue-{task or '*'}-{split}" for split in splits or ("*",)))
    settings = Settings(**file.header.settings)
    rows = TokenRows(
        ids=file.ragged("ids"),
        second=file.columns["second"],
        labels=file.columns["labels"],
        fingerprint=file.header.fingerprint,
        vocab_size=settings.vocab_size,
        vocabulary=settings.vocabulary,
        pad_id=settings.pad_id,
        max_seq_length=settings.max_seq_length,
    )
    return GlueFeatures(file.path, settings, rows, file.columns["index"])


def to_predict(path: Path, task: str | None) -> list[Path]:
    """Return a file, or those of a folder's tables that are not trained on, in the order of the task's splits.

    Raises InputError: there are none, or those of several tasks where `task` is None.
    """
    if not path.is_dir():
        return [path]
    tasks = {file.name.split("-")[1] for file in features_in(path, "glue")} if task is None else {task}
    if len(tasks) > 1:
        raise InputError("data-ambiguous", f"{path} holds features of {', '.join(sorted(tasks))}: give those of one")
    kinds = [f"glue-{name}-{split}" for name in tasks for split in TASKS[name].splits if split != TRAIN]
    files = [find_features(path, kind) for kind in kinds if features_in(path, kind)]
    if not files:
        what = task or "any task"
        raise InputError("data-unprepared", f"{path} holds no GLUE features of {what}: make them with `data glue`")
    return files
