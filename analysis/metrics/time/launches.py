"""The launch queue: how long kernels wait between the call that launches them and their start, and how many wait.

The CPU puts kernels into a queue by calls such as cudaLaunchKernel; correlation ids tie a kernel to its call. A delay
is from the *start* of the call, as a kernel may begin before the call returns. A kernel that starts within microseconds
of the *end* of its call (the call takes 5 us, under a profiler 10) found the queue empty: the GPU waited for the CPU. A
long delay is healthy: the CPU runs ahead.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.metrics.kernels.tables import in_window, launching_calls
from analysis.timeline import Timeline

Numbers = npt.NDArray[np.int64]

SHORT_DELAY_US = 10.0
"""A kernel that starts sooner than this after the end of its call found the GPU waiting: 1 to 3 us are usual then."""


@dataclass(frozen=True, slots=True)
class LaunchQueue:
    """The launch queue of one rank, over the kernels of the window (see kernel_tables); copies and memsets are none."""

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
