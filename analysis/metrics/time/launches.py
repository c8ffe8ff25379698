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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.names import communicates
from analysis.spans import merged, total_ns
from analysis.timeline import GpuWork, Mask, Timeline

if TYPE_CHECKING:
    import pandas as pd


Numbers = npt.NDArray[np.int64]

_DENSE = 4
"""Correlation ids are looked up in a table of all from the least to the largest where those are so many times the calls
at most; else by search."""


def launching_calls(timeline: Timeline) -> Numbers | None:
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
    wanted = kernels["correlation_id"].to_numpy()
    found = np.where(wanted > 0, calls_with(api, wanted), -1)
    return found if (found >= 0).any() else None


def calls_with(api: "pd.DataFrame", correlations: Numbers) -> Numbers:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has."""
    have = api["correlation_id"].to_numpy()
    if not len(have):
        return np.full(len(correlations), -1, dtype=np.int64)
    low, high = int(have.min()), int(have.max())
    if high - low <= _DENSE * len(have):
        table = np.full(high - low + 1, -1, dtype=np.int64)
        table[have[::-1] - low] = np.arange(len(have))[::-1]  # of several the one set last: the first
        known = (correlations >= max(low, 0)) & (correlations <= high)
        found = np.full(len(correlations), -1, dtype=np.int64)
        found[known] = table[correlations[known] - low]
        return found
    order = np.argsort(have, kind="stable")
    identifiers = have[order]
    place = np.searchsorted(identifiers, correlations).clip(max=len(identifiers) - 1)
    known = (identifiers[place] == correlations) & (correlations >= 0)
    return np.where(known, order[place], -1).astype(np.int64, copy=False)


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


def _early(work: GpuWork, calls: Numbers) -> Mask:
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
    if calls is None or not (kept & (calls >= 0)).any():
        return None
    chosen = kept & (calls >= 0)
    called = timeline.api["start"].to_numpy()[calls[chosen]]
    started = timeline.kernels["start"].to_numpy()[chosen]
    delays, since_end = started - called, started - timeline.api["end"].to_numpy()[calls[chosen]]
    low, median, high = np.percentile(delays.clip(min=0) / 1e3, [5, 50, 95])
    times, depth = queue_depth(called, started)
    lengths = np.diff(times)
    total = int(lengths.sum())
    return LaunchQueue(
        rank=timeline.rank,
        kernels=int(kept.sum()),
        matched=int(chosen.sum()),
        delay_median_us=float(median),
        delay_p5_us=float(low),
        delay_p95_us=float(high),
        short_delay_share=float((since_end < SHORT_DELAY_US * 1e3).mean()),
        found_idle_share=float(
            ((since_end < SHORT_DELAY_US * 1e3) | (_running_until(timeline)[chosen] <= called)).mean()
        ),
        negative_delays=int((delays < 0).sum()),
        depth_mean=float((depth[:-1] * lengths).sum() / total) if total else 0.0,
        depth_max=int(depth.max()),
        empty_share=float(lengths[depth[:-1] == 0].sum() / total) if total else 0.0,
        launches_per_step=_distinct(calls[chosen]) / len(timeline.steps) if len(timeline.steps) else None,
    )


def _running_until(timeline: Timeline) -> Numbers:
    """Until when, of each row of `kernels`, the work before it runs."""
    ends = np.maximum.accumulate(timeline.kernels["end"].to_numpy(dtype=np.int64))
    return np.concatenate([[np.iinfo(np.int64).min], ends[:-1]])


def _distinct(numbers: Numbers) -> int:
    return int(np.count_nonzero(np.bincount(numbers)))


def queue_depth(called: Numbers, started: Numbers) -> tuple[Numbers, Numbers]:
    """Return the times at which the depth of the queue changes, ns, in order, and the depth from then on.

    What starts before its call never waits.

    Args:
        called: when each of n pieces of work was launched, ns.
        started: when each of them started, ns.
    """
    waits = started > called
    called, started = called[waits], started[waits]
    if not len(called):
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    times = np.concatenate([called, started])
    order = np.argsort(times, kind="stable")
    times = times[order]
    depth = np.cumsum(np.where(order < len(called), 1, -1))
    last = np.append(times[1:] > times[:-1], True)
    return times[last], depth[last]


MOSTLY = 0.9
"""Share of the computing kernels whose launching call has to be known: fewer would pass for less work."""


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
