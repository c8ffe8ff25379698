"""Columns that grow chunk by chunk: compact arrays, and texts as numbers into a list of them."""

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd


class Codes(dict[Any, int]):
    """Numbers values as they come: codes[value]."""

    def __init__(self) -> None:
        """Start without values."""
        super().__init__()
        self._flags: list[bool] = []

    def __missing__(self, value: Hashable) -> int:
        """Give a new value the next number."""
        code = len(self)
        self[value] = code
        return code

    def of(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """Return the numbers of several values."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=len(values))

    def flags(self, wanted: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """Return by code whether a value is wanted; asked once for each value, so always with the same function."""
        self._flags += [wanted(value) for value in islice(self, len(self._flags), None)]
        return np.array(self._flags, dtype=bool)


class Columns:
    """The columns of one table."""

    def __init__(self) -> None:
        """Start without rows."""
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        self.rows = 0

    def add(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Append rows: arrays of one length."""
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(values)
        self.rows += len(next(iter(columns.values())))

    def joined(self, **types: str) -> dict[str, npt.NDArray[Any]]:
        """Return the whole columns, and forget the parts; `types`: the columns to expect, and their types if empty."""
        joined: dict[str, npt.NDArray[Any]] = {}
        for name, kind in types.items():
            parts = self._parts.pop(name, None)
            joined[name] = np.concatenate(parts) if parts else np.empty(0, dtype=kind)
        return joined


def categories(codes: npt.NDArray[Any], labels: Sequence[str]) -> "pd.Categorical":
    """Return a column of texts; only labels that occur become categories, each once."""
    import pandas as pd

    counts = np.bincount(codes, minlength=len(labels)) if len(codes) else np.zeros(len(labels), dtype=np.int64)
    distinct = Codes()
    place = np.zeros(len(labels), dtype=np.int16 if len(labels) < 2**15 else np.int32)
    for code in np.flatnonzero(counts).tolist():
        place[code] = distinct[labels[code]]
    texts = pd.Index(list(distinct), dtype="str")
    return pd.Categorical.from_codes(place[codes] if len(codes) else codes, categories=texts)
