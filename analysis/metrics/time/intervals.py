"""Sets of time intervals: union, intersection, difference, vectorised; linear in their number once they are sorted.

A set is an array of shape (n, 2), int64 nanoseconds: half-open intervals [start, end), sorted, none empty, none
touching another. `merged` makes one out of any intervals; the other functions take and return such sets.
"""

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
    if not kept.all():
        begin, end = begin[kept], end[kept]
    if not len(begin):
        return np.empty((0, 2), dtype=np.int64)
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin)
        begin, end = begin[order], end[order]
    reached = np.maximum.accumulate(end)
    # A new interval begins where nothing before it reaches.
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([begin[first], reached[last]])


def union(*sets: Intervals) -> Intervals:
    """Return what is in any of the sets."""
    joined = np.concatenate([np.empty((0, 2), dtype=np.int64), *sets])
    return merged(joined[:, 0], joined[:, 1])


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


def inside_ns(intervals: Intervals, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return how much of a set lies in each of n windows [begin, end), ns, n values; windows may overlap."""
    return _before(intervals, np.asarray(ends, dtype=np.int64)) - _before(intervals, np.asarray(begins, dtype=np.int64))


def _select(first: Intervals, second: Intervals, inside_second: bool) -> Intervals:
    """Walk over all boundaries in order of time: each is where one of the sets begins or ends.

    A piece between two boundaries is wholly inside or outside of each set, and every boundary leaves the result: pieces
    that are kept never touch.
    """
    bounds = np.concatenate([first.ravel(), second.ravel()])
    # Two runs that are sorted already: a stable sort merges them in linear time.
    order = np.argsort(bounds, kind="stable")
    bounds, of_first = bounds[order], order < first.size
    in_first = np.cumsum(of_first) % 2 == 1
    in_second = np.cumsum(~of_first) % 2 == 1
    kept = (in_first & (in_second == inside_second))[:-1] & (bounds[1:] > bounds[:-1])
    return np.column_stack([bounds[:-1][kept], bounds[1:][kept]])


def _before(intervals: Intervals, points: Intervals) -> Intervals:
    """Length of the part of a set before each point."""
    sums = np.concatenate([[0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    begun = np.searchsorted(intervals[:, 0], points, side="right")
    last_end = np.concatenate([[np.iinfo(np.int64).min], intervals[:, 1]])[begun]
    ahead = np.where(last_end > points, last_end - points, 0)
    return np.asarray(sums[begun] - ahead)
