"""Where the time of a rank goes: computing, communicating, copying, idle; as a whole, step by step, and utilization.

On unions of intervals, as docs/explanation/timeline.md defines them: overlapped communication is computation and
communication at once, exposed what has no computation beside it; exposed memory is copies and memsets alone. Busy is
computation + exposed communication + exposed memory. Times of a rank with several GPUs are means over its GPUs.

Compute utilization, in nvprof's sense, is the share of the time in which a kernel runs, of communication too; on a CPU,
an outermost operator without the communication inside. Where a trace has grid sizes and the number of SMs, the
SM-weighted utilization, the most that the grids allow, is the mean over the window of

    min(1, sum over running kernels of min(1, blocks / SMs))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.intervals import Intervals, before_ns, inside_ns, intersection, merged, total_ns
from analysis.metrics.time.window import (
    Numbers,
    Window,
    analysis_time,
    communicating,
    cpu_computation,
    device_sets,
    is_kernel,
    launched_at,
    launching_calls,
    step_places,
    work_sets,
    work_time,
)
from analysis.timeline import MOSTLY, Mask, Timeline, lost_kernels
from records.schema import OPTION_COLUMNS, SHAPE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_PROFILED = ("device", "round", "profiler", "profiler_options", "start_iteration", "stop_iteration")
PROFILED_COLUMNS = ("trial_id", *SHAPE_COLUMNS, *_PROFILED, *OPTION_COLUMNS)
"""Fields of a trial in the tables of its profile."""
GPU_KERNELS = "GPU kernels"
CPU_OPERATORS = "CPU operators"


@dataclass(frozen=True, slots=True)
class Temporal:
    """The time of one rank."""

    rank: int | None
    window: str
    """"steps" or "kernels", see `work_time`; a window that was chosen: its label."""
    steps: int
    """Marked steps in the window; 0 where the window is that of the kernels."""
    devices: int
    """GPUs that the times are means over; 0 on a CPU."""
    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    overlapped_communication_ns: int
    exposed_communication_ns: int
    memory_ns: int
    exposed_memory_ns: int

    @property
    def on_gpu(self) -> bool:
        """Whether it is work of GPUs; a CPU's otherwise."""
        return self.devices > 0

    @property
    def overlap_share(self) -> float | None:
        """Share of the communication that computation hides, 0 to 1; None where there is none."""
        return self.overlapped_communication_ns / self.communication_ns if self.communication_ns else None


def _times(timeline: Timeline, begins: Numbers, ends: Numbers) -> dict[str, npt.NDArray[Any]]:
    """Return the times of `Temporal` in each of n windows, ns, means over the GPUs, arrays of shape (n,)."""
    sets = device_sets(timeline)
    busy, active, compute, communication, memory = (
        np.mean([inside_ns(getattr(one, name), begins, ends) for one in sets], axis=0)
        for name in ("busy", "active", "compute", "communication", "memory")
    )
    return {
        "busy": busy,
        "idle": ends - begins - busy,
        "compute": compute,
        "communication": communication,
        "overlapped_communication": compute + communication - active,
        "exposed_communication": active - compute,
        "memory": memory,
        "exposed_memory": busy - active,
    }


def temporal_breakdown(timeline: Timeline, window: Window = "steps") -> Temporal | None:
    """Return where the time of one rank goes in the window of `work_time`; None for a trace without work."""
    whole = work_time(timeline, window)
    if whole is None:
        return None
    sets = device_sets(timeline)
    of_steps = window == "steps" and timeline.spans is not None
    return Temporal(
        rank=timeline.rank,
        window="kernels" if not of_steps else "steps" if timeline.window is None else timeline.window.label,
        steps=len(timeline.steps) if of_steps else 0,
        devices=len(sets) if sets[0].on_gpu else 0,
        span_ns=total_ns(whole),
        **{f"{name}_ns": round(values.sum()) for name, values in _times(timeline, *whole.T).items()},
    )


