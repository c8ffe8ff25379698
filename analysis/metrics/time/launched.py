"""Computation by the step that launched it, wherever it ran: what a rank was given to do.

A GPU runs behind its CPU, so that a step's time holds kernels of the step before, and the last step's kernels end after
it. What ran in the marked steps then depends on how far behind the GPU is at either end; what was launched in them does
not, and is what to compare between ranks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.metrics.kernels.tables import communicates, launching_calls
from analysis.metrics.time.intervals import merged, total_ns
from analysis.timeline import Timeline

Numbers = npt.NDArray[np.int64]

MOSTLY = 0.9
"""Share of the computing kernels whose launching call has to be known: fewer would pass for less work."""


@dataclass(frozen=True, slots=True)
class LaunchedCompute:
    """Computation of one rank by the step whose CPU launched it."""

    steps_ns: Numbers
    """Of each marked step, in order of start: length of the union of the computing kernels launched in it."""
    total_ns: int
    """The same of all steps together."""


def launched_compute(timeline: Timeline) -> LaunchedCompute | None:
    """Return the computation launched in each marked step.

    None where no step is marked, or less than MOSTLY of the kernels that compute can be tied to a call.
    """
    if not len(timeline.steps) or not len(timeline.kernels):
        return None
    calls = launching_calls(timeline)
    work = timeline.work
    computes = ~work.is_kind("memcpy", "memset") & ~work.is_named(communicates)
    if calls is None or (calls[computes] >= 0).sum() < MOSTLY * computes.sum():
        return None
    known = computes & (calls >= 0)
    called = timeline.api["start"].to_numpy(dtype=np.int64)[calls[known]]
    starts, ends = work.start[known], work.end[known]
    steps = timeline.steps.sort_values("start", kind="stable")
    begins, stops = (steps[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    place = np.searchsorted(begins, called, side="right") - 1
    inside = (place >= 0) & (called < stops[place])
    order = np.argsort(place, kind="stable")
    order = order[inside[order]]
    parts = np.split(order, np.searchsorted(place[order], np.arange(1, len(steps))))
    by_step = [total_ns(merged(starts[own], ends[own])) for own in parts]
    return LaunchedCompute(np.array(by_step, dtype=np.int64), total_ns(merged(starts[inside], ends[inside])))
