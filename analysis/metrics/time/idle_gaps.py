"""How idle time is spread: before the first work, after the last, in a few long gaps, or all over the steps.

A gap is a time in the window in which nothing runs. One before the first kernel of the trace is *start-up*, one after
the last kernel *tear-down* (copies and memsets are no kernels); all others are the *steady* part.

A cause of idle time *repeats* where a step usually has it: its steady time in the median step, times the steps, is what
repeats. Fewer than three marked steps have no usual one: all of it repeats then, unless a few gaps (a quarter of them,
five at most) hold more than half of it; in that case, what is left without these.

What makes every step faster (fewer launches, more loader workers) saves what repeats, and not the one long gap.

Launch-bound time is of two kinds. While the CPU launches one piece of work after another, a gap lasts about as long as
it takes from one launch to the next: that is what fewer launches, or one for a whole graph, save. Where it lasts much
longer, the CPU did something else (it wrote a checkpoint, read a file, was not scheduled): a *host pause*, which comes
back however few launches there are. A gap is short up to `_INTERVALS` times the median time between launches, at least
`_SHORTEST_NS` (ten calls of 5 us) and at most `_LONGEST_NS` (a program whose launches are that far apart is not held up
by launching).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.metrics.time.launches import launching_calls
from analysis.spans import Intervals, clipped, inside_ns, intersection, total_ns
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 5
"""Gaps of a rank that are named one by one."""
_STEPS = 3
_INTERVALS = 4
_SHORTEST_NS, _LONGEST_NS = 50_000, 1_000_000
_NAMED = 200
"""Host pauses, the longest, whose names are looked up."""
PARTS = ("start-up", "steady", "tear-down")


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle time."""

    start_ns: int
    length_ns: int
    part: str
    step: int | None
    """Marked step in which it begins; None outside of all."""
    cause: str
    """What most of it is, of idle.CAUSES."""
    cpu: str
    """Name of what the CPU did for at least half of it, the innermost; "" where the trace has no such name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How the idle time of one rank is spread."""

    start_up_ns: int
    """Before the first kernel of the trace."""
    tear_down_ns: int
    """After the last kernel of the trace."""
    gaps: int
    largest: tuple[Gap, ...]
    """The longest of them, the longest first."""
    steady_ns: Mapping[str, int]
    """Idle time between first and last kernel by cause."""
    repeating_ns: Mapping[str, int]
    short_limit_ns: int
    """How long a short gap is at most."""
    short_ns: int
    short_repeating_ns: int
    """What of that repeats; the rest of the steady launch-bound time is host pauses."""
    pauses: int
    doing_ns: Mapping[str, int]
    """How long the CPU did what in the longest host pauses: names as in Gap, and how much of the pauses they cover."""


def idle_spread(
    timeline: Timeline, begin: int, idle: Intervals, active: Intervals, causes: Mapping[str, Intervals]
) -> Spread:
    """Return how idle time is spread.

    Args:
        timeline: what a reader returned.
        begin: of the window, ns.
        idle: the idle time of the window.
        active: when a kernel ran, of a CPU an operator, in the whole trace.
        causes: the idle time by cause; together all of `idle`.
    """
    first, last = (int(active[0, 0]), int(active[-1, 1])) if len(active) else (0, 0)
    parts = np.where(idle[:, 1] <= first, 0, np.where(idle[:, 0] >= last, 2, 1))
    lengths = idle[:, 1] - idle[:, 0]
    by_cause = {cause: inside_ns(spans, idle[:, 0], idle[:, 1]) for cause, spans in causes.items()}
    steady, repeating = {}, {}
    for cause, spans in causes.items():
        steady[cause] = int(by_cause[cause][parts == 1].sum())
        repeating[cause] = _repeating(timeline, clipped(spans, first, last), by_cause[cause][parts == 1])
    order = np.argsort(-lengths, kind="stable")[:LARGEST].tolist()
    doing = _Doing(timeline)
    bound = np.where(parts == 1, by_cause["launch_bound"], 0)
    limit = _short_limit(timeline)
    short = (bound > 0) & (bound <= limit)
    launching = intersection(clipped(causes["launch_bound"], first, last), idle[short])
    pauses = np.flatnonzero(bound > limit)
    named: dict[str, int] = {}
    for place in pauses[np.argsort(-bound[pauses], kind="stable")][:_NAMED].tolist():
        name, length = doing.during(int(idle[place, 0]), int(idle[place, 1]))
        named[name] = named.get(name, 0) + min(length, int(bound[place]))
    return Spread(
        start_up_ns=int(lengths[parts == 0].sum()),
        tear_down_ns=int(lengths[parts == 2].sum()),
        gaps=len(idle),
        largest=tuple(
            Gap(
                start_ns=int(idle[place, 0]) - begin,
                length_ns=int(lengths[place]),
                part=PARTS[int(parts[place])],
                step=_step(timeline, int(idle[place, 0])),
                cause=max(by_cause, key=lambda cause: int(by_cause[cause][place])),
                cpu=doing.during(int(idle[place, 0]), int(idle[place, 1]))[0],
            )
            for place in order
        ),
        steady_ns=steady,
        repeating_ns=repeating,
        short_limit_ns=limit,
        short_ns=int(bound[short].sum()),
        short_repeating_ns=_repeating(timeline, launching, np.where(short, bound, 0)[parts == 1]),
        pauses=len(pauses),
        doing_ns=named,
    )


