"""Columns that grow chunk by chunk: compact arrays, and texts as numbers into a list of them."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.blocks import blocks, narrow, taken
from common.errors import InputError
from common.memory import available_bytes

if TYPE_CHECKING:
    import pandas as pd

Integers = npt.NDArray[np.int64]

MISSING = -(2**63)
"""In columns of integers: the file does not say, or what it says is no whole number of 64 bits."""


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

    def of(self, values: Iterable[Any]) -> npt.NDArray[np.int32]:
        """Return the numbers of several values."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32)

    def flags(self, wanted: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """Return by code whether a value is wanted; asked once for each value, so always with the same function."""
        self._flags += [wanted(value) for value in islice(self, len(self._flags), None)]
        return np.array(self._flags, dtype=bool)


_ALWAYS_BYTES = 64 << 20


def require_memory(path: Path, column_bytes: int) -> None:
    """Stop before a trace takes more memory than there is, asked again as its columns grow.

    Analyses make copies of the columns: of 0.7 to 2.7 times their size in measurements. Half of it is asked for, so
    that no trace is refused that fits.
    """
    if column_bytes <= _ALWAYS_BYTES:
        return
    free, wanted = available_bytes(), column_bytes // 2
    if free is not None and wanted > free:
        raise InputError(
            "file-limit",
            f"{path} is too large for the memory: reading stopped at {column_bytes:,} bytes of tables, analyzing them "
            f"takes at least {wanted:,} more, and {free:,} are available; record fewer steps, or use a machine with "
            "more memory",
        )


class Columns:
    """The columns of one table, each in one array with room to grow: many small ones would leave holes in memory."""

    def __init__(self) -> None:
        """Start without rows."""
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self.rows = 0

    @property
    def bytes(self) -> int:
        """What the rows take."""
        return self.rows * sum(array.itemsize for array in self._arrays.values())

    def add(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Append rows: arrays of one length."""
        rows = self.rows + len(next(iter(columns.values())))
        for name, values in columns.items():
            array = self._arrays.get(name, values[:0])
            if len(array) < rows:
                grown = np.empty(max(rows, len(array) + len(array) // 4), dtype=values.dtype)
                grown[: self.rows] = array[: self.rows]
                self._arrays[name] = array = grown
            array[self.rows : rows] = values
        self.rows = rows

    def joined(self, **types: str) -> dict[str, npt.NDArray[Any]]:
        """Return the columns, and forget them; `types`: the columns to expect, and their types if empty."""
        return {
            name: self._arrays.pop(name)[: self.rows] if name in self._arrays else np.empty(0, dtype=kind)
            for name, kind in types.items()
        }


def categories(codes: npt.NDArray[Any], labels: Sequence[str]) -> "pd.Categorical":
    """Return a column of texts; only labels that occur become categories, each once."""
    import pandas as pd

    occurs = np.zeros(len(labels), dtype=bool)
    for part in blocks(len(codes)):
        occurs[codes[part]] = True
        if occurs.all():  # most often
            break
    distinct = Codes()
    place = np.zeros(len(labels), dtype=np.int32)
    for code in np.flatnonzero(occurs).tolist():
        place[code] = distinct[labels[code]]
    if len(distinct) < len(labels):
        codes = taken(narrow(place), codes)
    texts = pd.Index(list(distinct), dtype="str")
    return pd.Categorical.from_codes(codes, categories=texts)


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[list[tuple[Any, ...]], npt.NDArray[np.intp]]:
    """Return the distinct rows of equally long columns, and for each row which of them it is. Hashes, never sorts."""
    import pandas as pd

    place = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        if column.dtype != object and (column == column[:1]).all():  # most often
            continue
        codes, values = pd.factorize(column)
        place = pd.factorize(place * max(1, len(values)) + codes)[0] if place.any() or column.dtype == object else codes
    first = np.full(int(place.max(initial=-1)) + 1, -1, dtype=np.intp)
    first[place[::-1]] = np.arange(len(place))[::-1]
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), place
