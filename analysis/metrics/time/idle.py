"""Why the GPU is idle: one row per gap, with its cause and the call that the CPU was in.

A gap is a time in the window in which no kernel, copy or memset runs. The CPU can be its cause only until the call that
launches the next work has been made, so every gap [g0, g1) is cut there. Let [l0, l1) be that call:

- l0 <= g0: the work was in the queue, or on its way into it, when the gap began. All of the gap is *unknown*: latency
  between kernels, a dependency on another stream.
- l0 > g0: until min(l1, g1) the GPU had nothing to do. That part is *data wait* where the CPU is in a data range
  (`bertbench:data`, a DataLoader's `__next__`), *communication* where it waits in communication, *synchronization*
  where a launching thread waits in a call for the GPU, *allocator* where it allocates or frees memory, and
  *launch-bound* elsewhere: Python, the framework or the driver was too slow. From l1 to g1: unknown.

A gap that no work ends is data wait or communication where the CPU is in one, unknown elsewhere. So is every gap where
calls are not recorded or do not tell what they launched. The causes of a gap add up to it, to the nanosecond; its cause
is the one that takes most of it. On a trace without GPU work, a gap is a time in which no thread runs a compute
operator. A rank with several GPUs has the gaps of each.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import launching_calls
from analysis.metrics.time.phases import phase_of
from analysis.metrics.time.window import step_places, work_time
from analysis.metrics.time.work import NOTHING, WorkSets, cpu_communication, device_sets
from analysis.names import collective
from analysis.spans import Intervals, difference, inside_each, intersection, merged, total_ns, union, within
from analysis.timeline import Timeline, name_codes, named, typed

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

CAUSES = ("data_wait", "communication", "synchronization", "allocator", "launch_bound", "unknown")
PARTS = ("start_up", "steady", "tear_down")
"""Before the first kernel of the trace, between, and after its last; copies and memsets are no kernels."""
LONG_NS = 500_000
"""A launch-bound gap from this length on is a pause of the CPU: no single launch takes as long."""
GAP_COLUMNS = {
    "rank": "Int64",
    "device": "int64",  # -1 on a CPU, and where the rank has one GPU
    "start_ns": "int64",
    "end_ns": "int64",
    "part": "str",
    "step": "Int64",  # marked step in which it begins
    "cause": "str",
    **{f"{cause}_ns": "int64" for cause in CAUSES},
}
CAUSE_COLUMNS = {
    "rank": "Int64",
    "cause": "str",  # of CAUSES, between first and last kernel; start_up and tear_down whatever the CPU did
    "idle_ms": "float64",  # mean over GPUs; those of a rank add up to its idle time
    "idle_time_share": "float64",
    "window_share": "float64",
    "repeating_ms": "float64",  # what the steps usually have, without launch-bound gaps of LONG_NS or more
    "long_ms": "float64",  # in gaps of LONG_NS or more
}
_SYNCHRONIZES = re.compile(
    r"\w*synchronize|\w+(?:EventQuery|StreamQuery)|(?:cu|cuda|hip)Mem(?:cpy|set)(?!\w*Async)", re.I
)
_ALLOCATES = re.compile(
    r"(?:cu|cuda|hip)\w*(?:Malloc|Free|Alloc|Host(?:Un)?register|Mem(?:Map|Unmap|Create|Release))", re.I
)
_FEWEST_STEPS, _GROUPS = 3, 10


def idle_gaps(timeline: Timeline) -> "pd.DataFrame | None":
    """Return the idle gaps of one rank in the window, in order of start: GAP_COLUMNS; None for a trace without work."""
    import pandas as pd

    whole = work_time(timeline)
    if whole is None:
        return None
    launchers = _launchers(timeline)
    launching = named(timeline.api["thread"], lambda thread: thread in launchers)
    calls = timeline.api.loc[launching, ["name", "start", "end"]]
    waits = {
        "data_wait": _open((timeline.ranges, timeline.operators), lambda name: phase_of(name) == "data"),
        "communication": _communication_spans(timeline),
        "synchronization": _open((calls,), lambda name: bool(_SYNCHRONIZES.match(name))),
        "allocator": _open((calls,), lambda name: bool(_ALLOCATES.match(name))),
    }
    sets = device_sets(timeline)
    tables = [_gaps_of(timeline, one, whole, waits) for one in sets]
    table = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
    return table.sort_values("start_ns", kind="stable", ignore_index=True)


def _gaps_of(timeline: Timeline, sets: WorkSets, whole: Intervals, waits: Mapping[str, Intervals]) -> "pd.DataFrame":
    import pandas as pd

    if sets.on_gpu:
        idle, active = difference(whole, sets.busy), sets.active
        host, late = (within(part, whole) for part in _host_time(timeline, sets, whole))
    else:
        idle, active = difference(whole, sets.compute), sets.compute
        host, late = idle, NOTHING
    pieces, explained = {}, NOTHING
    for cause, spans in waits.items():
        examined = host if cause in ("data_wait", "communication") else late
        pieces[cause] = difference(intersection(examined, spans), explained)
        explained = union(explained, pieces[cause])
    pieces["launch_bound"] = difference(late, explained)
    pieces["unknown"] = difference(idle, union(explained, pieces["launch_bound"]))
    lengths = {cause: inside_each(pieces[cause], idle) for cause in CAUSES}
    first, last = (active[0, 0], active[-1, 1]) if len(active) else (whole[0, 0], whole[-1, 1])
    part = np.where(idle[:, 1] <= first, 0, np.where(idle[:, 0] >= last, 2, 1))
    steps = timeline.steps.sort_values("start", kind="stable")["step"].astype("Int64").array
    largest = np.argmax(np.stack(list(lengths.values())), axis=0)
    frame = pd.DataFrame(
        {
            "rank": pd.array([timeline.rank] * len(idle), dtype="Int64"),
            "device": -1 if sets.device is None else sets.device,
            "start_ns": idle[:, 0],
            "end_ns": idle[:, 1],
            "part": np.array(PARTS)[part],
            "step": steps.take(step_places(timeline, idle[:, 0]), allow_fill=True),
            "cause": np.array(CAUSES)[largest],
            **{f"{cause}_ns": values for cause, values in lengths.items()},
        }
    )
    return frame.astype(GAP_COLUMNS)


def _host_time(timeline: Timeline, sets: WorkSets, whole: Intervals) -> tuple[Intervals, Intervals]:
    """Return the parts of gaps that the CPU can be the cause of, and those of them that a late call ended."""
    busy, api, work = sets.busy, timeline.api, timeline.work
    if not len(busy):
        return whole, NOTHING
    # The first gap begins before anything that could end it, the last one is ended by nothing.
    before = min(int(whole[0, 0]), int(busy[0, 0]), int(api["start"].min()) if len(api) else int(busy[0, 0])) - 1
    after = max(int(whole[-1, 1]), int(busy[-1, 1])) + 1
    calls = launching_calls(timeline)
    if calls is None:
        return difference(merged([before], [after]), busy), NOTHING
    call_starts, call_ends = (np.append(api[name].to_numpy(dtype=np.int64), after) for name in ("start", "end"))
    starts, stops = np.append(before, busy[:-1, 1]), busy[:, 0]
    ends_gap = (work.end > work.start) & np.isin(work.start, stops)
    if sets.device is not None:
        ends_gap &= work.device == sets.device
    begun, launched = work.start[ends_gap], calls[ends_gap]
    # Of work that starts together the first launched counts; of calls that begin together the first to end.
    order = np.lexsort((call_ends[launched], call_starts[launched], begun))
    call = launched[order][np.searchsorted(begun[order], stops)]
    late = (call >= 0) & (call_starts[call] > starts)
    reached = np.minimum(call_ends[call], stops)
    host = merged(starts, np.where(late, reached, np.where(call >= 0, starts, stops)))
    return union(host, merged([busy[-1, 1]], [after])), merged(starts[late], reached[late])


def idle_causes(timeline: Timeline, gaps: "pd.DataFrame") -> "pd.DataFrame":
    """Return the idle time of one rank by cause: CAUSE_COLUMNS; causes that only a GPU has are left out on a CPU.

    A cause *repeats* where a step usually has it: its steady time in the median step, times the steps. Fewer than three
    marked steps have no usual one: there the steady gaps, in order of time, are divided into ten groups of equal
    number, and the median group counts, times the groups. So a few gaps never repeat, however long they are.

    Args:
        timeline: what a reader returned.
        gaps: of `idle_gaps`.
    """
    whole = work_time(timeline)
    span, devices = total_ns(whole) if whole is not None else 0, max(1, gaps["device"].nunique())
    idle = int((gaps["end_ns"] - gaps["start_ns"]).sum())
    on_gpu = len(timeline.work) > 0
    steady = gaps[gaps["part"] == "steady"]
    rows = []
    for cause in ("start_up", *(CAUSES if on_gpu else ("data_wait", "communication", "unknown")), "tear_down"):
        if cause in PARTS:
            part = gaps[gaps["part"] == cause]
            length, repeating, long = int((part["end_ns"] - part["start_ns"]).sum()), 0.0, 0
        else:
            values = steady[f"{cause}_ns"]
            is_long = values >= LONG_NS
            length, long = int(values.sum()), int(values[is_long].sum())
            repeating = _repeating(timeline, steady, values.mask(is_long, 0) if cause == "launch_bound" else values)
        rows.append(
            {
                "rank": timeline.rank,
                "cause": cause,
                "idle_ms": length / devices / 1e6,
                "idle_time_share": length / idle if idle else None,
                "window_share": length / devices / span if span else None,
                "repeating_ms": repeating / devices / 1e6,
                "long_ms": long / devices / 1e6,
            }
        )
    return typed(rows, CAUSE_COLUMNS)


def _repeating(timeline: Timeline, gaps: "pd.DataFrame", values: "pd.Series[int]") -> float:
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


def largest_gaps(timeline: Timeline, gaps: "pd.DataFrame", count: int = 5) -> "pd.DataFrame":
    """Return the longest gaps of one rank, the longest first.

    Columns: rank, start_ms (since the begin of the window), length_ms, idle_time_share, part, step, cause, call (of the
    CPU, see `call_in`).

    Args:
        timeline: what a reader returned.
        gaps: of `idle_gaps`.
        count: how many.
    """
    whole, lengths = work_time(timeline), gaps["end_ns"] - gaps["start_ns"]
    largest = gaps.loc[lengths.nlargest(count).index]
    calls = [call_in(timeline, *span) for span in largest[["start_ns", "end_ns"]].itertuples(index=False)]
    table = largest[["rank", "part", "step", "cause"]].assign(call=calls)
    table.insert(1, "start_ms", (largest["start_ns"] - (0 if whole is None else int(whole[0, 0]))) / 1e6)
    table.insert(2, "length_ms", lengths[largest.index] / 1e6)
    table.insert(3, "idle_time_share", lengths[largest.index] / lengths.sum())
    return table.reset_index(drop=True)


def call_in(timeline: Timeline, begin: int, end: int) -> str:
    """Return the shortest call, operator or range that covers at least half of [begin, end), ns; "" for none.

    Marked steps do not count, nor do calls of the operating system on threads that launch nothing.
    """
    steps = set(zip(timeline.steps["start"].tolist(), timeline.steps["end"].tolist(), strict=True))
    launchers = _launchers(timeline)
    best = (np.iinfo(np.int64).max, "")
    for table in (timeline.api, timeline.operators, timeline.host, timeline.ranges):
        starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        covering = np.flatnonzero(2 * (ends.clip(max=end) - starts.clip(min=begin)) >= end - begin)
        for row in covering.tolist():
            start, stop = int(starts[row]), int(ends[row])
            elsewhere = table is timeline.host and launchers and str(table["thread"].iloc[row]) not in launchers
            if stop - start < best[0] and (start, stop) not in steps and not elsewhere:
                best = (stop - start, str(table["name"].iloc[row]))
    return best[1]


def _launchers(timeline: Timeline) -> set[str]:
    """Return the threads that launch work, and "" for rows whose thread is not recorded."""
    calls = launching_calls(timeline)
    if calls is None:
        return set()
    codes, names = name_codes(timeline.api["thread"])
    return {"", *(names[code] for code in np.unique(codes[calls[calls >= 0]]).tolist())}


def _communication_spans(timeline: Timeline) -> Intervals:
    """Return when a thread of the CPU waits for other ranks: spans of gloo and MPI, barriers, the loop's own phase, and
    calls that wait for the GPU inside a range of communication."""
    spans = cpu_communication(timeline) if not len(timeline.kernels) or len(timeline.collectives) else NOTHING
    marked = (timeline.ranges, timeline.operators)
    inside = _open(marked, lambda name: collective(name) is not None)
    synchronizing = _open((timeline.api,), lambda name: "synchronize" in name.lower())
    return union(spans, _open(marked, _waits_for_others), intersection(inside, synchronizing))


def _waits_for_others(name: str) -> bool:
    lower = name.lower()
    library = any(word in lower for word in ("gloo", "mpi_", "c10d", "nccl"))
    if phase_of(name) == "communication" or (
        library and any(word in lower for word in ("wait", "barrier", "synchron"))
    ):
        return True
    return ("gloo:" in lower or "mpi_" in lower) and collective(name) is not None


def _open(tables: "Iterable[pd.DataFrame]", wanted: Callable[[str], bool]) -> Intervals:
    """Return when a row of a wanted name is open in any of the tables."""
    parts = []
    for table in tables:
        chosen = named(table["name"], wanted)
        parts.append(merged(table["start"].to_numpy()[chosen], table["end"].to_numpy()[chosen]))
    return union(*parts)