def _short_limit(timeline: Timeline) -> int:
    """How long a launch-bound gap is at most that a launch explains, ns."""
    calls = launching_calls(timeline)
    used = np.unique(calls[calls >= 0]) if calls is not None else np.empty(0, dtype=np.int64)
    between = np.diff(np.sort(timeline.api["start"].to_numpy(dtype=np.int64)[used]))
    usual = float(np.median(between)) if len(between) else 0.0
    return max(_SHORTEST_NS, min(_LONGEST_NS, round(_INTERVALS * usual)))


def _repeating(timeline: Timeline, spans: Intervals, gaps: Intervals) -> int:
    """What of a cause's steady time repeats, ns.

    Args:
        timeline: what a reader returned.
        spans: the steady time.
        gaps: how much of it is in each gap, 0 in those of other causes.
    """
    whole, steps = total_ns(spans), timeline.steps
    if len(steps) >= _STEPS:
        usual = float(np.median(inside_ns(spans, steps["start"].to_numpy(), steps["end"].to_numpy())))
        return min(whole, round(usual * len(steps)))
    few = int(np.sort(gaps)[::-1][: min(LARGEST, max(1, len(gaps) // 4))].sum())
    return whole - few if 2 * few > whole else whole


def _step(timeline: Timeline, moment: int) -> int | None:
    steps = timeline.steps
    inside = steps["step"][(steps["start"] <= moment) & (steps["end"] > moment)]
    return int(inside.iloc[0]) if len(inside) else None


class _Doing:
    """What the CPU did in a gap."""

    def __init__(self, timeline: Timeline) -> None:
        steps = set(zip(timeline.steps["start"].tolist(), timeline.steps["end"].tolist(), strict=True))
        self._spans, self._names = [], []
        for table in (timeline.api, timeline.operators, timeline.ranges):
            starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
            marks = np.isin(starts, [start for start, _ in steps])
            marked = [place for place in np.flatnonzero(marks).tolist() if (starts[place], ends[place]) in steps]
            order = np.argsort(starts - ends, kind="stable")  # the longest first
            order = order[~np.isin(order, marked)]
            self._spans.append((starts[order], ends[order], (starts - ends)[order]))
            self._names.append((table["name"], order))

    def during(self, begin: int, end: int) -> tuple[str, int]:
        """Return, of what covers at least half of a gap, the name of the shortest and how much it covers, ns.

        "" and all of the gap for nothing.
        """
        found: list[tuple[int, str, int]] = []
        for (starts, ends, shorter), (names, order) in zip(self._spans, self._names, strict=True):
            count = int(np.searchsorted(shorter, (begin - end) / 2, side="right"))  # the others are too short
            covered = ends[:count].clip(max=end) - starts[:count].clip(min=begin)
            for place in np.flatnonzero(2 * covered >= end - begin).tolist():
                found.append((int(ends[place] - starts[place]), str(names.iloc[order[place]]), int(covered[place])))
        return min(found)[1:] if found else ("", end - begin)


def gap_frame(rows: "Sequence[tuple[int | None, int, Spread]]") -> "pd.DataFrame":
    """Return one row per named gap: rank, start_ms (since the begin of the window), length_ms, idle_time_share, part,
    step, cause, cpu.

    Args:
        rows: rank, idle time in ns and spread of each rank.
    """
    import pandas as pd

    records = [
        {
            "rank": rank,
            "start_ms": gap.start_ns / 1e6,
            "length_ms": gap.length_ns / 1e6,
            "idle_time_share": gap.length_ns / idle_ns,
            "part": gap.part,
            "step": gap.step,
            "cause": gap.cause,
            "cpu": gap.cpu,
        }
        for rank, idle_ns, spread in rows
        for gap in spread.largest
    ]
    frame = pd.DataFrame(records)
    return frame.astype({"rank": "Int64", "step": "Int64"}) if records else frame
