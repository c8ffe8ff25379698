"""Rows of different lengths without padding, and rows of word pieces with a label each. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths in one flat array: row i is values[offsets[i] : offsets[i + 1]]."""

    values: npt.NDArray[Any]
    offsets: Int64
    """Where each row begins, and the end of the last: [rows + 1]."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        """Return one row, a view."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def text(self, row: int) -> str:
        """Return a row of UTF-8 bytes as text."""
        return self[row].tobytes().decode("utf-8")

    def texts(self) -> list[str]:
        """Return all rows of UTF-8 bytes as texts."""
        return [self.text(row) for row in range(len(self))]

    @property
    def lengths(self) -> Int64:
        """Length of each row [rows]."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, rows: Iterable[npt.ArrayLike], dtype: npt.DTypeLike = np.int32) -> "Ragged":
        """Concatenate one-dimensional rows."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        offsets = offsets_of([len(array) for array in arrays])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype), offsets)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> "Ragged":
        """Return texts as rows of UTF-8 bytes."""
        encoded = list(map(str.encode, texts))
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets_of(lengths))


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """Return where rows of these lengths begin, and the end of the last."""
    sizes = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def join_offsets(parts: Sequence[Int64]) -> Int64:
    """Return the offsets of rows whose values follow one another in so many parts."""
    return offsets_of(np.concatenate([np.diff(part) for part in parts]))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """N rows: [CLS] text [SEP], or [CLS] text [SEP] second text [SEP], of at least one token each."""

    ids: Ragged
    """Word pieces of each row, special ones included, without padding [N]."""
    second: Int64
    """Column at which segment 1 begins [N]; the length of the row where it has none."""
    labels: Labels
    """Class of each row, int64 from 0 on, or its value, float32 (regression) [N]; empty if they have no labels."""
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Further tensors of a row by the names a batch has them under, each [N, ...]."""
    fingerprint: str
    vocab_size: int
    """Word pieces of the vocabulary they were made with."""
    vocabulary: str
    """Hash of that vocabulary (bert.data.vocabulary.Vocabulary.fingerprint)."""
    pad_id: int
    """Id of [PAD]."""
    max_seq_length: int
    """Maximum tokens of a row."""

    def __post_init__(self) -> None:
        columns = (self.second, *self.columns.values(), *((self.labels,) if self.has_labels else ()))
        assert all(len(column) == len(self) for column in columns), "columns of other lengths"
        assert ((self.lengths >= 1) & (self.lengths <= self.max_seq_length)).all(), "rows without tokens, or too long"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    @property
    def lengths(self) -> Int64:
        """Tokens of each row [N]."""
        return self.ids.lengths

    @property
    def has_labels(self) -> bool:
        """Whether they can be trained on and evaluated on; else only predicted."""
        return len(self.labels) > 0
