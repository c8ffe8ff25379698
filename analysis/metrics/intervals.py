"""Sets of time intervals: union, intersection, difference, vectorised.

A set is an array of shape (n, 2), int64 nanoseconds: half-open intervals [start, end), sorted, none empty, none
touching another. `merged` makes one out of any intervals; the other functions take and return such sets.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]


def merged(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return the union of intervals as a set; those with end <= start are empty and left out.

    Args:
        starts: n start times, ns, in any order.
        ends: their n end times, ns.
    """
    begin, end = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    kept = end > begin
    order = np.argsort(begin[kept], kind="stable")
    begin, end = begin[kept][order], end[kept][order]
    if not len(begin):
        return np.empty((0, 2), dtype=np.int64)
    reached = np.maximum.accumulate(end)
    # A new interval begins where nothing before it reaches.
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([begin[first], reached[last]])


def total_ns(intervals: Intervals) -> int:
    """Return the length of a set, ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def clipped(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Return the part of a set inside [begin, end)."""
    starts, ends = intervals[:, 0].clip(min=begin), intervals[:, 1].clip(max=end)
    kept = ends > starts
    return np.column_stack([starts[kept], ends[kept]])


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in both sets."""
    return _select(first, second, inside_second=True)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in the first set and not in the second."""
    return _select(first, second, inside_second=False)


def union_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Return the length of the union of [start, end) intervals in any order, ns."""
    pairs = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return total_ns(merged(pairs[:, 0], pairs[:, 1]))


def _select(first: Intervals, second: Intervals, inside_second: bool) -> Intervals:
    """Cut time at every boundary; between two of them a piece is wholly inside or outside of each set."""
    bounds = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    starts, ends = bounds[:-1], bounds[1:]
    kept = _contains(first, starts) & (_contains(second, starts) == inside_second)
    return merged(starts[kept], ends[kept])


def _contains(intervals: Intervals, points: Intervals) -> npt.NDArray[np.bool_]:
    begun = np.searchsorted(intervals[:, 0], points, side="right")
    over = np.searchsorted(intervals[:, 1], points, side="right")
    return begun > over
