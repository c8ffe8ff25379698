"""Why the GPU is idle: waiting for data, for communication, for the CPU to launch work, or something else.

An idle gap is a time in the window in which no kernel, copy or memset runs. The CPU can be its cause only until the
call that launches the next work has been made, so every gap [g0, g1) is cut there. Let [l0, l1) be that call:

- l0 <= g0: the work was in the queue, or on its way into it, when the gap began. All of the gap is *other*: latency
  between kernels, a dependency on another stream.
- l0 > g0: until min(l1, g1) the GPU had nothing to do. Of that part, where the CPU is in a data range
  (`bertbench:data`, a DataLoader's `__next__`) it is *data wait*; where it is in communication *communication wait*;
  the rest is *launch-bound*: Python, the framework or the driver was too slow. From l1 to g1: *other*, the latency of
  the launch.

A gap that no work ends is data or communication wait where the CPU is in one, *other* elsewhere. Where calls are not
recorded or do not tell what they launched, nothing is launch-bound: the whole of a gap is examined for the two waits,
and the rest is *other*, with the reason said. The four causes always add up to the idle time, to the nanosecond.

On a trace without GPU work, idle is where no thread runs a compute operator, and every such time is examined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.blocks import blocks, in_order
from analysis.metrics.time.host_activity import COMMUNICATION, DATA
from analysis.metrics.time.idle_gaps import PAUSE, Spread, idle_spread
from analysis.metrics.time.launches import launching_calls
from analysis.metrics.time.phases import phase_of
from analysis.metrics.time.temporal import Window, WorkSets, cpu_communication, window_set, work_sets, work_window
from analysis.names import collective
from analysis.spans import Intervals, difference, inside_ns, intersection, merged, total_ns, union, within
from analysis.timeline import Timeline, named

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("data_wait", "communication_wait", "launch_bound", "other")
_WAITING = ("wait", "barrier", "synchron")
Numbers = npt.NDArray[np.int64]
_NOTHING = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class IdleCauses:
    """Idle time of one rank by cause."""

    rank: int | None
    """Rank, None where the trace does not say."""
    span_ns: int
    idle_ns: int
    """Idle time in it; the four below add up to it."""
    data_wait_ns: int
    """Nothing was launched because the CPU loaded or waited for data."""
    communication_wait_ns: int
    """Nothing was launched because the CPU waited in communication."""
    launch_bound_ns: int
    """Nothing was launched because the CPU was late."""
    other_ns: int
    """Not explained by the three: latency of launches, dependencies between streams, the end of the trace."""
    on_gpu: bool
    """Whether it is a GPU that was idle; a CPU otherwise."""
    reason: str
    """Why launch_bound_ns could not be separated from the rest; "" if it could."""
    spread: Spread | None = None
    """Where in the window it is; None where that was not asked for."""

    def ns(self, cause: str) -> int:
        """Return the time of one of CAUSES, ns."""
        return int(getattr(self, f"{cause}_ns"))


def idle_causes(timeline: Timeline, window: Window = "steps") -> IdleCauses | None:
    """Return the idle time of one rank by cause; None for a trace without work.

    Args:
        timeline: what a reader returned.
        window: see temporal.temporal_breakdown; an idle time is the same as there, on a GPU.
    """
    sets = work_sets(timeline)
    bounds = work_window(timeline, sets, window)
    if bounds is None or bounds[1] <= bounds[0]:
        return None
    whole = window_set(timeline, bounds, window)
    on_gpu, active = sets.on_gpu, sets.active if sets.on_gpu else sets.compute
    worked = (int(active[0, 0]), int(active[-1, 1])) if len(active) else (0, 0)
    if on_gpu:
        host, launching, reason = _gaps(timeline, sets, whole)
        idle = difference(whole, sets.busy)
    else:
        idle = difference(whole, sets.compute)
        host, launching, reason = idle, _NOTHING, "not applicable: a CPU run launches no kernels"
    del sets, active  # large, as is what is made below
    host, launching = within(host, whole), within(launching, whole)
    loading, talking = _data_spans(timeline), _communication_spans(timeline)
    data = intersection(host, loading)
    communication = difference(intersection(host, talking), loading)
    late = difference(launching, union(data, communication))
    del host, launching
    found = [total_ns(part) for part in (data, communication, late)]
    told = union(data, communication, late)
    causes = dict(zip(CAUSES, (data, communication, late, difference(idle, told)), strict=True))
    return IdleCauses(
        rank=timeline.rank,
        span_ns=total_ns(whole),
        idle_ns=total_ns(idle),
        data_wait_ns=found[0],
        communication_wait_ns=found[1],
        launch_bound_ns=found[2],
        other_ns=total_ns(idle) - sum(found),
        on_gpu=on_gpu,
        reason=reason if len(idle) or not on_gpu else "",
        spread=idle_spread(timeline, bounds[0], idle, worked, causes, {DATA: loading, COMMUNICATION: talking}),
    )


_TYPES = dict.fromkeys(("idle_time_share", "repeating_ms"), "float64")


def idle_frame(rows: Sequence[IdleCauses]) -> "pd.DataFrame":
    """Return one row per rank and cause: rank, cause, idle_ms, idle_time_share, window_share, repeating_ms, note.

    The rows of a rank add up to its idle time. *start_up* and *tear_down* are what lies before the first kernel and
    after the last, whatever the CPU did; the other rows are of the time between (see idle_gaps). There, *launch_bound*
    is only what repeats, in gaps as short as a launch; all other time in which the CPU was late is *host_pause*.
    repeating_ms is what of a row the steps usually have. Without `spread`, the rows are CAUSES.
    """
    import pandas as pd

    records = []
    for row in rows:
        for cause, (length, repeating) in _by_row(row).items():
            note = row.reason if cause == "launch_bound" else ""
            share = length / row.idle_ns if row.idle_ns else None
            values = (row.rank, cause, length / 1e6, share, length / row.span_ns, repeating, note)
            records.append(dict(zip(_COLUMNS, values, strict=True)))
    frame = pd.DataFrame(records)
    return frame.astype({"rank": "Int64", **_TYPES}) if records else frame


_COLUMNS = ("rank", "cause", "idle_ms", "idle_time_share", "window_share", "repeating_ms", "note")


def _by_row(row: IdleCauses) -> dict[str, tuple[int, float | None]]:
    """Time of each row of a rank, ns, and what of it repeats, ms."""
    spread = row.spread
    if spread is None:
        return {cause: (row.ns(cause), None) for cause in CAUSES}
    found = {cause: (spread.steady_ns[cause], spread.repeating_ns[cause] / 1e6) for cause in CAUSES}
    late, repeating = spread.steady_ns["launch_bound"], spread.repeating_ns["launch_bound"]
    bound = spread.short_repeating_ns
    return {
        "start_up": (spread.start_up_ns, 0.0),
        "data_wait": found["data_wait"],
        "communication_wait": found["communication_wait"],
        "launch_bound": (bound, bound / 1e6),
        PAUSE: (late - bound, max(0, repeating - bound) / 1e6),
        "other": found["other"],
        "tear_down": (spread.tear_down_ns, 0.0),
    }


def _gaps(timeline: Timeline, sets: WorkSets, window: Intervals) -> tuple[Intervals, Intervals, str]:
    """Parts of gaps that the CPU can be the cause of, those of them that a late call ended, and why none was found."""
    busy, begin, end = sets.busy, int(window[0, 0]), int(window[-1, 1])
    if not len(busy):
        return merged([begin], [end]), _NOTHING, "all work of the trace has zero duration"
    # The first gap begins before anything that could end it, the last one is ended by nothing.
    first = min(begin, int(busy[0, 0]), *(int(table["start"].min()) for table in (timeline.api,) if len(table))) - 1
    last = max(end, int(busy[-1, 1])) + 1
    calls = launching_calls(timeline)
    if calls is None:
        said = "the trace does not record which calls launched its kernels"
        return difference(merged([first], [last]), busy), _NOTHING, said
    call_starts, call_ends = (timeline.api[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    work = _Launched.of(timeline, calls, (call_starts, call_ends), busy)
    host, launching = [], []
    unknown = count = 0
    for part in blocks(len(busy)):
        starts, stops = np.append(first, busy[part, 1][:-1]), busy[part, 0]
        first = int(busy[part.stop - 1, 1])
        next_call = work.next_call(stops)
        known = next_call >= 0
        late = known & (call_starts[next_call] > starts)
        reached = np.minimum(call_ends[next_call], stops)
        host.append(merged(starts, np.where(late, reached, np.where(known, starts, stops))))
        launching.append(merged(starts[late], reached[late]))
        inside = inside_ns(window, starts, stops) > 0
        unknown += int((~known & inside).sum())
        count += int(inside.sum())
    host.append(merged([first], [last]))
    reason = f"{unknown:,} of {count:,} gaps end with work whose call is not in the trace" if unknown else ""
    return np.concatenate(host), np.concatenate(launching), reason  # gaps do not touch: together they are sets


@dataclass(frozen=True, slots=True)
class _Launched:
    """Work that takes time, in order of start, and the call of each piece, -1 unknown."""

    starts: Numbers
    calls: Numbers

    @classmethod
    def of(cls, timeline: Timeline, calls: Numbers, spans: tuple[Numbers, Numbers], busy: Intervals) -> "_Launched":
        """Put work in order; of pieces that start together where the GPU becomes busy, the first launched is first.

        Of calls that begin together, in traces of coarse clocks, the first to end: the order of the rows decides
        nothing.
        """
        starts, ends = (timeline.kernels[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        lasting = ends > starts
        if not lasting.all():
            starts, calls = starts[lasting], calls[lasting]
        if not in_order(starts):
            order = np.argsort(starts, kind="stable")
            starts, calls = starts[order], calls[order]
        together = starts[1:][starts[1:] == starts[:-1]]
        if len(together) and np.isin(together, busy[:, 0]).any():
            called, ended = (np.where(calls >= 0, times[calls], np.iinfo(np.int64).max) for times in spans)
            calls = calls[np.lexsort((ended, called, starts))]
        return cls(starts, calls)

    def next_call(self, moments: Numbers) -> Numbers:
        """Return the call of the work that starts at each of n moments, shape (n,)."""
        return np.asarray(self.calls[np.searchsorted(self.starts, moments)])


def _data_spans(timeline: Timeline) -> Intervals:
    """Return when the CPU loads data or waits for it, ns of the trace's clock."""
    return union(*(_spans_of(table, lambda name: phase_of(name) == "data") for table in _host_tables(timeline)))


