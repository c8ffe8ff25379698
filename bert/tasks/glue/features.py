"""The feature file of a GLUE table: [CLS] sentence [SEP] or [CLS] first [SEP] second [SEP]. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.columns import IDS, Column, Columns
from bert.data.features import SUFFIX, FeatureForm, FeatureSettings
from bert.data.finished import Counts
from bert.data.rows import Int64, Ragged, TokenRows
from bert.data.vocabulary import Vocabulary
from bert.tasks.glue.tables import GlueRow, GlueTable
from bert.tasks.glue.tasks import TASKS, TRAIN, GlueSpec, task_of
from common.errors import InputError

DEFAULT_MAX_SEQ_LENGTH = 128
"""As published (google-research/bert, the benchmark's own examples)."""
SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]; one of them is not needed where there is one sentence."""
CUT = "rows cut to the sequence length"
_BATCH = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GLUE features."""

    task: str
    """A name in bert.tasks.glue.tasks.TASKS."""
    max_seq_length: int = DEFAULT_MAX_SEQ_LENGTH

    @property
    def spec(self) -> GlueSpec:
        """The task."""
        return task_of(self.task)


@dataclass(frozen=True, slots=True)
class GlueFeatures:
    """The rows of one table."""

    settings: Settings
    rows: TokenRows
    """Word pieces and labels; its columns are read-only where they are mapped from a file."""
    index: Int64
    """Number of each row in its table [N]."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)


def make_parts(table: GlueTable, settings: Settings, vocabulary: Vocabulary, counts: Counts) -> Iterator[Columns]:
    """Yield the parts of the feature file of a table.

    Where two sentences are too long together, the longer loses its last piece until they fit, the second one on a tie
    (google-research/bert, run_classifier.py).

    Args:
        table: the rows.
        settings: what to make of them.
        vocabulary: the pieces.
        counts: takes the tokens, and the rows that were cut.
    """
    kind = np.dtype(np.uint16 if len(vocabulary.pieces) <= 2**16 else np.int32)
    pairs = len(settings.spec.texts) > 1
    rows = iter(table.rows)
    while part := list(islice(rows, _BATCH)):
        flat: list[int] = []
        lengths: list[int] = []
        second: list[int] = []
        for first_ids, second_ids in _encoded(part, vocabulary):
            kept = _fitted(len(first_ids), len(second_ids), settings.max_seq_length - 2 - pairs)
            counts.add(CUT, kept != (len(first_ids), len(second_ids)))
            flat += [vocabulary.cls_id, *first_ids[: kept[0]], vocabulary.sep_id]
            begins = kept[0] + 2
            if pairs:
                flat += [*second_ids[: kept[1]], vocabulary.sep_id]
            second.append(begins)
            lengths.append(begins + (kept[1] + 1 if pairs else 0))
        counts.add("tokens", sum(lengths))
        yield {
            "ids.values": np.array(flat, dtype=kind),
            "ids.rows": np.array(lengths, dtype=np.int64),
            "second": np.array(second, dtype=np.int64),
            "labels": _labels(part, settings.spec),
            "index": np.array([row.index for row in part], dtype=np.int64),
        }


def _encoded(rows: Sequence[GlueRow], vocabulary: Vocabulary) -> Iterator[tuple[list[int], list[int]]]:
    first = vocabulary.encode([row.first for row in rows])
    second = vocabulary.encode([row.second for row in rows if row.second is not None])
    return zip(first, second or ([] for _ in first), strict=True)


def _fitted(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def _labels(rows: Sequence[GlueRow], spec: GlueSpec) -> npt.NDArray[Any]:
    found = [row.label for row in rows if row.label is not None]
    return np.array(found, dtype=np.float32 if spec.is_regression else np.int64)


_COLUMNS = {
    "ids": Column("row", IDS, "ragged"),
    "second": Column("row", ("<i8",)),
    "labels": Column("row", ("<i8", "<f4"), optional=True),
    "index": Column("row", ("<i8",)),
}
_INPUTS = {"": "FOLDER"}


class GlueForm(FeatureForm[Settings, GlueFeatures]):
    """Feature files of GLUE, of nine tasks each."""

    task = "glue"
    title = "GLUE"
    settings = Settings
    columns = _COLUMNS
    inputs = _INPUTS
    source = "table"
    has_groups = True
    keeps_vocabulary = False

    def whole(self, settings: Settings, fingerprint: str, further: str, columns: Columns) -> GlueFeatures:
        """Make features of columns. Raises UsageError: no such task."""
        spec, labels = settings.spec, columns["labels"]
        if settings.split not in spec.splits:
            raise ValueError(f"its metadata is damaged: {settings.task} has no split {settings.split}")
        if (labels.dtype == np.float32) != spec.is_regression:
            raise ValueError("its labels do not match its rows")
        if len(labels) and not spec.is_regression and not 0 <= int(labels.min()) <= int(labels.max()) < spec.labels:
            raise ValueError("a label is not a class")
        rows = TokenRows(
            ids=Ragged(columns["ids.values"], columns["ids.offsets"]),
            second=columns["second"],
            labels=labels,
            fingerprint=fingerprint,
            vocab_size=settings.vocab_size,
            vocabulary=settings.vocabulary,
            pad_id=int(further),
            max_seq_length=settings.max_seq_length,
        )
        return GlueFeatures(settings, rows, columns["index"])

    def kind(self, settings: Settings) -> tuple[str, ...]:
        """Task and split."""
        return settings.task, settings.split

    def _absent(self, folder: Path, what: str, splits: Sequence[str], group: str | None) -> InputError:
        others = [split for split in TASKS[group].splits if self.files_in(folder, split, group)] if group else []
        if group is None or not others:
            return super()._absent(folder, what, splits, group)
        tables = " or ".join(f"{TASKS[group].folder}/{split}.tsv" for split in splits)
        return InputError(
            "data-missing",
            f"{folder} holds no {what}, only {', '.join(others)}: `bertbench data glue` found no table {tables}; "
            f"add it and create them with `{self.command(None, group, output=folder)}`",
        )

    def find_all(self, folder: Path, task: str | None = None) -> list[Path]:
        """Return the files of a task in a folder that are not of its training table, in the order of its splits.

        Args:
            folder: where to look.
            task: whose; None if there is only one.

        Raises:
            InputError: there are none, of several tasks, or several of one split.
        """
        tasks = sorted({path.name.split("-")[1] for path in folder.glob(f"glue-*{SUFFIX}")} & TASKS.keys())
        if task is None and len(tasks) > 1:
            raise InputError("data-ambiguous", f"{folder} holds features of {', '.join(tasks)}: choose one with --task")
        names = [task] if task is not None else tasks
        splits = [(name, split) for name in names for split in TASKS[name].splits if split != TRAIN]
        found = [self.find(folder, split, group=name) for name, split in splits if self.files_in(folder, split, name)]
        if not found:
            raise InputError(
                "data-unprepared",
                f"{folder} holds no GLUE features of {task or 'any task'} to predict: create them with "
                f"`{self.command(None, task, output=folder)}`",
            )
        return found


FORM = GlueForm()


def training_splits(split: str, task: str | None = None) -> tuple[str, ...]:
    """Return the splits that serve for 'training' or 'evaluation', of a task or of any."""
    if split == "training":
        return (TRAIN,)
    return TASKS[task].evaluations if task is not None else ("dev", "dev_matched", "dev_mismatched")
