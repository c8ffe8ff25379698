"""The feature file of a GLUE table: [CLS] sentence [SEP] or [CLS] first [SEP] second [SEP]. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.features import SUFFIX, Columns, FeatureSettings, features_in, find_features, read_features
from bert.data.finished import Counts
from bert.data.rows import Int64, TokenRows, offsets_of
from bert.data.vocabulary import Vocabulary
from bert.tasks.glue.tables import GlueRow, GlueTable
from bert.tasks.glue.tasks import TASKS, TRAIN, GlueSpec
from common.errors import InputError

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]; one of them is not needed where there is one sentence."""
CUT = "rows cut to the sequence length"
_BATCH = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GLUE features."""

    task: str
    """A name in bert.tasks.glue.tasks.TASKS."""

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
    """Word pieces and labels."""
    index: Int64
    """Number of each row in its table [N]."""


def make_columns(table: GlueTable, settings: Settings, vocabulary: Vocabulary, counts: Counts) -> Columns:
    """Return the columns of the feature file of a table.

    Where two sentences are too long together, the longer loses its last piece until they fit, the second one on a tie
    (google-research/bert, run_classifier.py). `counts` takes the tokens, and the rows that were cut.
    """
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
    return {
        "ids.values": np.concatenate(ids),
        "ids.offsets": offsets_of(lengths),
        "second": np.array(second, dtype=np.int64),
        "labels": np.array(labels, dtype=np.float32 if settings.spec.is_regression else np.int64),
        "index": np.array([row.index for row in table.rows], dtype=np.int64),
    }


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


def to_predict(folder: Path, task: str | None = None) -> list[Path]:
    """Return the files of a task in a folder that are not of its training table, in the order of its splits.

    Raises InputError: there are none, several of one split, or of several tasks and `task` is None.
    """
    tasks = [task] if task else sorted({path.name.split("-")[1] for path in folder.glob(f"glue-*{SUFFIX}")} & {*TASKS})
    if len(tasks) > 1:
        raise InputError("data-ambiguous", f"{folder} holds features of {', '.join(tasks)}: choose one with --task")
    kinds = [f"glue-{name}-{split}" for name in tasks for split in TASKS[name].splits if split != TRAIN]
    files = [find_features(folder, kind) for kind in kinds if features_in(folder, kind)]
    if not files:
        raise InputError(
            "data-unprepared",
            f"{folder} holds no GLUE features of {task or 'any task'} to predict: create them with "
            f"`bertbench data glue --tasks {task or 'TASK'}`",
        )
    return files


def training_splits(split: str, task: str | None = None) -> tuple[str, ...]:
    """Return the splits that serve for 'training' or 'evaluation', of a task or of any."""
    if split == "training":
        return (TRAIN,)
    return TASKS[task].evaluations if task is not None else ("dev", "dev_matched", "dev_mismatched")
