"""Compute utilization, in nvprof's sense: the share of the time in which something is being computed.

On a GPU: the union of the kernels' intervals over the window, copies not counted. Communication kernels are kernels and
count, as they do in nvprof; the same share without them is also given. On a CPU: the union over threads of the
outermost operators, less the communication inside them. The window is that of all tables: the first step's start to the
last step's end, or from first to last work where no step is marked.

A kernel of one block keeps 1 of an H100's 132 multiprocessors (SMs) busy, and counts above like one that fills all.
Where a trace has grid sizes and the number of SMs, the SM-weighted utilization is also given:

    integral over the window of min(1, sum over running kernels of min(1, blocks / SMs)) / window

It is the most that the grids allow, not what the SMs did: blocks that end early or stall are not seen. TensorBoard's
"Est. SM Efficiency" is its kin (https://github.com/pytorch/kineto/tree/main/tb_plugin).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.blocks import blocks
from analysis.metrics.time.window import analysis_window, window_set
from analysis.metrics.time.work import cpu_computation
from analysis.spans import Intervals, inside_ns, levels, merged, total_ns, within
from analysis.timeline import Mask, Timeline, is_communication, is_kind, lost_kernels
from records.schema import COMPUTE_COLUMNS, PROFILED_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

GPU_KERNELS = "GPU kernels"
CPU_OPERATORS = "CPU operators"
_COMPUTING = ("kernel", "graph")


@dataclass(frozen=True, kw_only=True, slots=True)
class Utilization:
    """Compute utilization of one rank; None is unknown."""

    rank: int | None = None
    steps: int = 0
    """Steps in the window, 0 where none is marked."""
    window_ms: float | None = None
    """Length of the window, None for a trace without any event."""
    busy_ms: float | None = None
    """Time in the window in which something was being computed; the mean over devices where the rank used several."""
    compute_utilization: float | None = None
    """busy_ms / window_ms, 0 to 1."""
    compute_utilization_without_communication: float | None = None
    """The same of computation alone."""
    sm_weighted_utilization: float | None = None
    """Each kernel weighted with the share of the SMs that its blocks can fill."""
    devices: int | None = None
    """GPUs that the rank computed on, None on a CPU."""
    counted: str = ""
    """What was counted: GPU_KERNELS, CPU_OPERATORS, or empty for nothing."""
    reason: str = ""
    """Why a number is not known; empty where all are."""


def compute_utilization(timeline: Timeline) -> Utilization:
    """Return the compute utilization of one rank's trace, unknown values as None with a reason."""
    steps = len(timeline.steps)
    window = analysis_window(timeline)
    if window is None or window[1] <= window[0]:
        return Utilization(rank=timeline.rank, steps=steps, reason="no event of the trace has a duration")
    whole = window_set(timeline, window)
    length = total_ns(whole)
    computing = is_kind(timeline.kernels, *_COMPUTING)
    kernels = timeline.kernels if computing.all() else timeline.kernels[computing]
    if len(kernels):
        counted, devices = GPU_KERNELS, kernels["device"].nunique()
        all_busy, own_busy = _gpu_busy_ns(kernels, whole)
        weighted, reason = _sm_weighted(kernels, timeline.sm_counts, whole)
    elif len(timeline.operators):
        counted, devices = CPU_OPERATORS, None
        all_busy = own_busy = float(total_ns(within(cpu_computation(timeline.operators), whole)))
        weighted, reason = None, ""
    else:
        reason = _without_work(timeline)
        return Utilization(rank=timeline.rank, steps=steps, window_ms=length / 1e6, reason=reason)
    return Utilization(
        rank=timeline.rank,
        steps=steps,
        window_ms=length / 1e6,
        busy_ms=all_busy / 1e6,
        compute_utilization=all_busy / length,
        compute_utilization_without_communication=own_busy / length,
        sm_weighted_utilization=weighted,
        devices=devices,
        counted=counted,
        reason=reason,
    )


