"""How idle time is spread: before the first work, after the last, in a few long gaps, or all over the steps.

A gap is a time in the window in which nothing runs. One before the first kernel of the trace is *start-up*, one after
the last kernel *tear-down* (copies and memsets are no kernels); all others are the *steady* part.

A cause of idle time *repeats* where a step usually has it: its steady time in the median step, times the steps, is what
repeats. Fewer than three marked steps have no usual one. Then the steady gaps, in order of time, are divided into ten
groups of equal number: what repeats is the median group's time, times the groups. So a few gaps never repeat, however
long they are; fewer than three gaps do not either.

What makes every step faster (fewer launches, more loader workers) saves what repeats, and not the one long gap.

Launch-bound time is of two kinds. While the CPU launches one piece of work after another, a gap lasts about as long as
it takes from one launch to the next: that is what fewer launches, or one for a whole graph, save. Where it lasts much
longer, the CPU did something else (it wrote a checkpoint, read a file, was not scheduled): a *host pause*, which comes
back however few launches there are. A gap is short up to `_INTERVALS` times the median time between launches, at least
`_SHORTEST_NS` (ten calls of 5 us) and at most `_LONGEST_NS` (a program whose launches are that far apart is not held up
by launching).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis import wording
from analysis.blocks import blocks, in_order
from analysis.metrics.time.host_activity import HostActivity
from analysis.metrics.time.launches import launching_calls
from analysis.spans import Intervals, clipped, inside_each, inside_ns, intersection, total_ns
from analysis.timeline import Mask, Timeline

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 5
"""Gaps of a rank that are named one by one."""
_STEPS, _GROUPS = 3, 10
_NAMED_PARTS = 3
"""Calls and operators of a gap that are named."""
_INTERVALS = 4
_SHORTEST_NS, _LONGEST_NS = 50_000, 1_000_000
_NAMED = 200
"""Host pauses, the longest, whose names are looked up."""
PAUSE = "host_pause"
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
    """What most of it is, of idle.CAUSES; PAUSE where the CPU was late and the gap is not a short, steady one."""
    cpu: str
    """The innermost call, operator or range that holds at least half of it; "" for none."""
    activities: Mapping[str, int]
    """What the CPU did meanwhile, ns by activity (see host_activity), the most first; together the gap."""
    calls: str
    """The calls and operators that took the most of it, with their times; "" where none was recorded."""


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
    """How long the CPU was in what in the longest host pauses: names as in Gap.cpu, and how much they cover."""
    pause_activities_ns: Mapping[str, int]
    """The time of these by activity."""


def idle_spread(
    timeline: Timeline,
    begin: int,
    idle: Intervals,
    worked: tuple[int, int],
    causes: Mapping[str, Intervals],
    waits: Mapping[str, Intervals],
) -> Spread:
    """Return how idle time is spread.

    Args:
        timeline: what a reader returned.
        begin: of the window, ns.
        idle: the idle time of the window.
        worked: when the first kernel of the whole trace begins and the last one ends, of a CPU the first and the last
            operator, ns.
        causes: the idle time by cause; together all of `idle`.
        waits: as HostActivity takes them.
    """
    first, last = worked
    begun = int(np.searchsorted(idle[:, 1], first, "right"))  # gaps before it lie before the first kernel
    ended = max(begun, int(np.searchsorted(idle[:, 0], last)))
    lengths = idle[:, 1] - idle[:, 0]
    by_cause = {cause: lengths if spans is idle else inside_each(spans, idle) for cause, spans in causes.items()}
    steady, repeating = {}, {}
    for cause, spans in causes.items():
        steady[cause] = int(by_cause[cause][begun:ended].sum())
        repeating[cause] = _repeating(timeline, clipped(spans, first, last), by_cause[cause][begun:ended])
    limit = _short_limit(timeline)
    host = HostActivity(timeline, waits)
    bound, within = by_cause["launch_bound"][begun:ended], idle[begun:ended]
    short = (bound > 0) & (bound <= limit)
    launching = intersection(clipped(causes["launch_bound"], first, last), within[short])
    pauses = np.flatnonzero(bound > limit)
    named, activities = Counter[str](), Counter[str]()
    for place in pauses[_largest(bound[pauses], _NAMED)].tolist():
        doing = host.during(int(within[place, 0]), int(within[place, 1]))
        named[doing.region] += min(doing.region_ns, int(bound[place]))
        activities.update(doing.activities)

    def gap(place: int) -> Gap:
        start, end = (int(moment) for moment in idle[place])
        part = 0 if place < begun else 1 if place < ended else 2
        doing = host.during(start, end)
        cause = max(by_cause, key=lambda cause: int(by_cause[cause][place]))
        return Gap(
            start_ns=start - begin,
            length_ns=end - start,
            part=PARTS[part],
            step=_step(timeline, start),
            cause=PAUSE if cause == "launch_bound" and not (part == 1 and short[place - begun]) else cause,
            cpu=doing.region,
            activities=doing.activities,
            calls=", ".join(
                f"{name} {wording.short(length / 1e6, 4)} ms"
                for name, length in [(name, ns) for (_, name), ns in doing.parts.items() if name][:_NAMED_PARTS]
            ),
        )

    return Spread(
        start_up_ns=int(lengths[:begun].sum()),
        tear_down_ns=int(lengths[ended:].sum()),
        gaps=len(idle),
        largest=tuple(gap(place) for place in _largest(lengths, LARGEST).tolist()),
        steady_ns=steady,
        repeating_ns=repeating,
        short_limit_ns=limit,
        short_ns=int(bound.sum(where=short)),
        short_repeating_ns=_repeating(timeline, launching, bound, short),
        pauses=len(pauses),
        doing_ns=named,
        pause_activities_ns=activities,
    )


def _largest(values: Intervals, count: int) -> Intervals:
    """Places of the largest values, the largest first; of equal ones the first."""
    found = np.empty(0, dtype=np.int64)
    for part in blocks(len(values)):
        own = values[part]
        least = int(values[found[-1]]) if len(found) == count else np.iinfo(np.int64).min
        if own.max() <= least:
            continue
        if len(own) > count:
            least = max(least, int(np.partition(own, len(own) - count)[len(own) - count]) - 1)
        places = np.append(found, part.start + np.flatnonzero(own > least))
        found = places[np.argsort(-values[places], kind="stable")[:count]]
    return found


def _short_limit(timeline: Timeline) -> int:
    """How long a launch-bound gap is at most that a launch explains, ns; of a chosen window by its own launches."""
    calls = launching_calls(timeline)
    used = np.zeros(len(timeline.api), dtype=bool)
    if calls is not None:
        for part in blocks(len(calls)):
            used[calls[part][calls[part] >= 0]] = True
    del calls
    called = timeline.api["start"].to_numpy(dtype=np.int64)
    if timeline.window is not None:
        used &= timeline.inside(called)
    called = called if used.all() else called[used]
    between = np.diff(called if in_order(called) else np.sort(called))
    usual = float(np.median(between, overwrite_input=True)) if len(between) else 0.0
    return max(_SHORTEST_NS, min(_LONGEST_NS, round(_INTERVALS * usual)))


def _repeating(timeline: Timeline, spans: Intervals, gaps: Intervals, counted: Mask | None = None) -> int:
    """What of a cause's steady time repeats, ns.

    Args:
        timeline: what a reader returned.
        spans: the steady time.
        gaps: how much of it is in each steady gap, in order of time, 0 in those of other causes.
        counted: which of these count; None: all.
    """
    whole, steps = total_ns(spans), timeline.steps
    if len(steps) >= _STEPS:
        usual = float(np.median(inside_ns(spans, steps["start"].to_numpy(), steps["end"].to_numpy())))
        return min(whole, round(usual * len(steps)))
    if len(gaps) < _STEPS:
        return 0
    counted = np.broadcast_to(np.True_, len(gaps)) if counted is None else counted
    parts = (np.array_split(values, min(_GROUPS, len(gaps))) for values in (gaps, counted))
    groups = [int(group.sum(where=own)) for group, own in zip(*parts, strict=True)]
    return min(whole, round(float(np.median(groups)) * len(groups)))


def _step(timeline: Timeline, moment: int) -> int | None:
    steps = timeline.steps
    inside = steps["step"][(steps["start"] <= moment) & (steps["end"] > moment)]
    return int(inside.iloc[0]) if len(inside) else None


def gap_frame(rows: "Sequence[tuple[int | None, int, Spread]]") -> "pd.DataFrame":
    """Return one row per named gap: rank, start_ms (since the begin of the window), length_ms, idle_time_share, part,
    step, cause, activity (what the CPU did for most of it), activity_ms, cpu, calls.

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
            "activity": (activity := next(iter(gap.activities))),
            "activity_ms": gap.activities[activity] / 1e6,
            "cpu": gap.cpu,
            "calls": gap.calls,
        }
        for rank, idle_ns, spread in rows
        for gap in spread.largest
    ]
    frame = pd.DataFrame(records)
    return frame.astype({"rank": "Int64", "step": "Int64"}) if records else frame
