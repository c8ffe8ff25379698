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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.intervals import Intervals, inside_ns, levels, merged, total_ns, within
from analysis.metrics.time.window import analysis_time
from analysis.metrics.time.work import cpu_computation
from analysis.timeline import Timeline, is_communication, lost_kernels, named
from records.schema import COMPUTE_COLUMNS, PROFILED_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

GPU_KERNELS = "GPU kernels"
CPU_OPERATORS = "CPU operators"
_COMPUTING = ("kernel", "graph")


class Utilization(NamedTuple):
    """Compute utilization of one rank; None is unknown.

    steps: in the window, 0 where none is marked. busy_ms: time in the window in which something was being computed, the
    mean over devices. compute_utilization: its share, 0 to 1, and without communication. sm_weighted_utilization: each
    kernel weighted with the share of the SMs that its blocks can fill. devices: GPUs, None on a CPU. counted:
    GPU_KERNELS, CPU_OPERATORS or "". reason: why a number is not known.
    """

    rank: int | None = None
    steps: int = 0
    window_ms: float | None = None
    busy_ms: float | None = None
    compute_utilization: float | None = None
    compute_utilization_without_communication: float | None = None
    sm_weighted_utilization: float | None = None
    devices: int | None = None
    counted: str = ""
    reason: str = ""


def compute_utilization(timeline: Timeline) -> Utilization:
    """Return the compute utilization of one rank's trace, unknown values as None with a reason."""
    nothing = Utilization(timeline.rank, len(timeline.steps))
    whole = analysis_time(timeline)
    if whole is None or not (length := total_ns(whole)):
        return nothing._replace(reason="no event of the trace has a duration")
    nothing = nothing._replace(window_ms=length / 1e6)
    kernels = timeline.kernels[named(timeline.kernels["kind"], lambda kind: kind in _COMPUTING)]
    if len(kernels):
        each = [[_busy_ns(part, whole) for part in (rows, rows[~is_communication(rows)])]
                for _, rows in kernels.groupby("device")]  # fmt: skip
        busy, alone = np.mean(each, axis=0).tolist()
        weighted, reason = _sm_weighted(kernels, timeline.sm_counts, whole)
        counted = nothing._replace(counted=GPU_KERNELS, devices=len(each), reason=reason)
    elif len(timeline.operators):
        busy = alone = float(total_ns(within(cpu_computation(timeline.operators), whole)))
        weighted, counted = None, nothing._replace(counted=CPU_OPERATORS)
    else:
        reason = "the trace has ranges, but neither kernels nor operators: use --profiler torch for a CPU run"
        if len(timeline.kernels):
            reason = "the trace has copies but no kernels: no computation was recorded"
        reason = lost_kernels([timeline]) or reason
        return nothing._replace(reason=reason)
    return counted._replace(
        busy_ms=busy / 1e6,
        compute_utilization=busy / length,
        compute_utilization_without_communication=alone / length,
        sm_weighted_utilization=weighted,
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
    rows = [compute_utilization(timeline) for timeline in timelines]
    rows.sort(key=lambda row: (row.rank is None, row.rank or 0))
    rows = rows or [Utilization(reason=reason or "the trial has no trace")]
    return [{**fields, **{name: getattr(row, name) for name in COMPUTE_COLUMNS}} for row in rows]


def _busy_ns(kernels: "pd.DataFrame", whole: Intervals) -> int:
    return total_ns(within(merged(kernels["start"].to_numpy(), kernels["end"].to_numpy()), whole))


def _sm_weighted(kernels: "pd.DataFrame", sm_counts: Mapping[int, int], whole: Intervals) -> tuple[float | None, str]:
    """Return the mean over devices, or None and why."""
    unknown = "sm_weighted_utilization is unknown: "
    sizes = ["grid_x", "grid_y", "grid_z"]
    if not set(sizes) <= set(kernels.columns):
        return None, f"{unknown}the trace has no grid sizes"
    starts, ends = (kernels[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    inside = inside_ns(whole, starts, ends) > 0
    grids = kernels[sizes].to_numpy(dtype=np.float64).prod(axis=1)
    if lacking := int((inside & ~(grids > 0)).sum()):
        return None, f"{unknown}{lacking:,} of {int(inside.sum()):,} kernels have no grid size"
    shares = []
    device = kernels["device"].to_numpy()
    for number in np.unique(device).tolist():
        most = sm_counts.get(int(number), 0)
        if most <= 0:
            return None, f"{unknown}the trace does not record the number of SMs of device {number}"
        rows = inside & (device == number)
        times, level = levels(starts[rows], ends[rows], np.minimum(grids[rows], most).astype(np.int64))
        area = int((level[:-1].clip(max=most) * inside_ns(whole, times[:-1], times[1:])).sum())
        shares.append(area / most)
    return float(np.mean(shares)) / total_ns(whole), ""
