"""Spans of time, vectorized: sets of spans (union, intersection, difference), and which span contains which.

A set is an array of shape (n, 2), int64 nanoseconds: half-open intervals [start, end), sorted, none empty, none
touching another. A result may be one of the arguments itself, so sets are never written to. `merged` makes one out of
any intervals; the other functions on sets take and return such sets, and are linear in their number. Spans nest as
operators call each other, or as a program opens named ranges.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from analysis.blocks import ROWS, blocks, in_order

Intervals = npt.NDArray[np.int64]
_NOTHING: Intervals = np.empty((0, 2), dtype=np.int64)


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
    if not in_order(begin):
        order = np.argsort(begin)
        begin, end = begin[order], end[order]
    reached = end if in_order(end) else np.maximum.accumulate(end)
    # A new interval begins where nothing before it reaches.
    apart = begin[1:] > reached[:-1]
    if apart.all():
        return np.stack([begin, end], axis=1)
    first = np.concatenate([[True], apart])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([begin[first], reached[last]])


def union(*sets: Intervals) -> Intervals:
    """Return what is in any of the sets."""
    filled = [found for found in sets if len(found)]
    if len(filled) < 2:
        return filled[0] if filled else _NOTHING
    joined = np.concatenate(filled)
    return merged(joined[:, 0], joined[:, 1])


def total_ns(intervals: Intervals) -> int:
    """Return the length of a set, ns."""
    return int(
        intervals[:, 1].sum() - intervals[:, 0].sum()
    )  # beyond 64 bits both wrap around, the difference is right


def clipped(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Return the part of a set inside [begin, end)."""
    if not len(intervals) or (begin <= intervals[0, 0] and intervals[-1, 1] <= end):
        return intervals
    inside = intervals[np.searchsorted(intervals[:, 1], begin, "right") : np.searchsorted(intervals[:, 0], end)].copy()
    if begin >= end or not len(inside):
        return _NOTHING
    inside[0, 0], inside[-1, 1] = max(inside[0, 0], begin), min(inside[-1, 1], end)
    return inside