def temporal_frame(rows: Sequence[Temporal]) -> "pd.DataFrame":
    """Return one row per rank: rank, window, steps, devices, span_ms, busy_ms, ..., their shares, overlap_share."""
    import pandas as pd

    frame = pd.DataFrame([{**asdict(row), "overlap_share": row.overlap_share} for row in rows])
    times = frame.filter(regex="_ns$").rename(columns=lambda name: name.removesuffix("_ns"))
    shares = times.drop(columns="span").div(times["span"], axis="index").add_suffix("_share")
    named = frame[["rank", "window", "steps", "devices"]].astype({"rank": "Int64"})
    return named.join([(times / 1e6).add_suffix("_ms"), shares, frame[["overlap_share"]].astype("float64")])


def running_ns(timeline: Timeline, wanted: Callable[[str], bool]) -> int:
    """Return the time of the window in which a kernel of a wanted name runs, ns; copies are no kernels."""
    work = timeline.work
    chosen = work.is_named(wanted) & is_kernel(timeline)
    running = merged(work.start[chosen], work.end[chosen])
    return total_ns(running if timeline.spans is None else intersection(running, timeline.spans))


def start_up_copies_ns(timeline: Timeline) -> int:
    """Return the time of the window with copies or memsets before the first kernel, ns: they fill the memory once.

    0 where there is no kernel, and where steps are marked: what a step copies belongs to it.
    """
    sets = work_sets(timeline)
    if len(timeline.steps) or not sets.on_gpu or not len(sets.active):
        return 0
    memory = sets.memory if timeline.spans is None else intersection(sets.memory, timeline.spans)
    return int(before_ns(memory, sets.active[:1, 0])[0])


def _launched(timeline: Timeline) -> tuple[Numbers, Mask] | None:
    """Return the place of the marked step that launched each row of `kernels`, -1 none, and which rows compute.

    None where no step is marked, or less than MOSTLY of the kernels that compute can be tied to a call.
    """
    calls = launching_calls(timeline)
    if calls is None or not len(timeline.steps):
        return None
    moments = launched_at(timeline)
    computes = is_kernel(timeline) & ~communicating(timeline)
    counted = computes & (moments > np.iinfo(np.int64).min)
    if (calls[counted] >= 0).sum() < MOSTLY * counted.sum():
        return None
    return np.where(calls >= 0, step_places(timeline, moments), -1), computes


def launched_compute_ns(timeline: Timeline) -> int | None:
    """Return the time of the computation that the marked steps launched, wherever it ran, ns; None unknown."""
    if (launched := _launched(timeline)) is None:
        return None
    chosen = (launched[0] >= 0) & launched[1]
    return total_ns(merged(timeline.work.start[chosen], timeline.work.end[chosen]))