def compute_utilization_rows(
    trial: Mapping[str, Any], timelines: Sequence[Timeline], reason: str = ""
) -> list[dict[str, Any]]:
    """Return the rows of compute_utilization.csv: one per rank, by rank, unknown values None.

    Args:
        trial: the trial's fields, more than PROFILED_COLUMNS or fewer.
        timelines: what readers returned of its traces.
        reason: why there is no trace; the one row of a trial without timelines says it.
    """
    fields = {name: trial.get(name) for name in PROFILED_COLUMNS}
    found = [compute_utilization(timeline) for timeline in timelines]
    found.sort(key=lambda item: (item.rank is None, item.rank or 0))
    if not found:
        found = [Utilization(reason=reason or "the trial has no trace")]
    return [{**fields, **{name: getattr(item, name) for name in COMPUTE_COLUMNS}} for item in found]


def _gpu_busy_ns(kernels: "pd.DataFrame", whole: Intervals) -> tuple[float, float]:
    """Busy time of all kernels, and of those that compute, each the mean over devices."""
    everything, own = [], []
    device, starts, ends = (kernels[name].to_numpy() for name in ("device", "start", "end"))
    computes = ~is_communication(kernels)

    def busy(chosen: Mask) -> int:
        times = (starts, ends) if chosen.all() else (starts[chosen], ends[chosen])
        return total_ns(within(merged(*times), whole))

    for number in np.unique(device).tolist():
        here = device == number
        everything.append(busy(here))
        computing = here & computes
        own.append(busy(computing) if (computing != here).any() else everything[-1])
    return float(np.mean(everything)), float(np.mean(own))


def _sm_weighted(kernels: "pd.DataFrame", sm_counts: Mapping[int, int], whole: Intervals) -> tuple[float | None, str]:
    """The mean over devices, or None and why."""
    sizes = ("grid_x", "grid_y", "grid_z")
    if not set(sizes) <= set(kernels.columns):
        return None, "sm_weighted_utilization is unknown: the trace has no grid sizes"
    starts, ends = (kernels[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    grids = [kernels[name].to_numpy() for name in sizes]
    inside, unknown = np.empty(len(kernels), dtype=bool), 0
    for part in blocks(len(kernels)):
        inside[part] = inside_ns(whole, starts[part], ends[part]) > 0
        unknown += int((inside[part] & ~(_product(grids, part) > 0)).sum())
    if unknown:
        said = f"{unknown:,} of {int(inside.sum()):,} kernels have no grid size"
        return None, f"sm_weighted_utilization is unknown: {said}"
    found = []
    device = kernels["device"].to_numpy()
    for number in np.unique(device):
        most = sm_counts.get(int(number), 0)
        if most <= 0:
            said = f"the trace does not record the number of SMs of device {number}"
            return None, f"sm_weighted_utilization is unknown: {said}"
        own = inside & (device == number)
        heights = [np.minimum(_product(grids, part)[own[part]], most) for part in blocks(len(own))]
        area = _capped_area(starts[own], ends[own], np.concatenate(heights).astype(np.int64), most, whole)
        found.append(area / most)
    return float(np.mean(found)) / total_ns(whole), ""


def _product(sizes: Sequence[npt.NDArray[Any]], part: slice) -> npt.NDArray[np.float64]:
    """Blocks of each grid of a part of the kernels."""
    x, y, z = (size[part].astype(np.float64) for size in sizes)
    return np.asarray(x * y * z)


def _capped_area(starts: Numbers, ends: Numbers, heights: Numbers, cap: int, whole: Intervals) -> int:
    """Integral over the window of min(cap, sum of the heights of what runs)."""
    area, last, running = 0, None, 0
    for times, level in levels(starts, ends, heights):
        begins = np.append(times[0] if last is None else last, times[:-1])
        area += int((np.append(running, level[:-1]).clip(max=cap) * inside_ns(whole, begins, times)).sum())
        last, running = int(times[-1]), int(level[-1])
    return area


def _without_work(timeline: Timeline) -> str:
    if len(timeline.kernels):
        return "the trace has copies but no kernels: no computation was recorded"
    return lost_kernels([timeline]) or (
        "the trace has ranges, but neither kernels nor operators: nsys records no operators of a CPU run; "
        "--profiler torch does"
    )
