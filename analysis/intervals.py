"""Spans of time, vectorized: sets of spans (union, intersection, difference), and which span contains which.

A set is an array of shape (n, 2), int64 nanoseconds: half-open intervals [start, end), sorted, none empty, none
touching another. `merged` makes one out of any intervals; the other functions on sets take and return such sets. Spans
nest as operators call each other, or as a program opens named ranges.
"""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Intervals = npt.NDArray[np.int64]
_NOTHING: Intervals = np.empty((0, 2), dtype=np.int64)


def merged(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return the union of intervals as a set; those with end <= start are empty and left out.

    Args:
        starts: n start times, ns, in any order.
        ends: their n end times, ns.
    """
    begin, end = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    filled = end > begin
    begin, end = begin[filled], end[filled]
    if not len(begin):
        return _NOTHING
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin, kind="stable")  # linear where few runs in order follow each other
        begin, end = begin[order], end[order]
    reached = np.maximum.accumulate(end)
    apart = begin[1:] > reached[:-1]  # a new interval begins where nothing before it reaches
    return np.column_stack([begin[np.append(True, apart)], reached[np.append(apart, True)]])


def union(*sets: Intervals) -> Intervals:
    """Return what is in any of the sets."""
    joined = np.concatenate([*sets, _NOTHING])
    return merged(joined[:, 0], joined[:, 1])


def total_ns(intervals: Intervals) -> int:
    """Return the length of a set, ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in both sets."""
    few, many = sorted((first, second), key=len)
    # Each of the few meets a run of the many: from the first that ends after its begin to the last before its end.
    begun = np.searchsorted(many[:, 1], few[:, 0], side="right")
    counts = np.searchsorted(many[:, 0], few[:, 1]) - begun
    of_few = np.repeat(np.arange(len(few)), counts)
    of_many = np.arange(len(of_few)) + np.repeat(begun + counts - np.cumsum(counts), counts)
    starts, ends = (few[of_few, 0], many[of_many, 0]), (few[of_few, 1], many[of_many, 1])
    return np.column_stack([np.maximum(*starts), np.minimum(*ends)])


def difference(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in the first set and not in the second."""
    everything = np.iinfo(np.int64)
    outside = np.concatenate([[everything.min], second.ravel(), [everything.max]]).reshape(-1, 2)
    return intersection(first, outside)


def before_ns(intervals: Intervals, moments: Integers) -> Integers:
    """Return how much of a set lies before each of n moments, ns, shape (n,)."""
    if not len(intervals):
        return np.zeros(len(moments), dtype=np.int64)
    starts, ends = intervals[:, 0], intervals[:, 1]
    total: Integers = np.cumsum(ends - starts)
    after = np.maximum(moments, starts[0])
    place = np.searchsorted(starts, after, side="right") - 1
    before: Integers = total[place] - np.maximum(ends[place] - after, 0)
    return before


def inside_ns(intervals: Intervals, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Integers:
    """Return how much of a set lies in each of n windows [begin, end), ns, shape (n,); windows may overlap."""
    first, last = (before_ns(intervals, np.asarray(moments, dtype=np.int64)) for moments in (begins, ends))
    return last - first


class Nested:
    """Spans of threads: which one called each, and which one a moment lies in.

    A span that begins inside another of its thread was called by it: by the one that began last of those not over when
    it begins.
    """

    def __init__(self, thread: Integers, start: Integers, end: Integers) -> None:
        """Take n spans.

        Args:
            thread: n numbers of threads, from 0.
            start: n starts, ns, in any order.
            end: their ends, ns, no earlier.
        """
        self._order = np.lexsort((-end, start, thread))
        self._thread, self._start, self._end = thread[self._order], start[self._order], end[self._order]
        # What lies between a span and its caller is over when the span begins: every round goes one candidate back.
        caller = np.arange(-1, len(start) - 1, dtype=np.int64)
        open_ = np.arange(len(start), dtype=np.int64)
        while len(open_):
            candidate = caller[open_]
            outside = (candidate < 0) | (self._thread[candidate] != self._thread[open_])
            caller[open_[outside]] = -1
            over = ~outside & (self._end[candidate] <= self._start[open_])
            open_ = open_[over]
            caller[open_] = caller[candidate[over]]
        self._caller = caller

    def callers(self) -> Integers:
        """Return each span's caller as its number among the n, -1 without one, shape (n,)."""
        numbers = np.full(len(self._order), -1, dtype=np.int64)
        has = np.flatnonzero(self._caller >= 0)
        numbers[self._order[has]] = self._order[self._caller[has]]
        return numbers

    def in_order(self) -> Integers:
        """Return the numbers of the spans, each after its caller, shape (n,)."""
        return self._order

    def around(self, thread: Integers, moment: Integers) -> Integers:
        """Return for each of m moments the span of its thread that began last of those open, -1 none, shape (m,)."""
        place = np.full(len(moment), -1, dtype=np.int64)
        if not len(self._order):
            return place
        for number in np.unique(self._thread).tolist():
            first, last = np.searchsorted(self._thread, (number, number + 1)).tolist()
            own = np.flatnonzero(thread == number)
            ahead = np.searchsorted(self._start[first:last], moment[own], side="right")
            place[own] = np.where(ahead > 0, first + ahead - 1, -1)
        over = np.flatnonzero(place >= 0)
        # A span around the moment began before the candidate and ends after it: it is among its callers.
        while len(over := over[self._end[place[over]] <= moment[over]]):
            place[over] = self._caller[place[over]]
            over = over[place[over] >= 0]
        return np.where(place >= 0, self._order[place], -1)


def nesting(thread: Integers, start: Integers, end: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return self time and whether outermost of n spans, see `Nested`.

    Returns:
        self_ns (n,), a span's duration less what it called, at least 0; of a span that outlasts its caller, only the
        part inside counts as called. outermost (n,), called by none.
    """
    caller = Nested(thread, start, end).callers()
    called = np.flatnonzero(caller >= 0)
    by = caller[called]
    self_ns = end - start
    np.subtract.at(self_ns, by, np.minimum(end[called], end[by]) - start[called])
    return np.maximum(self_ns, 0), caller < 0


def own_times(thread: Integers, start: Integers, end: Integers) -> Integers:
    """Return each span's own time, ns, shape (n,): when it is the one of its thread that began last of those open.

    The sum over the spans of a thread is the length of their union, so that no moment counts twice.
    """
    threads, moments = np.concatenate([thread, thread]), np.concatenate([start, end])
    order = np.lexsort((moments, threads))
    threads, moments = threads[order], moments[order]
    owner = Nested(thread, start, end).around(threads[:-1], moments[:-1])
    owned = (owner >= 0) & (threads[1:] == threads[:-1])
    times = np.zeros(len(start), dtype=np.int64)
    np.add.at(times, owner[owned], np.diff(moments)[owned])
    return times
