"""Arithmetic on long columns some rows at a time: temporaries stay in the cache, and memory holds results alone."""

from collections.abc import Iterator

ROWS = 1 << 17
"""Rows of a block: a column of 8 bytes per row takes 1 MiB."""


def blocks(rows: int) -> Iterator[slice]:
    """Yield slices that cover so many rows, in order."""
    return (slice(first, min(first + ROWS, rows)) for first in range(0, rows, ROWS))
