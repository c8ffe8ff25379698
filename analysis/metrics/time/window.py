"""The part of a trace that was asked for: marked steps, a named range, or a time.

A range that occurs several times is analyzed as all its occurrences together, each counted as a step; the time between
them is not in the window. Occurrences that overlap are one.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.spans import Intervals, merged
from analysis.timeline import STEP_COLUMNS, ChosenWindow, Timeline, empty, named
from analysis.window_choice import KERNELS, STEPS, WindowChoice, parse_window
from analysis.wording import number
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMES = 12
_DAY_NS = 24 * 3600 * 10**9


def windowed(timelines: Sequence[Timeline], text: str) -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Return the timelines with a window, and a sentence each on what is left out.

    These are ranks that do not have the window, and time outside the recording.

    Args:
        timelines: what readers returned, one per rank.
        text: "steps": unchanged; "kernels": no step is marked, so that everything counts; "step:N", "step:N..M";
            "range:NAME", in which * stands for any text; a time, "1.2s..3.4s", counted from `origin_ns`.
    """
    choice = parse_window(text)
    if text == STEPS:
        return tuple(timelines), ()
    if text == KERNELS:
        return tuple(dataclasses.replace(found, steps=empty(STEP_COLUMNS)) for found in timelines), ()
    if not timelines:
        raise UsageError("option-not-applicable", f"--window {text} needs a trace: tables of totals have no time line")
    made = [_cut(found, choice) for found in timelines]
    kept = tuple(found for found in made if found is not None)
    if not kept:
        raise InputError("trace-without-work", f"--window {text}: {_there_is(timelines, choice)}")
    lost = [str(old.rank) for old, new in zip(timelines, made, strict=True) if new is None]
    said = []
    if lost:
        who = f"rank{'s'[: len(lost) > 1]} {', '.join(lost)} {'have' if len(lost) > 1 else 'has'}"
        said.append(f"{who} no window {text}: left out")
    if choice.time_ns is not None:
        begin, end = _recorded_seconds(kept)
        if choice.time_ns[0] < begin * 1e9 or choice.time_ns[1] > end * 1e9:
            said.append(f"--window {text}: only {number(begin)}s to {number(end)}s was recorded, the rest is left out")
    return kept, tuple(said)


def origin_ns(timeline: Timeline) -> int:
    """Return where times of a window count from, ns.

    nsys and nvprof count from the start of the recording, as their viewers do; absolute times count from the first
    step, operator, call, range or piece of work.
    """
    if timeline.window is not None:
        return timeline.window.origin_ns
    first, _ = _recorded(timeline) or (0, 0)
    return 0 if timeline.source.startswith(("nsys", "nvprof")) and 0 <= first < _DAY_NS else first


def _cut(timeline: Timeline, choice: WindowChoice) -> Timeline | None:
    """The timeline with the window; None where it does not have it."""
    steps = timeline.steps.sort_values("start", kind="stable")
    if choice.time_ns is not None:
        begin, end = (origin_ns(timeline) + moment for moment in choice.time_ns)
        if (recorded := _recorded(timeline)) is None or begin >= recorded[1] or end <= recorded[0]:
            return None
        inside = steps[(steps["start"] >= begin) & (steps["end"] <= end)]
        span = [max(begin, recorded[0]), min(end, recorded[1])]  # what was not recorded is not idle
        return _with(timeline, inside, np.array([span], dtype=np.int64), choice.text)
    if choice.steps is not None:
        chosen = steps[(steps["step"] >= choice.steps[0]) & (steps["step"] <= choice.steps[1])]
        if len(chosen):
            whole = np.array([[chosen["start"].min(), chosen["end"].max()]], dtype=np.int64)
            return _with(timeline, chosen, whole, STEPS)
        if not choice.name:
            return None
    found = _occurrences(timeline, choice)
    return None if found is None else _with(timeline, *found, choice.text)


def _with(timeline: Timeline, steps: "pd.DataFrame", spans: Intervals, label: str) -> Timeline:
    window = ChosenWindow(label, spans, origin_ns(timeline))
    return dataclasses.replace(timeline, steps=steps.reset_index(drop=True), window=window)


def _occurrences(timeline: Timeline, choice: WindowChoice) -> "tuple[pd.DataFrame, Intervals] | None":
    """The occurrences of a range, or of an operator where no range has the name, as steps; and their union."""
    import pandas as pd

    for table in (timeline.ranges, timeline.operators):
        if not len(table):
            continue
        chosen = np.zeros(len(table), dtype=bool)
        for matches in choice.matchers():
            if not chosen.any():
                chosen = named(table["name"], matches)
        chosen &= (table["end"] > table["start"]).to_numpy()
        if not chosen.any():
            continue
        starts, ends = (table[column].to_numpy(dtype=np.int64)[chosen] for column in ("start", "end"))
        order = np.lexsort((-ends, starts))
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.append(True, starts[1:] >= ends[:-1])
        ends = ends[np.append(np.flatnonzero(first)[1:], len(ends)) - 1]
        steps = pd.DataFrame({"step": np.arange(int(first.sum())), "start": starts[first], "end": ends})
        return steps.astype(STEP_COLUMNS), merged(steps["start"], steps["end"])
    return None


def _recorded(timeline: Timeline) -> tuple[int, int] | None:
    tables = (timeline.steps, timeline.kernels, timeline.api, timeline.operators, timeline.ranges)
    filled = [table for table in tables if len(table)]
    if not filled:
        return None
    return min(int(table["start"].min()) for table in filled), max(int(table["end"].max()) for table in filled)


def _recorded_seconds(timelines: Sequence[Timeline]) -> tuple[float, float]:
    """From when to when something was recorded on any rank, seconds since the origin of its window."""
    recorded = [(found, _recorded(found)) for found in timelines]
    spans = [[(moment - origin_ns(found)) / 1e9 for moment in own] for found, own in recorded if own is not None]
    return min(span[0] for span in spans), max(span[1] for span in spans)


def _there_is(timelines: Sequence[Timeline], choice: WindowChoice) -> str:
    if choice.time_ns is not None:
        if not any(_recorded(found) for found in timelines):
            return "nothing was recorded"
        begin, end = _recorded_seconds(timelines)
        return f"nothing was recorded then; the trace is from {number(begin)}s to {number(end)}s"
    have = sorted({int(step) for found in timelines for step in found.steps["step"]})
    if choice.steps is not None and (have or not choice.name):
        if not have:
            return "the trace marks no steps; give range:NAME or a time"
        return f"the trace has no such step; it has {_listed([str(step) for step in have])}"
    names = [str(name) for found in timelines for name in found.ranges["name"].unique()]
    if not names:
        return "the trace has no named ranges; give step:N or a time"
    close = [name for name in dict.fromkeys(names) if choice.name.strip("*").casefold() in name.casefold()]
    return f"no range has this name; there are {_listed(list(dict.fromkeys([*close, *names])))}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(name[:80] for name in names[:_MOST_NAMES]) + more
