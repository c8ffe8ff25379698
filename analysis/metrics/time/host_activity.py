"""What the CPU did in a gap: the call, operator or range that holds most of it, and its time by activity.

Every moment of a gap counts once. It is data loading or communication where the program says so (see idle.py). Else it
goes to the innermost call, operator or Python function running on the thread that launches the next work; where
less than half of the gap is recorded on that thread, on the launching thread of which most is. A call of the operating
system inside a call of CUDA counts as the latter. The rest is `NOTHING`: no call was recorded.

A launch into an empty queue takes microseconds. One of a millisecond or more that is the first of its kernel in the
trace loads the kernel's code (lazy loading), and counts as library loading.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.blocks import blocks, narrow, taken
from analysis.metrics.time.launches import launching_calls
from analysis.spans import Intervals, clipped, difference, intersection, merged, own_times, total_ns
from analysis.timeline import Timeline, name_codes

if TYPE_CHECKING:
    import pandas as pd

DATA, COMMUNICATION, LOADING, NOTHING = "data loading", "communication", "library loading", "nothing recorded"
OPERATORS, PYTHON, OTHER_CALLS, PROFILER = "operators", "Python", "other calls", "profiler"
_GPU = r"(?:cu|cuda|hip)"
_BY_NAME: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (activity, re.compile(pattern, re.IGNORECASE))
    for activity, pattern in (
        (
            LOADING,
            rf"dlm?open|module loading|lazy function loading|nvrtc|GetProcAddress|GetDriverEntryPoint|"
            rf"{_GPU}(?:Module|Library)(?:Load|Get)|{_GPU}Link|{_GPU}Init$|{_GPU}(?:Ctx|DevicePrimaryCtx)",
        ),
        (PROFILER, r"profiler: |cu(?:da)?Profiler"),
        (
            "memory allocation",
            rf"{_GPU}\w*(?:Malloc|Free|Alloc|Host(?:Un)?register|MemMap|MemUnmap|MemCreate|MemRelease|AddressReserve)|"
            r"(?:mmap|munmap|mremap|mprotect|madvise|s?brk)(?:64)?$",
        ),
        ("launching", rf"{_GPU}\w*(?:Launch)|{_GPU}Mem(?:cpy|set)\w*Async"),
        ("copying", rf"{_GPU}Mem(?:cpy|set)"),
        (
            "synchronization",
            r"\w*synchronize|\w+(?:EventQuery|StreamQuery)|(?:futex|ppoll|poll|p?select|join|\w*sleep)$|"
            r"(?:epoll|sem|wait|pthread)_?\w*(?:wait|lock|join|pid)",
        ),
        (
            "file access",
            r"(?:p?(?:read|write)v?|f?open(?:at)?|f?close|fread|fwrite|fgets|fputs|[fl]?stat(?:at)?|lseek|f(?:data)?sync)"
            r"(?:64)?$",
        ),
        (PYTHON, r".*\.py\(\d+\): |<built-in |nn\.Module: "),
    )
)  # fmt: skip
SLOW_LAUNCH_NS = 1_000_000
_LONG_NS = 1_000_000
_Rows = npt.NDArray[np.int64]


def activity_of(name: str) -> str:
    """Return the activity of a call by its name; OTHER_CALLS for one that is not known."""
    return next((activity for activity, pattern in _BY_NAME if pattern.match(name)), OTHER_CALLS)


@dataclass(frozen=True, slots=True)
class Doing:
    """What the CPU did in a gap."""

    region: str
    """Name of the shortest call, operator or range that covers at least half of the gap; "" for none."""
    region_ns: int
    """How much of the gap it covers; all of it for none."""
    parts: Mapping[tuple[str, str], int]
    """Time by activity and name, the most first; together the gap. The name of a wait or of NOTHING is ""."""

    @property
    def activities(self) -> dict[str, int]:
        """Time by activity, the most first."""
        sums: dict[str, int] = {}
        for (activity, _), length in self.parts.items():
            sums[activity] = sums.get(activity, 0) + length
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Table:
    """The spans of one table, in order of start."""

    starts: _Rows
    ends: _Rows
    threads: npt.NDArray[Any]
    names: Any
    """An array of texts."""
    long: _Rows
    """Rows longer than _LONG_NS."""

    def overlapping(self, begin: int, end: int) -> _Rows:
        """Rows that reach into [begin, end)."""
        near = int(np.searchsorted(self.starts, begin - _LONG_NS))
        recent = near + np.flatnonzero(self.ends[near : np.searchsorted(self.starts, end)] > begin)
        old = self.long[self.long < near]
        return np.concatenate([old[self.ends[old] > begin], recent])


_API, _HOST, _OPERATORS, _RANGES = range(4)


class HostActivity:
    """What the CPU of one rank did, asked gap by gap."""

    def __init__(self, timeline: Timeline, waits: Mapping[str, Intervals]) -> None:
        """Index the host's tables.

        Args:
            timeline: what a reader returned.
            waits: when a thread waited for data (DATA) or for others (COMMUNICATION).
        """
        self._waits = waits
        self._numbers: dict[str, int] = {"": 0}
        steps = timeline.steps
        self._tables = [
            self._table(table, steps) for table in (timeline.api, timeline.host, timeline.operators, timeline.ranges)
        ]
        self._launches(timeline)
        self._known: dict[tuple[int, str], str] = {}

    def _table(self, table: "pd.DataFrame", steps: "pd.DataFrame") -> _Table:
        starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        codes, names = name_codes(table["thread"])
        numbers = narrow(np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names]))
        parts = [part.start + np.flatnonzero(ends[part] - starts[part] > _LONG_NS) for part in blocks(len(starts))]
        long = np.concatenate([np.empty(0, dtype=np.int64), *parts])
        marks = set(zip(steps["start"].tolist(), steps["end"].tolist(), strict=True))
        is_step = [row for row in long.tolist() if (int(starts[row]), int(ends[row])) in marks]
        return _Table(starts, ends, taken(numbers, codes), table["name"].array, long[~np.isin(long, is_step)])

    def _launches(self, timeline: Timeline) -> None:
        calls, work = launching_calls(timeline), timeline.work
        self._starts, self._calls = work.start[:0], np.empty(0, dtype=np.int64)
        self._launchers, self._first = frozenset[int](), frozenset[int]()
        if calls is None:
            return
        known = calls >= 0
        self._starts, self._calls = (work.start, calls) if known.all() else (work.start[known], calls[known])
        threads = self._tables[_API].threads
        launches = np.zeros(len(self._numbers), dtype=bool)
        first = np.full(len(work.names), -1, dtype=np.int64)
        for part in reversed(list(blocks(len(calls)))):
            rows = part.start + np.flatnonzero(known[part])[::-1]
            launches[threads[calls[rows]]] = True
            first[work.name[rows]] = calls[rows]
        self._launchers, self._first = frozenset(np.flatnonzero(launches).tolist()), frozenset(first.tolist())

    def during(self, begin: int, end: int) -> Doing:
        """Return what the CPU did in [begin, end), ns."""
        found = [(number, table.overlapping(begin, end)) for number, table in enumerate(self._tables)]
        which = np.concatenate([np.full(len(rows), number) for number, rows in found])
        rows = np.concatenate([rows for _, rows in found])
        starts, ends, threads = (
            np.concatenate([getattr(self._tables[number], name)[own] for number, own in found])
            for name in ("starts", "ends", "threads")
        )
        own = which != _RANGES
        kept = _Spans(which[own], rows[own], starts[own], ends[own], threads[own])
        thread = self._thread(kept, begin, end)
        covered = ends.clip(max=end) - starts.clip(min=begin)
        # Threads that launch nothing sleep in calls of the operating system.
        elsewhere = (which == _HOST) & (threads != thread) & (threads != 0)
        holding = np.flatnonzero((2 * covered >= end - begin) & ~elsewhere)
        region, length = "", end - begin
        if len(holding):
            place = min(holding.tolist(), key=lambda one: (int(ends[one] - starts[one]), -int(which[one])))
            region, length = self._name(int(which[place]), int(rows[place])), int(covered[place])
        return Doing(region, length, self._parts(kept.of_thread(thread), begin, end))

    def _parts(self, spans: "_Spans", begin: int, end: int) -> dict[tuple[str, str], int]:
        parts: dict[tuple[str, str], int] = {}
        left = merged([begin], [end])
        for activity, when in self._waits.items():
            if own := total_ns(intersection(left, clipped(when, begin, end))):
                parts[activity, ""] = own
                left = difference(left, clipped(when, begin, end))
        spans = self._without_nested_os_calls(spans)
        for first, last in left.tolist():
            starts, ends = spans.starts.clip(min=first), spans.ends.clip(max=last)
            inside = np.flatnonzero(ends > starts)
            own_ns = own_times(np.zeros(len(inside), dtype=np.int64), starts[inside], ends[inside])
            for place, length in zip(inside.tolist(), own_ns.tolist(), strict=True):
                key = self._told(int(spans.which[place]), int(spans.rows[place]))
                parts[key] = parts.get(key, 0) + length
            if rest := last - first - int(own_ns.sum()):
                parts[NOTHING, ""] = parts.get((NOTHING, ""), 0) + rest
        return dict(sorted(((key, ns) for key, ns in parts.items() if ns), key=lambda item: -item[1]))

    def _thread(self, spans: "_Spans", begin: int, end: int) -> int:
        """The thread that launches what ends the gap, or another launching one that has more of it; 0 for none."""
        place = int(np.searchsorted(self._starts, end))
        launcher = int(self._tables[_API].threads[self._calls[place]]) if place < len(self._calls) else 0
        there = set(spans.threads.tolist())
        wanted = sorted((self._launchers or there) & there)
        shares: dict[int, int] = {thread: spans.of_thread(thread).covered(begin, end) for thread in wanted}
        if not shares or 2 * shares.get(launcher, 0) >= end - begin:
            return launcher
        most = max(shares.values())
        return launcher if shares.get(launcher) == most else next(one for one in wanted if shares[one] == most)

    def _without_nested_os_calls(self, spans: "_Spans") -> "_Spans":
        """Leave out what the operating system did inside a call of CUDA; what is loaded there stays."""
        calls = merged(spans.starts[spans.which == _API], spans.ends[spans.which == _API])
        if not len(calls):
            return spans
        place = np.searchsorted(calls[:, 0], spans.starts, side="right") - 1
        inside = (place >= 0) & (spans.ends <= calls[place, 1]) & (spans.which == _HOST)
        for one in np.flatnonzero(inside).tolist():
            inside[one] = self._told(_HOST, int(spans.rows[one]))[0] not in (LOADING, PROFILER)
        return spans.chosen(~inside)

    def _name(self, which: int, row: int) -> str:
        return str(self._tables[which].names[row])

    def _told(self, which: int, row: int) -> tuple[str, str]:
        name = self._name(which, row)
        if which == _OPERATORS:
            return OPERATORS, name
        if (which, name) not in self._known:
            self._known[which, name] = activity_of(name)
        activity, table = self._known[which, name], self._tables[which]
        slow = which == _API and activity == "launching" and table.ends[row] - table.starts[row] >= SLOW_LAUNCH_NS
        if slow and row in self._first:
            return LOADING, f"first {name} of a kernel"
        return activity, name


@dataclass(frozen=True, slots=True)
class _Spans:
    """Calls, operators and functions that reach into a gap: table, row, start, end and thread of each."""

    which: _Rows
    rows: _Rows
    starts: _Rows
    ends: _Rows
    threads: npt.NDArray[Any]

    def chosen(self, kept: npt.NDArray[Any]) -> "_Spans":
        """Some of them: a mask, or their places."""
        return _Spans(self.which[kept], self.rows[kept], self.starts[kept], self.ends[kept], self.threads[kept])

    def of_thread(self, thread: int) -> "_Spans":
        """Those of a thread, and those whose thread is not recorded; the outer ones first."""
        own = np.flatnonzero((self.threads == thread) | (self.threads == 0))
        # Of two as long as each other, an operator was called by a function, and a call by an operator.
        depth = np.array([2, 0, 1, 0])[self.which[own]]
        return self.chosen(own[np.lexsort((depth, -self.ends[own], self.starts[own]))])

    def covered(self, begin: int, end: int) -> int:
        """How much of [begin, end) is inside any, ns."""
        return total_ns(clipped(merged(self.starts, self.ends), begin, end))
