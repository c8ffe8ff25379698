"""Rows of different lengths in one flat array. Imports no torch.

With an array of offsets, row i is values[offsets[i] : offsets[i + 1]]: padding is stored nowhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths."""

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

    @property
    def lengths(self) -> Int64:
        """Length of each row [rows]."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, rows: Iterable[npt.ArrayLike], dtype: npt.DTypeLike = np.int32) -> "Ragged":
        """Put rows, each one-dimensional, behind one another."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype), offsets)
