"""Why the GPU is idle: one row per gap, with its cause; and how far the CPU runs ahead of the GPU.

docs/explanation/timeline.md defines both. A gap [g0, g1) is a time in the window in which no kernel, copy or memset
runs; on a trace without GPU work, no compute operator. With [l0, l1) the call that launches the work that ends it, the
CPU can be the cause only if l0 > g0, and only until min(l1, g1): there the cause is what the CPU does, and *unknown*
elsewhere. A gap that no work ends, or for which calls are not recorded, is *data wait* or *communication* where the CPU
is in one. The causes of a gap add up to it, to the nanosecond; its own cause is the largest.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.intervals import Intervals, difference, intersection, total_ns, union
from analysis.metrics.time.phases import phase_of
from analysis.metrics.time.window import (
    NOTHING,
    Numbers,
    WorkSets,
    cpu_communication,
    device_sets,
    in_window,
    is_kernel,
    launching_calls,
    open_times,
    steps_at,
    work_time,
)
from analysis.names import collective
from analysis.timeline import Timeline, columns, kept, typed

CAUSES = ("data_wait", "communication", "synchronization", "allocator", "launch_bound", "unknown")
PARTS = ("start_up", "steady", "tear_down")
"""Before the first kernel of the trace, between, and after its last; copies and memsets are no kernels."""
LONG_NS = 500_000
"""A launch-bound gap from this length on is a pause of the CPU: no single launch takes as long."""
CAUSE_COLUMNS = columns("rank cause idle_ms idle_time_share window_share repeating_ms long_ms")
SHORT_DELAY_US = 10.0
"""A kernel that starts sooner than this after the end of its call found the GPU waiting: 1 to 3 us are usual then."""
QUEUE_COLUMNS = columns(
    "rank kernels matched delay_median_us found_idle_share depth_mean depth_max empty_share launches_per_step"
)
_SYNCHRONIZES = re.compile(
    r"\w*synchronize|\w+(?:EventQuery|StreamQuery)|(?:cu|cuda|hip)Mem(?:cpy|set)(?!\w*Async)", re.I
)
_ALLOCATES = re.compile(
    r"(?:cu|cuda|hip)\w*(?:Malloc|Free|Alloc|Host(?:Un)?register|Mem(?:Map|Unmap|Create|Release))", re.I
)
_WAITS = re.compile(r"(?=.*(?:gloo|mpi_|c10d|nccl)).*(?:wait|barrier|synchron)", re.I | re.S)
_OF_CPU = re.compile(r"gloo:|mpi_", re.I)
_FEWEST_STEPS, _GROUPS = 3, 10


def idle_gaps(timeline: Timeline) -> pd.DataFrame | None:
    """Return the idle gaps of one rank in the window, in order of start; None for a trace without work.

    Columns: rank, device (-1 on a CPU, and where the rank has one GPU), start_ns, end_ns, part (of PARTS), step (marked
    one in which it begins), cause, and the nanoseconds of each of CAUSES.
    """
    whole = work_time(timeline)
    if whole is None:
        return None
    marked, calls, launchers = (timeline.ranges, timeline.operators), (timeline.api,), _launchers(timeline)
    # Ranges of NCCL end when the collective is in the queue: calls in them that wait for the GPU do wait.
    synchronizing = open_times(calls, lambda name: "synchronize" in name.lower())
    in_collective = intersection(open_times(marked, lambda name: collective(name) is not None), synchronizing)
    of_cpu = cpu_communication(timeline) if not len(timeline.kernels) or len(timeline.collectives) else NOTHING
    waits = {
        "data_wait": open_times(marked, lambda name: phase_of(name) == "data"),
        "communication": union(of_cpu, open_times(marked, _waits_for_others), in_collective),
        "synchronization": open_times(calls, lambda name: bool(_SYNCHRONIZES.match(name)), launchers),
        "allocator": open_times(calls, lambda name: bool(_ALLOCATES.match(name)), launchers),
    }
    tables = [_gaps_of(timeline, one, whole, waits) for one in device_sets(timeline)]
    if len(tables) == 1:
        return tables[0]
    return pd.concat(tables).sort_values("start_ns", kind="stable", ignore_index=True)


def _gaps_of(timeline: Timeline, sets: WorkSets, whole: Intervals, waits: Mapping[str, Intervals]) -> pd.DataFrame:
    active = sets.active if sets.on_gpu else sets.compute
    idle = difference(whole, sets.busy if sets.on_gpu else active)
    begins, ends = idle[:, 0], idle[:, 1]
    host, late = _host_time(timeline, sets, idle) if sets.on_gpu else (idle, idle[:0])

    def by_gap(pieces: Intervals) -> Numbers:
        lengths = np.zeros(len(idle), dtype=np.int64)
        np.add.at(lengths, np.searchsorted(begins, pieces[:, 0], side="right") - 1, pieces[:, 1] - pieces[:, 0])
        return lengths

    causes, explained = {}, NOTHING
    for cause, spans in waits.items():
        examined = host if cause in ("data_wait", "communication") else late
        pieces = difference(intersection(examined, spans), explained)
        causes[cause], explained = by_gap(pieces), union(explained, pieces)
    causes["launch_bound"] = by_gap(late) - by_gap(intersection(late, explained))
    causes["unknown"] = ends - begins - sum(causes.values())
    first, last = (active[0, 0], active[-1, 1]) if len(active) else (whole[0, 0], whole[-1, 1])
    part = np.where(ends <= first, 0, np.where(begins >= last, 2, 1))
    largest = np.column_stack([causes[cause] for cause in CAUSES]).argmax(axis=1)
    return pd.DataFrame(
        {
            "rank": pd.array([timeline.rank], dtype="Int64").repeat(len(idle)),
            "device": -1 if sets.device is None else sets.device,
            "start_ns": begins,
            "end_ns": ends,
            "part": pd.Categorical.from_codes(part, pd.Index(PARTS)),
            "step": steps_at(timeline, begins),
            "cause": pd.Categorical.from_codes(largest, pd.Index(CAUSES)),
            **{f"{cause}_ns": causes[cause] for cause in CAUSES},
        }
    )


def _host_time(timeline: Timeline, sets: WorkSets, idle: Intervals) -> tuple[Intervals, Intervals]:
    """Return the parts of idle gaps that the CPU can be the cause of, and those of them that a late call ended."""
    busy, api, work, calls = sets.busy, timeline.api, timeline.work, launching_calls(timeline)
    if calls is None or not len(busy):
        return idle, idle[:0]
    never, behind = np.iinfo(np.int64), np.searchsorted(busy[:, 0], idle[:, 0], side="right")
    rows = np.flatnonzero((work.end > work.start) & (sets.device is None or work.device == sets.device))
    begun = work.start[rows]
    called, returned = (
        np.append(api[name].to_numpy(dtype=np.int64), never.max)[calls[rows]] for name in ("start", "end")
    )
    # Of work that starts together the first launched ends the gap; of calls that begin together the first to end.
    first = np.lexsort((returned, called, begun))[np.searchsorted(begun, busy[:, 0])]
    # The first gap begins before anything that could end it, the last one is ended by nothing.
    called, returned = (np.append(moments[first], never.max)[behind] for moments in (called, returned))
    late = (called > np.append(never.min, busy[:, 1])[behind]) & (called < never.max)
    late_end = np.where(late, np.clip(returned, *idle.T), idle[:, 0])
    host_end = np.where(called < never.max, late_end, idle[:, 1])
    host, ended = (np.column_stack([idle[:, 0], end])[end > idle[:, 0]] for end in (host_end, late_end))
    return host, ended


def idle_causes(timeline: Timeline, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time of one rank by cause: CAUSE_COLUMNS; causes that only a GPU has are left out on a CPU.

    start_up and tear_down are of time before the first and after the last kernel, whatever the CPU did. Times are means
    over GPUs. repeating_ms is what the steps usually have, without launch-bound gaps of LONG_NS or more; long_ms is in
    gaps of LONG_NS or more.
    """
    whole, devices, lengths = work_time(timeline), max(1, gaps["device"].nunique()), gaps["end_ns"] - gaps["start_ns"]
    steady, rows = gaps[gaps["part"] == "steady"], []
    causes = CAUSES if len(timeline.work) else ("data_wait", "communication", "unknown")
    for cause in ("start_up", *causes, "tear_down"):
        row = {"rank": timeline.rank, "cause": cause, "repeating_ms": 0.0, "long_ms": 0.0}
        if cause in PARTS:
            row["idle_ms"] = lengths[gaps["part"] == cause].sum()
        else:
            values = steady[f"{cause}_ns"]
            is_long = values >= LONG_NS
            row |= {"idle_ms": values.sum(), "long_ms": values[is_long].sum()}
            row["repeating_ms"] = _repeating(timeline, steady, values.mask(is_long & (cause == "launch_bound"), 0))
        rows.append(row)
    table = pd.DataFrame(rows)
    table["idle_time_share"] = table["idle_ms"] / (lengths.sum() or np.nan)
    table["window_share"] = table["idle_ms"] / devices / (total_ns(NOTHING if whole is None else whole) or np.nan)
    table[["idle_ms", "repeating_ms", "long_ms"]] /= devices * 1e6
    return table[list(CAUSE_COLUMNS)].astype(CAUSE_COLUMNS)