def iterations(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per marked step, in order of start, times in ms: where the time of each went.

    Columns: rank, step, step_time_ms, busy_ms, idle_ms, compute_ms, launched_compute_ms (of what the step launched,
    whenever it ran), communication_ms, exposed_communication_ms, memory_ms, exposed_memory_ms, kernels (launched in
    it; copies and memsets are none), behind_ms (from the step's end to that of the last work it launched, 0 where that
    is earlier). What is not known is NaN: of a trace without work all but the first three, and launched_compute_ms and
    behind_ms where it is not known who launched what.
    """
    import pandas as pd

    steps, work = timeline.steps.sort_values("start", kind="stable"), timeline.work
    begins, ends = (steps[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    moments = launched_at(timeline) if len(work) else work.start
    places = step_places(timeline, moments[is_kernel(timeline)])
    computing, behind = np.full((2, len(steps)), np.nan)
    if (launched := _launched(timeline)) is not None:
        order = np.argsort(launched[0], kind="stable")
        firsts = np.searchsorted(launched[0][order], np.arange(len(steps) + 1))
        for step, rows in enumerate(np.split(order, firsts)[1:-1]):
            chosen = rows[launched[1][rows]]
            computing[step] = total_ns(merged(work.start[chosen], work.end[chosen]))
            behind[step] = max(0, int(work.end[rows].max()) - int(ends[step])) if len(rows) else np.nan
    times = pd.DataFrame(_times(timeline, begins, ends)).drop(columns="overlapped_communication")
    times.insert(0, "step_time", ends - begins)
    times.insert(4, "launched_compute", computing)
    frame = (times / 1e6).add_suffix("_ms")
    frame.insert(0, "rank", pd.Series(timeline.rank, index=frame.index, dtype="Int64"))
    frame.insert(1, "step", steps["step"].to_numpy())
    frame = frame.assign(kernels=np.bincount(places + 1, minlength=len(steps) + 1)[1:], behind_ms=behind / 1e6)
    if work_time(timeline) is None:
        frame[frame.columns[3:]] = np.nan
    return frame


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
    known = Utilization(timeline.rank, len(timeline.steps))
    whole = analysis_time(timeline)
    if whole is None or not (length := total_ns(whole)):
        return known._replace(reason="no event of the trace has a duration")
    known, sets = known._replace(window_ms=length / 1e6), device_sets(timeline)
    if is_kernel(timeline).any():
        times = _times(timeline, *whole.T)
        alone = float(times["compute"].sum())
        busy = alone + float(times["exposed_communication"].sum())
        weighted, reason = _sm_weighted(timeline, whole)
        known = known._replace(devices=len(sets), counted=GPU_KERNELS, reason=reason, sm_weighted_utilization=weighted)
    elif len(timeline.operators):
        busy = alone = float(total_ns(intersection(cpu_computation(timeline.operators), whole)))
        known = known._replace(counted=CPU_OPERATORS)
    else:
        reason = "the trace has ranges, but neither kernels nor operators: use --profiler torch for a CPU run"
        if len(timeline.kernels):
            reason = "the trace has copies but no kernels: no computation was recorded"
        return known._replace(reason=lost_kernels([timeline]) or reason)
    return known._replace(
        busy_ms=busy / 1e6,
        compute_utilization=busy / length,
        compute_utilization_without_communication=alone / length,
    )


def compute_utilization_rows(
    trial: Mapping[str, Any], timelines: Sequence[Timeline], reason: str = ""
) -> list[dict[str, Any]]:
    """Return the rows of compute_utilization.csv of a trial: one per rank, by rank, unknown values None.

    The one row of a trial without timelines says the reason.
    """
    fields = {name: trial.get(name) for name in PROFILED_COLUMNS}
    rows = sorted(map(compute_utilization, timelines), key=lambda row: (row.rank is None, row.rank or 0))
    rows = rows or [Utilization(reason=reason or "the trial has no trace")]
    return [{**fields, **row._asdict()} for row in rows]


def _sm_weighted(timeline: Timeline, whole: Intervals) -> tuple[float | None, str]:
    """Return the mean over devices, or None and why."""
    unknown, work, kernels = "sm_weighted_utilization is unknown: ", timeline.work, timeline.kernels
    inside = is_kernel(timeline) & (inside_ns(whole, work.start, work.end) > 0)
    sizes = [kernels[name].to_numpy(np.float64) for name in ("grid_x", "grid_y", "grid_z") if name in kernels]
    if not sizes:
        return None, f"{unknown}the trace has no grid sizes"
    blocks = np.prod(sizes, axis=0)
    if lacking := int((inside & ~(blocks > 0)).sum()):
        return None, f"{unknown}{lacking:,} of {int(inside.sum()):,} kernels have no grid size"
    shares = []
    for device in np.unique(work.device[is_kernel(timeline)]).tolist():
        if (most := timeline.sm_counts.get(device, 0)) <= 0:
            return None, f"{unknown}the trace does not record the number of SMs of device {device}"
        rows = np.flatnonzero(inside & (work.device == device))
        filled = np.minimum(blocks[rows], most).astype(np.int64)
        moments = np.concatenate([work.start[rows], work.end[rows]])
        order = np.argsort(moments, kind="stable")
        running = np.cumsum(np.concatenate([filled, -filled])[order])[:-1]
        lengths = np.diff(before_ns(whole, moments[order]))
        shares.append(int((running.clip(max=most) * lengths).sum()) / most)
    return float(np.mean(shares)) / total_ns(whole), ""
