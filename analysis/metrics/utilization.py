"""Compute utilisation, in nvprof's sense: the share of the time in which something is being computed.

On a GPU: the union of the kernels' intervals over the window, copies not counted. Communication kernels are kernels and
count, as they do in nvprof; the same share without them stands beside it. On a CPU: the union over threads of the
outermost operators, less the communication inside them. The window is the first step's start to the last step's end, or
the whole trace where no step is marked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.names import family
from analysis.metrics.intervals import Intervals, clipped, difference, merged, total_ns
from analysis.records import SHAPE_COLUMNS
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

TRIAL_FIELDS = (
    "trial_id",
    *SHAPE_COLUMNS,
    "device",
    "round",
    "profiler",
    "profiler_options",
    "start_iteration",
    "stop_iteration",
)
NUMBER_FIELDS = (
    "rank",
    "steps",
    "window_ms",
    "busy_ms",
    "compute_utilization",
    "compute_utilization_without_communication",
    "devices",
    "counted",
    "reason",
)
UTILIZATION_COLUMNS = (*TRIAL_FIELDS, *NUMBER_FIELDS)
"""Columns of compute_utilization.csv."""

GPU_KERNELS = "GPU kernels"
CPU_OPERATORS = "CPU operators"
_COMPUTING = ("kernel", "graph")


@dataclass(frozen=True, slots=True)
class Utilization:
    """Compute utilisation of one rank."""

    rank: int | None
    """Rank, None where the trace does not say."""
    steps: int
    """Steps in the window, 0 where the window is the whole trace."""
    window_ms: float | None
    """Length of the window, None for a trace without any event."""
    busy_ms: float | None
    """Time in the window in which something was being computed; the mean over devices where the rank used several."""
    compute_utilization: float | None
    """busy_ms / window_ms, 0 to 1; None with a reason where the trace cannot say."""
    compute_utilization_without_communication: float | None
    """The same of computation alone."""
    devices: int | None
    """GPUs that the rank computed on, None on a CPU."""
    counted: str
    """What was counted: GPU_KERNELS, CPU_OPERATORS, or empty for nothing."""
    reason: str
    """Why a number is not known; empty where all are."""


def compute_utilization(timeline: Timeline) -> Utilization:
    """Return the compute utilisation of one rank's trace, unknown values as None with a reason."""
    steps = len(timeline.steps)
    window = _window(timeline)
    if window is None:
        return Utilization(
            timeline.rank, steps, None, None, None, None, None, "", "the trace has no event with a length"
        )
    begin, end = window
    length = end - begin
    kernels = timeline.kernels[timeline.kernels["kind"].isin(_COMPUTING)]
    if len(kernels):
        counted, devices = GPU_KERNELS, kernels["device"].nunique()
        all_busy, own_busy = _gpu_busy_ns(kernels, begin, end)
    elif len(timeline.operators):
        counted, devices = CPU_OPERATORS, None
        all_busy = own_busy = float(total_ns(clipped(_cpu_computation(timeline.operators), begin, end)))
    else:
        reason = _without_work(timeline)
        return Utilization(timeline.rank, steps, length / 1e6, None, None, None, None, "", reason)
    return Utilization(
        rank=timeline.rank,
        steps=steps,
        window_ms=length / 1e6,
        busy_ms=all_busy / 1e6,
        compute_utilization=all_busy / length,
        compute_utilization_without_communication=own_busy / length,
        devices=devices,
        counted=counted,
        reason="",
    )


def compute_utilization_rows(
    trial: Mapping[str, Any], timelines: Sequence[Timeline], reason: str = ""
) -> list[dict[str, Any]]:
    """Return the rows of compute_utilization.csv: one per rank, by rank, unknown values None.

    Args:
        trial: the trial's fields, more than TRIAL_FIELDS or fewer.
        timelines: what readers returned of its traces.
        reason: why there is no trace; the one row of a trial without timelines says it.
    """
    fields = {name: trial.get(name) for name in TRIAL_FIELDS}
    found = [compute_utilization(timeline) for timeline in timelines]
    found.sort(key=lambda item: (item.rank is None, item.rank or 0))
    if not found:
        found = [Utilization(None, 0, None, None, None, None, None, "", reason or "the trial has no trace")]
    return [{**fields, **{name: getattr(item, name) for name in NUMBER_FIELDS}} for item in found]


def _window(timeline: Timeline) -> tuple[int, int] | None:
    tables = [timeline.steps] if len(timeline.steps) else [timeline.kernels, timeline.operators, timeline.ranges]
    filled = [table for table in tables if len(table)]
    if not filled:
        return None
    begin, end = min(int(table["start"].min()) for table in filled), max(int(table["end"].max()) for table in filled)
    return (begin, end) if end > begin else None


def _gpu_busy_ns(kernels: "pd.DataFrame", begin: int, end: int) -> tuple[float, float]:
    """Busy time of all kernels, and of those that compute, each the mean over devices."""
    names = {name: family(str(name)) == "communication" for name in kernels["name"].unique()}
    communicates = kernels["name"].map(names).to_numpy(dtype=bool)
    everything, own = [], []
    for _, part in kernels.assign(communicates=communicates).groupby("device"):
        everything.append(total_ns(clipped(merged(part["start"], part["end"]), begin, end)))
        part = part[~part["communicates"]]
        own.append(total_ns(clipped(merged(part["start"], part["end"]), begin, end)))
    return float(np.mean(everything)), float(np.mean(own))


def _cpu_computation(operators: "pd.DataFrame") -> Intervals:
    """Union over threads: another thread that communicates does not stop one that computes."""
    names = {name: family(str(name)) == "communication" for name in operators["name"].unique()}
    communicates = operators["name"].map(names).to_numpy(dtype=bool)
    parts = []
    for _, part in operators.assign(communicates=communicates).groupby("thread"):
        outermost = part[part["outermost"]]
        waiting = part[part["communicates"]]
        parts.append(difference(merged(outermost["start"], outermost["end"]), merged(waiting["start"], waiting["end"])))
    joined = np.concatenate(parts)
    return merged(joined[:, 0], joined[:, 1])


def _without_work(timeline: Timeline) -> str:
    if len(timeline.kernels):
        return "the trace has copies and no kernel: nothing that computes was recorded"
    lost = [problem for problem in timeline.problems if "kernel" in problem]
    if lost:
        return lost[0]
    return (
        "the trace has ranges, and neither kernels nor operators: nsys records no operators of a run on a CPU; "
        "--profiler torch does"
    )