def within(intervals: Intervals, window: Intervals) -> Intervals:
    """Return the part of a set inside another one, of few intervals."""
    return clipped(intervals, *window[0].tolist()) if len(window) == 1 else intersection(intervals, window)


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in both sets."""
    return _select(first, second, inside_second=True)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """Return what is in the first set and not in the second."""
    return _select(first, second, inside_second=False)


def inside_ns(intervals: Intervals, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return how much of a set lies in each of n windows [begin, end), ns, n values; windows may overlap."""
    begins, ends = np.asarray(begins, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    if len(intervals) == 1:
        inside: Intervals = ends.clip(*intervals[0]) - begins.clip(*intervals[0])
        return inside
    return _before(intervals, ends) - _before(intervals, begins)


def inside_each(intervals: Intervals, parts: Intervals) -> Intervals:
    """Return how much of a set lies in each interval of another one that holds all of it, ns, n values."""
    lengths = intervals[:, 1] - intervals[:, 0]
    if intervals is parts:
        return lengths
    found = np.zeros(len(parts), dtype=np.int64)
    np.add.at(found, np.searchsorted(parts[:, 0], intervals[:, 0], "right") - 1, lengths)
    return found


def _select(first: Intervals, second: Intervals, inside_second: bool) -> Intervals:
    """Walk over all boundaries in order of time: each is where one of the sets begins or ends.

    A piece between two boundaries is wholly inside or outside of each set, and every boundary leaves the result: pieces
    that are kept never touch.
    """
    if not len(first) or not len(second):
        return _NOTHING if inside_second else first
    if len(first) == 1:
        begin, end = int(first[0, 0]), int(first[0, 1])
        inside = clipped(second, begin, end)
        if inside_second:
            return inside
        between = np.empty((len(inside) + 1, 2), dtype=np.int64)
        between[0, 0], between[-1, 1] = begin, end
        between[1:, 0], between[:-1, 1] = inside[:, 1], inside[:, 0]
        # Only the first and the last can be empty.
        return between[int(between[0, 0] == between[0, 1]) : len(between) - int(between[-1, 0] == between[-1, 1])]
    if len(first) > ROWS:  # the set ends at the end of each of its intervals, so no result reaches beyond one
        parts = (first[part] for part in blocks(len(first)))
        return np.concatenate(
            [_select(part, clipped(second, *part[[0, -1], [0, 1]].tolist()), inside_second) for part in parts]
        )
    bounds = np.concatenate([first.ravel(), second.ravel()])
    # Two runs that are sorted already: a stable sort merges them in linear time.
    order = np.argsort(bounds, kind="stable")
    bounds, of_first = bounds[order], order < first.size
    in_first = np.cumsum(of_first) % 2 == 1
    in_second = np.cumsum(~of_first) % 2 == 1
    kept = (in_first & (in_second == inside_second))[:-1] & (bounds[1:] > bounds[:-1])
    return np.column_stack([bounds[:-1][kept], bounds[1:][kept]])


def levels(start: Intervals, end: Intervals, height: Intervals | None = None) -> Iterator[tuple[Intervals, Intervals]]:
    """Yield the moments at which one of n intervals begins or ends, and how many are open from then on.

    Args:
        start: their starts, ns, in any order.
        end: their ends, ns, no earlier.
        height: what each counts, n whole numbers; None: 1.

    Yields:
        Moments, ns, ascending from one part to the next, each once; the sum of the heights of those open from then on.
    """
    up, down = height, height
    if height is not None:
        order = np.argsort(end, kind="stable")
        end, down = end[order], height[order]
    if not in_order(start):
        order = np.argsort(start, kind="stable")
        start, up = start[order], None if height is None else height[order]
    end = end if in_order(end) else np.sort(end, kind="stable")
    open_, first, last = 0, 0, 0
    while last < len(end):
        # All changes up to the end of so many intervals.
        until = end[min(last + ROWS, len(end)) - 1]
        begun, over = (int(np.searchsorted(times, until, side="right")) for times in (start, end))
        times = np.concatenate([start[first:begun], end[last:over]])
        changes = np.ones(len(times), dtype=np.int64)
        if up is not None and down is not None:
            changes[: begun - first], changes[begun - first :] = up[first:begun], down[last:over]
        changes[begun - first :] *= -1
        order = np.argsort(times, kind="stable")
        times, level = times[order], open_ + np.cumsum(changes[order])
        each = np.append(times[1:] > times[:-1], True)
        yield times[each], level[each]
        open_, first, last = int(level[-1]), begun, over


def _before(intervals: Intervals, points: Intervals) -> Intervals:
    if not len(intervals) or not len(points):
        return np.zeros(points.shape, dtype=np.int64)
    begun = np.searchsorted(intervals[:, 0], points, side="right")
    sums = np.zeros(len(intervals) + 1, dtype=np.int64)
    np.subtract(intervals[:, 1], intervals[:, 0], out=sums[1:])
    np.cumsum(sums, out=sums)
    # Less what of the last one that has begun lies behind the point.
    ahead = intervals[begun - 1, 1]
    ahead -= points
    ahead[(begun == 0) | (ahead < 0)] = 0
    return np.asarray(sums[begun] - ahead)


Integers = npt.NDArray[np.int64]

_MOST_ROUNDS = 256


def by_start(start: Integers, end: Integers) -> Integers | None:
    """Return the order by start, then falling end; None where the n spans are in that order."""
    follows = start[1:] > start[:-1]
    follows |= (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return None if follows.all() else np.lexsort((-end, start))


def _by_thread(thread: Integers, start: Integers, end: Integers) -> Integers:
    if thread.max(initial=0) >= 2**15 or by_start(start, end) is not None:
        return np.lexsort((-end, start, thread))
    return np.argsort(thread.astype(np.int16), kind="stable")  # in linear time, for numbers of 16 bits


def nesting(thread: Integers, start: Integers, end: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return self time and whether outermost; a span that begins inside another of its thread was called by it.

    Its caller is the one that began last of those not over when it begins; of a span that outlasts its caller, only the
    part inside counts as called.

    Args:
        thread: n numbers of threads, from 0.
        start: n starts, ns, in any order.
        end: their ends, ns, no earlier.

    Returns:
        self_ns (n,), a span's duration less what it called, at least 0; outermost (n,), called by none.
    """
    order = _by_thread(thread, start, end)
    caller = _callers(thread[order], start[order], end[order])
    begin, stop = start[order], end[order]
    called = np.flatnonzero(caller >= 0)
    by = caller[called]
    inside = np.minimum(stop[called], stop[by]) - begin[called]
    self_ns = stop - begin
    np.subtract.at(self_ns, by, inside)
    outermost = np.empty(len(order), dtype=bool)
    outermost[order] = caller < 0
    own = np.empty_like(self_ns)
    own[order] = np.maximum(self_ns, 0)
    return own, outermost


def own_times(thread: Integers, start: Integers, end: Integers) -> Integers:
    """Return each span's own time, ns, shape (n,): when it is the one of its thread that began last of those open.

    The sum over the spans of a thread is the length of their union, so that no moment counts twice. That is the self
    time of `nesting` where spans lie inside one another; those that reach out of each other are gone through in order.

    Args:
        thread: n numbers of threads, from 0.
        start: n starts, ns, in any order.
        end: their ends, ns, no earlier.
    """
    own, _ = nesting(thread, start, end)
    covered = 0
    for number in np.unique(thread).tolist():
        begins, ends = start[thread == number], end[thread == number]
        order = np.argsort(begins, kind="stable")
        reached = np.maximum.accumulate(ends[order])
        gaps = begins[order][1:] - reached[:-1]
        covered += int(reached[-1] - begins.min() - gaps[gaps > 0].sum())
    return own if int(own.sum()) == covered else _swept(thread, start, end)


def _swept(thread: Integers, start: Integers, end: Integers) -> Integers:
    """The same by going through the spans of each thread in order of start, the open ones on a heap."""
    own = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((-end, start, thread))
    open_: list[tuple[int, int]] = []  # (place in the order, negative: the last to begin first; span)
    owner, now = -1, 0

    def run(until: int | None) -> None:
        nonlocal now
        while open_:
            span = open_[0][1]
            stop = int(end[span]) if until is None else min(int(end[span]), until)
            own[span] += max(0, stop - now)
            now = max(now, stop)
            if until is not None and int(end[span]) > until:
                return
            heappop(open_)
        now = now if until is None else max(now, until)

    for place, span in enumerate(order.tolist()):
        if thread[span] != owner:
            run(None)
            owner, now = int(thread[span]), int(start[span])
        run(int(start[span]))
        heappush(open_, (-place, span))
    run(None)
    return own


def _callers(thread: Integers, start: Integers, end: Integers) -> Integers:
    """Place of each span's caller, -1 without one; spans are in order of thread, start and falling end.

    Everything between a span and its caller is over when the span begins, so is what lies between that and its own
    candidate: every round goes one candidate back.
    """
    caller = np.arange(-1, len(start) - 1, dtype=np.int64)
    open_ = np.arange(len(start), dtype=np.int64)
    for _ in range(_MOST_ROUNDS):
        candidate = caller[open_]
        outside = (candidate < 0) | (thread[candidate] != thread[open_])
        caller[open_[outside]] = -1
        over = ~outside & (end[candidate] <= start[open_])
        open_, candidate = open_[over], candidate[over]
        if not len(open_):
            return caller
        caller[open_] = caller[candidate]
    return _callers_by_stack(thread, start, end)


def _callers_by_stack(thread: Integers, start: Integers, end: Integers) -> Integers:
    """The same, one after another: for spans nested so deep that rounds are slower."""
    callers: list[int] = []
    stack: list[tuple[int, int, int]] = []
    for place, (owner, begin, stop) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        while stack and (stack[-1][1] != owner or stack[-1][2] <= begin):
            stack.pop()
        callers.append(stack[-1][0] if stack else -1)
        stack.append((place, owner, stop))
    return np.array(callers, dtype=np.int64)


class Nested:
    """Spans of threads: which one called each, and which one a moment lies in."""

    def __init__(self, thread: Integers, start: Integers, end: Integers) -> None:
        """Take n spans, as `nesting` does."""
        self._order = np.lexsort((-end, start, thread))
        self._thread, self._start, self._end = thread[self._order], start[self._order], end[self._order]
        self._caller = _callers(self._thread, self._start, self._end)

    def callers(self) -> Integers:
        """Return each span's caller as its number among the n, -1 without one, shape (n,); see `nesting`."""
        found = np.full(len(self._order), -1, dtype=np.int64)
        has = np.flatnonzero(self._caller >= 0)
        found[self._order[has]] = self._order[self._caller[has]]
        return found

    def in_order(self) -> Integers:
        """Return the numbers of the spans, each after its caller, shape (n,)."""
        return self._order

    def around(self, thread: Integers, moment: Integers) -> Integers:
        """Return for each of m moments the span of its thread that began last of those open, -1 none, shape (m,)."""
        place = np.full(len(moment), -1, dtype=np.int64)
        if not len(self._order):
            return place
        for number in np.flatnonzero(np.bincount(thread)).tolist():
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
