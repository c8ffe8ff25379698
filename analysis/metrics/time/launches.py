"""Which call launched which kernel: the kernels of the window, the launch queue, and what each step launched.

The window is the marked steps, or the whole trace where none is marked. A kernel is of the window, with all its length,
when it was launched in it; where the launching call is not known, when it begins in it. A GPU may run behind the CPU:
the last step's kernels can end after the step, and kernels from before the recording can run in the first (see
`before_recording`).

The CPU puts kernels into a queue by calls such as cudaLaunchKernel; correlation ids tie a kernel to its call. A delay
is from the *start* of the call, as a kernel may begin before the call returns. A kernel that starts within microseconds
of the *end* of its call (the call takes 5 us, under a profiler 10) found the queue empty: the GPU waited for the CPU. A
long delay is healthy: the CPU runs ahead.

What ran in the marked steps depends on how far behind the GPU is at either end; what was launched in them
(`launched_work`) does not, and is what to compare between ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.blocks import blocks
from analysis.names import communicates
from analysis.spans import levels, merged, total_ns
from analysis.timeline import MOSTLY, GpuWork, Mask, Timeline

if TYPE_CHECKING:
    import pandas as pd


Numbers = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
"""Places in a table, of int32 where it is not longer."""

_DENSE = 4
"""Correlation ids are looked up in a table of all from the least to the largest where those are so many times the calls
at most; else by search."""


def launching_calls(timeline: Timeline) -> Rows | None:
    """Return for each row of `kernels` the row of `api` that launched it, -1 unknown; None where no row is known.

    Several rows of one call (a CUDA graph's) have the same. Of calls that share an id the first counts.
    """
    kernels, api = timeline.kernels, timeline.api
    if (
        "correlation_id" not in kernels.columns
        or "correlation_id" not in api.columns
        or not len(kernels)
        or not len(api)
    ):
        return None
    found = calls_with(api, kernels["correlation_id"].to_numpy())
    return found if (found >= 0).any() else None


def calls_with(api: "pd.DataFrame", correlations: Rows) -> Rows:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has.

    Ids begin with 1; 0 is no call's.
    """
    have = api["correlation_id"].to_numpy()
    found: Rows = np.full(len(correlations), -1, dtype=np.int32 if len(have) < 2**31 else np.int64)
    if not len(have):
        return found
    low, high = int(have.min()), int(have.max())
    if high - low > _DENSE * len(have):
        _search(have, correlations, found)
        return found
    table = np.full(high - low + 1, -1, dtype=found.dtype)
    for part in reversed(list(blocks(len(have)))):  # of several the one set last: the first
        table[have[part][::-1].astype(np.int64) - low] = np.arange(part.start, part.stop, dtype=found.dtype)[::-1]
    for part in blocks(len(correlations)):
        own = correlations[part]
        known = (own >= max(low, 1)) & (own <= high)
        found[part][known] = table[own[known].astype(np.int64) - low]
    return found


def _search(have: Rows, correlations: Rows, found: Rows) -> None:
    """Write the same into `found`."""
    order = np.argsort(have, kind="stable")
    identifiers = have[order]
    for part in blocks(len(correlations)):
        own = correlations[part]
        place = np.searchsorted(identifiers, own).clip(max=len(identifiers) - 1)
        known = (identifiers[place] == own) & (own > 0)
        found[part][known] = order[place[known]]


def in_window(timeline: Timeline) -> tuple[Mask, int]:
    """Return which rows of `kernels` are of the window, and the window's length in ns."""
    work, spans = timeline.work, timeline.spans
    if not len(work) or spans is None:
        return whole_trace(work)
    moments = work.start
    calls = launching_calls(timeline)
    if calls is None:
        return timeline.inside(moments), total_ns(spans)
    moments = np.where(calls >= 0, timeline.api["start"].to_numpy(dtype=np.int64)[calls], moments)
    return timeline.inside(moments) & ~_early(work, calls), total_ns(spans)


def before_recording(timeline: Timeline) -> int:
    """Return how many rows of `kernels` begin in the marked steps but were launched before the calls were recorded.

    Work of one stream runs in the order of its launches. Where more than half of all work is tied to calls, work
    without a call that begins before the first of its stream that has one (of a stream that has none: before the first
    of any) was launched before that, when no call was recorded. It belongs to no step, just as what the last step
    launched belongs to it though it runs later: so the work of each step counts once.
    """
    calls = launching_calls(timeline)
    if calls is None or timeline.spans is None:
        return 0
    work = timeline.work
    return int((_early(work, calls) & timeline.inside(work.start)).sum())


def _early(work: GpuWork, calls: Rows) -> Mask:
    """Return which pieces were launched before the recording began, shape (n,); none where most are tied to no call."""
    known = calls >= 0
    if known.all() or 2 * known.sum() <= len(known):
        return np.zeros(len(known), dtype=bool)
    # One number per stream of a device.
    _, streams = np.unique(np.stack([work.device, work.stream]), axis=1, return_inverse=True)
    streams = streams.reshape(-1)
    first = np.full(int(streams.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, streams[known], work.start[known])
    first[first == np.iinfo(np.int64).max] = work.start[known].min()
    early: Mask = ~known & (work.start < first[streams])
    return early


def whole_trace(work: GpuWork) -> tuple[Mask, int]:
    """Return all pieces of work as those of the window, and the time from the first start to the last end, ns."""
    return np.ones(len(work), dtype=bool), int(work.end.max() - work.start.min()) if len(work) else 0


SHORT_DELAY_US = 10.0
"""A kernel that starts sooner than this after the end of its call found the GPU waiting: 1 to 3 us are usual then."""


@dataclass(frozen=True, slots=True)
class LaunchQueue:
    """The launch queue of one rank, over the kernels of the window (see `in_window`); copies and memsets are none."""

    rank: int | None
    """Rank, None where the trace does not say."""
    kernels: int
    """Kernels in the window, CUDA graphs recorded as one piece among them."""
    matched: int
    """Those whose launching call is in the trace; all other numbers are of these."""
    delay_median_us: float
    """Median time from the start of the call to the start of the kernel."""
    delay_p5_us: float
    """Its 5th percentile."""
    delay_p95_us: float
    """Its 95th percentile."""
    short_delay_share: float
    """Share of the kernels that start sooner than `SHORT_DELAY_US` after its call's end: the GPU waited for the CPU."""
    found_idle_share: float
    """Share of the kernels that found the GPU waiting: they start so soon, or were launched when nothing ran."""
    negative_delays: int
    """Kernels that begin before their call does, by the trace's clocks; each counts as a delay of 0."""
    depth_mean: float
    """Launched and not yet started kernels, mean over time from the first call to the last start."""
    depth_max: int
    """The most of them at a time."""
    empty_share: float
    """Share of that time in which none was waiting."""
    launches_per_step: float | None
    """Launching calls per marked step, None where no step is marked."""


def launch_queue(timeline: Timeline) -> LaunchQueue | None:
    """Return the launch queue of one rank; None where the trace does not tie its kernels to calls."""
    calls = launching_calls(timeline)
    kept, _ = in_window(timeline)
    kept = kept & ~timeline.work.is_kind("memcpy", "memset")
    if calls is None:
        return None
    chosen = kept & (calls >= 0)
    matched = int(chosen.sum())
    if not matched:
        return None
    delays = _delays(timeline, calls, chosen, matched)
    low, median, high = np.percentile(delays.us, [5, 50, 95], overwrite_input=True)
    launches = _used(timeline, calls, chosen) if len(timeline.steps) else 0
    del calls
    depth = _depth(delays.called, delays.started)
    return LaunchQueue(
        rank=timeline.rank,
        kernels=int(kept.sum()),
        matched=matched,
        delay_median_us=float(median),
        delay_p5_us=float(low),
        delay_p95_us=float(high),
        short_delay_share=delays.short / matched,
        found_idle_share=delays.idle / matched,
        negative_delays=delays.negative,
        depth_mean=depth.area / depth.span_ns if depth.span_ns else 0.0,
        depth_max=depth.most,
        empty_share=depth.empty_ns / depth.span_ns if depth.span_ns else 0.0,
        launches_per_step=launches / len(timeline.steps) if len(timeline.steps) else None,
    )


def _used(timeline: Timeline, calls: Rows, chosen: Mask) -> int:
    used = np.zeros(len(timeline.api), dtype=bool)
    used[calls[chosen]] = True
    return int(used.sum())


@dataclass(slots=True)
class _Delays:
    """Of m pieces of work: when each was launched and started, ns, and its delay; how many are of which sort."""

    called: Numbers
    started: Numbers
    us: npt.NDArray[np.float64]
    short: int = 0
    idle: int = 0
    negative: int = 0


def _delays(timeline: Timeline, calls: Rows, chosen: Mask, matched: int) -> _Delays:
    begins, stops = (timeline.api[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    starts, ends = (timeline.kernels[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    called_at, started_at = np.empty((2, matched), dtype=np.int64)
    found = _Delays(called_at, started_at, np.empty(matched))
    first, running_until = 0, np.iinfo(np.int64).min
    for part in blocks(len(chosen)):
        own = chosen[part]
        call, started = calls[part][own], starts[part][own]
        called, after = begins[call], started - stops[call]
        # Until when the work before each piece runs.
        until = np.maximum.accumulate(np.append(running_until, ends[part]))
        running_until, until = int(until[-1]), until[:-1][own]
        short = after < SHORT_DELAY_US * 1e3
        place = slice(first, first + len(call))
        found.called[place], found.started[place] = called, started
        found.us[place] = (started - called).clip(min=0) / 1e3
        found.short += int(short.sum())
        found.idle += int((short | (until <= called)).sum())
        found.negative += int((started < called).sum())
        first = place.stop
    return found


@dataclass(slots=True)
class _Depth:
    """The depth of the queue over time."""

    span_ns: int = 0
    area: int = 0
    """Depth times time, ns."""
    empty_ns: int = 0
    most: int = 0


def _depth(called: Numbers, started: Numbers) -> _Depth:
    found = _Depth()
    last, waiting = None, 0
    for times, depth in _queue(called, started):
        lengths = np.diff(times, prepend=times[0] if last is None else last)
        before = np.append(waiting, depth[:-1])
        found.span_ns += int(lengths.sum())
        found.area += int((before * lengths).sum())
        found.empty_ns += int(lengths[before == 0].sum())
        found.most = max(found.most, int(depth.max()))
        last, waiting = int(times[-1]), int(depth[-1])
    return found


def _queue(called: Numbers, started: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield times at which the depth of the queue changes, ns, in order, and the depth from then on, some at a time.

    What starts before its call never waits.
    """
    waits = started > called
    if not waits.all():
        called, started = called[waits], started[waits]
    del waits
    return levels(called, started)


@dataclass(frozen=True, slots=True)
class LaunchedWork:
    """Work of one rank by the marked step whose CPU launched it, in order of start; arrays of one value per step.

    Times are lengths of unions, ns, of whole pieces of work, wherever they ran.
    """

    compute_ns: Numbers
    communication_ns: Numbers
    memory_ns: Numbers
    busy_ns: Numbers
    kernels: Numbers
    end_ns: Numbers
    """When the last of it ended; -1 where the step launched nothing."""
    total_compute_ns: int
    """Computation of all steps together."""


def launched_work(timeline: Timeline) -> LaunchedWork | None:
    """Return the work launched in each marked step.

    None where no step is marked, or less than MOSTLY of the kernels that compute can be tied to a call; those that were
    launched before the recording began are of no step.
    """
    if not len(timeline.steps) or not len(timeline.kernels):
        return None
    calls = launching_calls(timeline)
    work = timeline.work
    copies, talks = work.is_kind("memcpy", "memset"), work.is_named(communicates)
    computes = ~copies & ~talks
    if calls is None:
        return None
    counted = computes & ~_early(work, calls)
    if (calls[counted] >= 0).sum() < MOSTLY * counted.sum():
        return None
    known = np.flatnonzero(calls >= 0)
    called = timeline.api["start"].to_numpy(dtype=np.int64)[calls[known]]
    steps = timeline.steps.sort_values("start", kind="stable")
    begins, stops = (steps[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    place = np.searchsorted(begins, called, side="right") - 1
    inside = np.flatnonzero((place >= 0) & (called < stops[place]))
    order = inside[np.argsort(place[inside], kind="stable")]
    parts = np.split(known[order], np.searchsorted(place[order], np.arange(1, len(steps))))

    def lengths(wanted: Mask) -> Numbers:
        chosen = [own[wanted[own]] for own in parts]
        return np.array([total_ns(merged(work.start[own], work.end[own])) for own in chosen], dtype=np.int64)

    every = known[order][computes[known[order]]]
    return LaunchedWork(
        compute_ns=lengths(computes),
        communication_ns=lengths(talks & ~copies),
        memory_ns=lengths(copies),
        busy_ns=lengths(np.ones(len(work), dtype=bool)),
        kernels=np.array([int((~copies[own]).sum()) for own in parts], dtype=np.int64),
        end_ns=np.array([int(work.end[own].max(initial=-1)) for own in parts], dtype=np.int64),
        total_compute_ns=total_ns(merged(work.start[every], work.end[every])),
    )