def _repeating(timeline: Timeline, gaps: pd.DataFrame, values: "pd.Series[int]") -> float:
    """Return the time of the median step times the steps, ns; of fewer than three steps, of ten groups of gaps."""
    steps = timeline.steps["step"]
    if len(steps) >= _FEWEST_STEPS:
        by_step = values.groupby(gaps["step"]).sum().reindex(steps.astype("Int64"), fill_value=0)
        usual = float(by_step.median()) * len(steps)
    elif len(gaps) >= _FEWEST_STEPS:
        groups = np.array_split(values.to_numpy(), min(_GROUPS, len(gaps)))
        usual = float(np.median([group.sum() for group in groups])) * len(groups)
    else:
        return 0.0
    return min(usual, float(values.sum()))


def largest_gaps(timeline: Timeline, gaps: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Return the longest gaps of one rank, the longest first.

    Columns: rank, start_ms (since the begin of the window), length_ms, idle_time_share, part, step, cause, call.
    """
    whole, lengths = work_time(timeline), gaps["end_ns"] - gaps["start_ns"]
    largest = gaps.loc[lengths.nlargest(count).index]
    calls = [_call_in(timeline, *span) for span in largest[["start_ns", "end_ns"]].itertuples(index=False)]
    table = largest[["rank", "part", "step", "cause"]].astype({"part": "str", "cause": "str"}).assign(call=calls)
    table.insert(1, "start_ms", (largest["start_ns"] - (0 if whole is None else int(whole[0, 0]))) / 1e6)
    table.insert(2, "length_ms", lengths[largest.index] / 1e6)
    table.insert(3, "idle_time_share", lengths[largest.index] / lengths.sum())
    return table.reset_index(drop=True)


def _call_in(timeline: Timeline, begin: int, end: int) -> str:
    """Return the shortest call, operator or range that covers at least half of [begin, end), ns; "" for none.

    Marked steps do not count, nor do calls of the operating system on threads that launch nothing.
    """
    launchers, parts = _launchers(timeline), []
    for table in (timeline.api, timeline.operators, timeline.host, timeline.ranges):
        starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        covers = 2 * (np.minimum(ends, end) - np.maximum(starts, begin)) >= end - begin
        rows = table.loc[covers, ["name", "thread", "start", "end"]]
        if table is timeline.host and launchers:
            rows = rows[rows["thread"].isin(launchers)]
        parts.append(rows)
    around = pd.concat(parts, ignore_index=True)
    steps = set(zip(timeline.steps["start"], timeline.steps["end"], strict=True))
    around = around[[span not in steps for span in zip(around["start"], around["end"], strict=True)]]
    shortest = (around["end"] - around["start"]).to_numpy().argmin() if len(around) else 0
    return str(around["name"].iloc[shortest]) if len(around) else ""


@kept
def _launchers(timeline: Timeline) -> set[str]:
    """Return the threads that launch work, and "" for rows whose thread is not recorded; none where it is unknown."""
    calls = launching_calls(timeline)
    if calls is None:
        return set()
    return {"", *map(str, timeline.api["thread"].iloc[calls[calls >= 0]].unique())}


def _waits_for_others(name: str) -> bool:
    of_cpu = _OF_CPU.search(name) and collective(name) is not None
    return bool(phase_of(name) == "communication" or _WAITS.match(name) or of_cpu)


def launch_queue(timelines: Iterable[Timeline]) -> pd.DataFrame:
    """Return one row per rank whose trace ties kernels to calls, copies not counted: QUEUE_COLUMNS.

    kernels are those launched in the window, matched those of them whose call is in the trace: the rest is of these.
    A delay is from the start of the call to that of the kernel, which may begin before the call returns.
    found_idle_share is of kernels that start SHORT_DELAY_US after their call, or were launched when the GPU was idle.
    depth is of kernels launched and not yet started, empty_share the time with none, from first call to last start.
    """
    return typed([row for row in map(_queue, timelines) if row], QUEUE_COLUMNS)


def _queue(timeline: Timeline) -> dict[str, Any] | None:
    calls, work, api = launching_calls(timeline), timeline.work, timeline.api
    if calls is None:
        return None
    counted = in_window(timeline)[0] & is_kernel(timeline)
    chosen = counted & (calls >= 0)
    if not chosen.any():
        return None
    used, started = calls[chosen], work.start[chosen]
    called, returned = (api[name].to_numpy(dtype=np.int64)[used] for name in ("start", "end"))
    # Until when the work before each piece runs.
    until = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(work.end)[:-1])[chosen]
    waited = (started - returned < SHORT_DELAY_US * 1e3) | (until <= called)
    # What starts before its call is never in the queue. Work is in order of start.
    queued = started > called
    entered, left = np.sort(called[queued]), started[queued]
    depth = np.arange(1, len(left) + 1) - np.searchsorted(left, entered, side="right")
    span = int(left[-1] - entered[0]) if len(left) else 1
    empty = int(np.maximum(entered[1:] - left[:-1], 0).sum())
    steps = len(timeline.steps)
    return {
        "rank": timeline.rank,
        "kernels": int(counted.sum()),
        "matched": len(used),
        "delay_median_us": float(np.median((started - called).clip(min=0))) / 1e3,
        "found_idle_share": waited.mean(),
        "depth_mean": int((left - entered).sum()) / span,
        "depth_max": int(depth.max(initial=0)),
        "empty_share": empty / span,
        "launches_per_step": int((np.bincount(used) > 0).sum()) / steps if steps else None,
    }
