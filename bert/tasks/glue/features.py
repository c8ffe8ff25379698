"""What the rows of a GLUE table become: [CLS] sentence [SEP] or [CLS] first [SEP] second [SEP]. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.ragged import Int64
from bert.data.rows import TokenRows
from bert.data.stages import Counts
from bert.data.vocabulary import Vocabulary
from bert.tasks.glue.tables import GlueRow, GlueTable
from bert.tasks.glue.tasks import GlueSpec, task_of

DEFAULT_MAX_SEQ_LENGTH = 128
"""As published (google-research/bert, the benchmark's own examples)."""
SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]; one of them is not needed where there is one sentence."""
CUT = "rows cut to the sequence length"
_BATCH = 20_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything features depend on besides the content of the table."""

    task: str
    """A name in bert.tasks.glue.tasks.TASKS."""
    split: str
    lower_case: bool
    """Text is lower-cased and accents are stripped before it is cut into pieces."""
    vocabulary: str
    """Vocabulary.fingerprint."""
    vocab_size: int
    max_seq_length: int = DEFAULT_MAX_SEQ_LENGTH
    """Tokens of a row at most."""

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


def make_columns(
    table: GlueTable, settings: Settings, vocabulary: Vocabulary, counts: Counts
) -> dict[str, list[npt.NDArray[Any]]]:
    """Return the columns of a file of features: ids.values, ids.offsets, second, labels, index.

    Where two sentences are too long together, the longer loses its last piece until they fit, the second one on a tie
    (google-research/bert, run_classifier.py).

    Args:
        table: the rows.
        settings: what to make of them.
        vocabulary: the pieces.
        counts: takes the tokens, and the rows that were cut.
    """
    kind = np.dtype(np.uint16 if len(vocabulary.pieces) <= 2**16 else np.int32)
    values: list[npt.NDArray[Any]] = []
    lengths: list[int] = []
    second: list[int] = []
    pairs = len(settings.spec.texts) > 1
    rows = iter(table.rows)
    while part := list(islice(rows, _BATCH)):
        flat: list[int] = []
        for first_ids, second_ids in _encoded(part, vocabulary):
            kept = _fitted(len(first_ids), len(second_ids), settings.max_seq_length - 2 - pairs)
            counts.add(CUT, kept != (len(first_ids), len(second_ids)))
            flat += [vocabulary.cls_id, *first_ids[: kept[0]], vocabulary.sep_id]
            begins = kept[0] + 2
            if pairs:
                flat += [*second_ids[: kept[1]], vocabulary.sep_id]
            second.append(begins)
            lengths.append(begins + (kept[1] + 1 if pairs else 0))
        values.append(np.array(flat, dtype=kind))
    counts.add("tokens", sum(lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return {
        "ids.values": values or [np.zeros(0, dtype=kind)],
        "ids.offsets": [offsets],
        "second": [np.array(second, dtype=np.int64)],
        "labels": [_labels(table.rows, settings.spec)],
        "index": [np.array([row.index for row in table.rows], dtype=np.int64)],
    }


def _encoded(rows: Sequence[GlueRow], vocabulary: Vocabulary) -> Iterator[tuple[list[int], list[int]]]:
    first = vocabulary.encode([row.first for row in rows])
    second = vocabulary.encode([row.second for row in rows if row.second is not None])
    return zip(first, second or ([] for _ in first), strict=True)


def _fitted(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many pieces of each sentence are kept where there is room for so many."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def _labels(rows: Sequence[GlueRow], spec: GlueSpec) -> npt.NDArray[Any]:
    found = [row.label for row in rows if row.label is not None]
    return np.array(found, dtype=np.float32 if spec.is_regression else np.int64)
