"""The launch queue: how far the CPU runs ahead of the GPU.

The CPU puts kernels into a queue by calls such as cudaLaunchKernel. A delay
is from the *start* of the call, as a kernel may begin before the call returns. A kernel that starts within microseconds
of the *end* of its call (the call takes 5 us, under a profiler 10) found the queue empty: the GPU waited for the CPU. A
long delay is healthy: the CPU runs ahead.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import launching_calls
from analysis.metrics.time.window import in_window
from analysis.timeline import Timeline, typed

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

SHORT_DELAY_US = 10.0
"""A kernel that starts sooner than this after the end of its call found the GPU waiting: 1 to 3 us are usual then."""
QUEUE_COLUMNS = {
    "rank": "Int64",
    "kernels": "int64",  # launched in the window, CUDA graphs recorded as one piece among them
    "matched": "int64",  # of these, those whose launching call is in the trace; the rest is of these
    "delay_median_us": "float64",  # from the start of the call to the start of the kernel
    "delay_p5_us": "float64",
    "delay_p95_us": "float64",
    "found_idle_share": "float64",  # kernels that start SHORT_DELAY_US after their call, or were launched when idle
    "depth_mean": "float64",  # launched and not yet started kernels, from the first call to the last start
    "depth_max": "int64",
    "empty_share": "float64",  # of that time with none waiting
    "launches_per_step": "float64",  # calls per marked step
}


def launch_queue(timelines: Iterable[Timeline]) -> "pd.DataFrame":
    """Return one row per rank whose trace ties kernels to calls, copies not counted: QUEUE_COLUMNS."""
    return typed([row for row in map(_queue, timelines) if row], QUEUE_COLUMNS)


def _queue(timeline: Timeline) -> dict[str, Any] | None:
    calls, work, api = launching_calls(timeline), timeline.work, timeline.api
    if calls is None:
        return None
    counted = in_window(timeline)[0] & ~work.is_kind("memcpy", "memset")
    chosen = counted & (calls >= 0)
    if not chosen.any():
        return None
    used, started = calls[chosen], work.start[chosen]
    called, returned = (api[name].to_numpy(dtype=np.int64)[used] for name in ("start", "end"))
    # Until when the work before each piece runs.
    until = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(work.end)[:-1])[chosen]
    waited = (started - returned < SHORT_DELAY_US * 1e3) | (until <= called)
    low, median, high = np.percentile((started - called).clip(min=0) / 1e3, [5, 50, 95])
    steps = len(timeline.steps)
    return {
        "rank": timeline.rank,
        "kernels": int(counted.sum()),
        "matched": len(used),
        "delay_median_us": median,
        "delay_p5_us": low,
        "delay_p95_us": high,
        "found_idle_share": waited.mean(),
        **_depth(called[started > called], started[started > called]),
        "launches_per_step": len(np.unique(used)) / steps if steps else None,
    }


def _depth(called: Numbers, started: Numbers) -> dict[str, float]:
    """Return how many of n kernels were launched and not started, over time; what starts before its call never is."""
    if not len(called):
        return {"depth_mean": 0.0, "depth_max": 0, "empty_share": 0.0}
    times = np.concatenate([called, started])
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(np.where(order < len(called), 1, -1))
    lengths = np.diff(times)
    span = int(times[-1] - times[0])
    return {
        "depth_mean": int((depth[:-1] * lengths).sum()) / span,
        "depth_max": int(depth[np.append(lengths > 0, True)].max()),
        "empty_share": int(lengths[depth[:-1] == 0].sum()) / span,
    }
