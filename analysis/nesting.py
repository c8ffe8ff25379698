"""Spans inside one another, from their times: what is a span's own, and which is outermost. Vectorised.

Operators nest as they call each other, named ranges as the program opens them.
"""

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_MOST_ROUNDS = 256


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
    order = np.lexsort((-end, start, thread))
    caller = _callers(thread[order], start[order], end[order])
    begin, stop = start[order], end[order]
    called = np.flatnonzero(caller >= 0)
    by = caller[called]
    inside = np.minimum(stop[called], stop[by]) - begin[called]
    self_ns = stop - begin
    np.subtract.at(self_ns, by, inside)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return np.maximum(self_ns, 0)[back], (caller < 0)[back]


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