def _communication_spans(timeline: Timeline) -> Intervals:
    """When a thread of the CPU waits for other ranks: spans of gloo and MPI, barriers, the loop's own phase, and calls
    that wait for the GPU inside a range of communication."""
    parts = [cpu_communication(timeline)] if not len(timeline.kernels) or len(timeline.collectives) else []
    wide = []
    for table in _host_tables(timeline):
        parts.append(_spans_of(table, _waits_for_others))
        wide.append(_spans_of(table, lambda name: collective(name) is not None))
    inside = union(*wide)
    api = timeline.api
    if len(api) and len(inside):
        parts.append(intersection(inside, _spans_of(api, lambda name: "synchronize" in name.lower())))
    return union(*parts)


def _waits_for_others(name: str) -> bool:
    if phase_of(name) == "communication":
        return True
    lower = name.lower()
    library = any(word in lower for word in ("gloo", "mpi_", "c10d", "nccl"))
    if library and any(word in lower for word in _WAITING):
        return True
    return ("gloo:" in lower or "mpi_" in lower) and collective(name) is not None


def _host_tables(timeline: Timeline) -> "tuple[pd.DataFrame, pd.DataFrame]":
    return timeline.ranges, timeline.operators


def _spans_of(table: "pd.DataFrame", wanted: Callable[[str], bool]) -> Intervals:
    if not len(table):
        return _NOTHING
    chosen = named(table["name"], wanted)
    return merged(table["start"].to_numpy()[chosen], table["end"].to_numpy()[chosen])
