"""Arithmetic on long columns some rows at a time: temporaries stay in the cache, and memory holds results alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS = 1 << 17
"""Rows of a block: a column of 8 bytes per row takes 1 MiB."""


def blocks(rows: int) -> Iterator[slice]:
    """Yield slices that cover so many rows, in order."""
    return (slice(first, min(first + ROWS, rows)) for first in range(0, rows, ROWS))


def in_order(values: npt.NDArray[Any]) -> bool:
    """Return whether no value is less than the one before it."""
    return all(bool((values[part][1:] >= values[part][:-1]).all()) for part in _overlapping(len(values)))


def taken(values: npt.NDArray[Any], places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values[places]; numpy would convert all places to 8 bytes first."""
    found = np.empty(len(places), dtype=values.dtype)
    for part in blocks(len(places)):
        found[part] = values[places[part]]
    return found


def narrow(values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Return whole numbers in the narrowest signed type that holds them."""
    return values.astype(narrowest(int(values.min(initial=0)), int(values.max(initial=0))), copy=False)


def narrowest(low: int, high: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest signed type that holds two numbers of 64 bits."""
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return kind
    return np.int64


def _overlapping(rows: int) -> Iterator[slice]:
    """Blocks that share a row with the next one."""
    return (slice(part.start, part.stop + 1) for part in blocks(rows))
