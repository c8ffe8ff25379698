"""Where the time of a rank goes: computing, communicating, copying, idle; as a whole and step by step.

All on unions of intervals, as measurement.md defines them. K: computation (kernels, and CUDA graphs recorded as one
piece, that are not communication), C: communication, M: copies and memsets. Then

    overlapped communication = |C and K|          exposed communication = |C| - |C and K|
    busy = |K or C or M| = |K| + exposed communication + exposed memory, with exposed memory = |M minus (K or C)|
    idle = window - busy

A rank with several GPUs is busy when any of them is. On a trace without GPU work, K is the union over threads of the
outermost operators less the communication in them, and C the spans of communication (gloo, MPI).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import launched_work
from analysis.names import collective, communicates, is_gpu_library
from analysis.spans import Intervals, difference, inside_ns, merged, total_ns, union, within
from analysis.timeline import Timeline, is_communication

if TYPE_CHECKING:
    import pandas as pd

Window = Literal["steps", "kernels"]
_NOTHING = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class WorkSets:
    """What a rank did when: sets of intervals, see analysis.spans."""

    compute: Intervals
    communication: Intervals
    memory: Intervals
    busy: Intervals
    active: Intervals
    """Computation or communication."""
    on_gpu: bool
    """Whether it is work of GPUs; a CPU's otherwise."""


@dataclass(frozen=True, slots=True)
class Temporal:
    """The time of one rank."""

    rank: int | None
    """Rank, None where the trace does not say."""
    window: str
    """"steps": first marked step's start to last one's end; "kernels": first start to last end of work; a window that
    was chosen: its label."""
    steps: int
    """Marked steps in the window; 0 where the window is that of the kernels."""
    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    overlapped_communication_ns: int
    exposed_communication_ns: int
    memory_ns: int
    """Time with copies or memsets."""
    exposed_memory_ns: int
    """Time with copies or memsets and nothing else."""
    on_gpu: bool
    """Whether it is work of GPUs; a CPU's otherwise."""

    @property
    def overlap_share(self) -> float | None:
        """Share of the communication that computation hides, 0 to 1; None where there is none."""
        return self.overlapped_communication_ns / self.communication_ns if self.communication_ns else None


def work_sets(timeline: Timeline, memset_as_compute: bool = False) -> WorkSets:
    """Return what a rank did when.

    Args:
        timeline: what a reader returned.
        memset_as_compute: count memsets as computation, as TraceLens does.
    """
    work = timeline.work
    if not len(work):
        return _cpu_sets(timeline)
    starts, ends = work.start, work.end
    copies = work.is_kind("memcpy") if memset_as_compute else work.is_kind("memcpy", "memset")
    communicating = work.is_named(communicates) & ~copies
    computes = ~(copies | communicating)
    compute = merged(starts, ends) if computes.all() else merged(starts[computes], ends[computes])
    communication = merged(starts[communicating], ends[communicating]) if communicating.any() else _NOTHING
    memory = merged(starts[copies], ends[copies]) if copies.any() else _NOTHING
    active = union(compute, communication) if len(communication) else compute
    busy = union(active, memory) if len(memory) else active
    return WorkSets(compute, communication, memory, busy, active, on_gpu=True)


def work_window(timeline: Timeline, sets: WorkSets, window: Window = "steps") -> tuple[int, int] | None:
    """Return begin and end of the window, ns; None for a trace without work: whether anything ran is not known."""
    work = timeline.work
    if not len(work) and not len(sets.busy):
        return None
    if window == "steps" and (chosen := timeline.spans) is not None:
        return int(chosen[0, 0]), int(chosen[-1, 1])
    if len(work):  # with those of no length
        return int(work.start.min()), int(work.end.max())
    return int(sets.busy[0, 0]), int(sets.busy[-1, 1])


def window_set(timeline: Timeline, bounds: tuple[int, int], window: Window = "steps") -> Intervals:
    """Return what is counted between the bounds of `work_window` or `analysis_window`: all, but for a chosen window."""
    chosen = None if window == "kernels" or timeline.window is None else timeline.spans
    return merged([bounds[0]], [bounds[1]]) if chosen is None else chosen


def analysis_window(timeline: Timeline) -> tuple[int, int] | None:
    """Return begin and end, ns, of what every table of a trace is of: that of `work_window`.

    A trace without work has one too: its marked steps, or all that was recorded. None for nothing.
    """
    if (chosen := timeline.spans) is not None:
        return int(chosen[0, 0]), int(chosen[-1, 1])
    if not len(timeline.kernels) and (found := work_window(timeline, _cpu_sets(timeline))) is not None:
        return found
    tables = [timeline.kernels] if len(timeline.kernels) else [timeline.operators, timeline.ranges]
    filled = [table for table in tables if len(table)]
    if not filled:
        return None
    return min(int(table["start"].min()) for table in filled), max(int(table["end"].max()) for table in filled)


def temporal_breakdown(
    timeline: Timeline, window: Window = "steps", memset_as_compute: bool = False
) -> Temporal | None:
    """Return where the time of one rank goes; None for a trace without work, such as nsys' of a run on a CPU.

    Args:
        timeline: what a reader returned.
        window: "steps": the marked steps, work outside cut off, or the kernels' window where no step is marked;
            "kernels": from the first start to the last end of any GPU work, as Holistic Trace Analysis has it.
        memset_as_compute: count memsets as computation, as TraceLens does.
    """
    sets = work_sets(timeline, memset_as_compute)
    bounds = work_window(timeline, sets, window)
    if bounds is None or bounds[1] <= bounds[0]:
        return None
    whole = window_set(timeline, bounds, window)
    span = total_ns(whole)
    of_steps = window == "steps" and timeline.spans is not None
    cut = (lambda found: within(found, whole)) if of_steps else (lambda found: found)
    compute, communication, memory, busy, active = (
        total_ns(cut(found)) for found in (sets.compute, sets.communication, sets.memory, sets.busy, sets.active)
    )
    overlapped = compute + communication - active
    return Temporal(
        rank=timeline.rank,
        window="kernels" if not of_steps else "steps" if timeline.window is None else timeline.window.label,
        steps=len(timeline.steps) if of_steps else 0,
        span_ns=span,
        busy_ns=busy,
        idle_ns=span - busy,
        compute_ns=compute,
        communication_ns=communication,
        overlapped_communication_ns=overlapped,
        exposed_communication_ns=communication - overlapped,
        memory_ns=memory,
        exposed_memory_ns=busy - active,
        on_gpu=sets.on_gpu,
    )


def running_ns(timeline: Timeline, wanted: Callable[[str], bool]) -> int:
    """Return the time of what is analyzed in which a kernel runs whose name is wanted, ns; copies are no kernels."""
    work = timeline.work
    chosen = work.is_named(wanted) & ~work.is_kind("memcpy", "memset")
    found = merged(work.start[chosen], work.end[chosen])
    return total_ns(found if timeline.spans is None else within(found, timeline.spans))


def start_up_copies_ns(timeline: Timeline) -> int:
    """Return the time of what is analyzed with copies or memsets before the trace's first kernel, ns: they fill the
    GPU's memory once. 0 where there is no kernel, and where steps are marked: what a step copies belongs to it."""
    sets = work_sets(timeline)
    if len(timeline.steps) or not sets.on_gpu or not len(sets.active):
        return 0
    found = sets.memory if timeline.spans is None else within(sets.memory, timeline.spans)
    return total_ns(within(found, np.array([[np.iinfo(np.int64).min, sets.active[0, 0]]], dtype=np.int64)))


def temporal_frame(rows: Sequence[Temporal]) -> "pd.DataFrame":
    """Return one row per rank: rank, window, steps, span_ms, busy_ms, ..., their shares of it, overlap_share."""
    import pandas as pd

    records = []
    for row in rows:
        values = asdict(row)
        times = {name[:-3]: value for name, value in values.items() if name.endswith("_ns")}
        record = {"rank": row.rank, "window": row.window, "steps": row.steps}
        record |= {f"{name}_ms": value / 1e6 for name, value in times.items()}
        record |= {f"{name}_share": value / row.span_ns for name, value in times.items() if name != "span"}
        records.append({**record, "overlap_share": row.overlap_share})
    frame = pd.DataFrame(records)
    return frame.astype({"rank": "Int64", "overlap_share": "float64"}) if records else frame


def iterations(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per marked step, in order of start, times in ms: where the time of each went.

    Columns: rank, step, step_time_ms, busy_ms, idle_ms, compute_ms, launched_compute_ms, communication_ms,
    exposed_communication_ms, memory_ms, exposed_memory_ms, kernels (that begin in it; copies and memsets are none),
    launched_communication_ms, launched_memory_ms, launched_busy_ms, launched_kernels, behind_ms, device_step_ms.
    Work counts in the step in whose time it ran, also where the step before launched it. The columns launched_... are
    of what the step launched, whenever it ran. behind_ms: from the step's end to that of the last work it launched, 0
    where that is earlier. device_step_ms: from the end of the last work of the step before to that of this one (NaN in
    the first). These are NaN where it is not known who launched what. Of a trace without work all but the first three
    are NaN.
    """
    import pandas as pd

    sets, steps = work_sets(timeline), timeline.steps.sort_values("start", kind="stable")
    begins, ends = steps["start"].to_numpy(dtype=np.int64), steps["end"].to_numpy(dtype=np.int64)
    compute, communication, memory, busy, active = (
        inside_ns(found, begins, ends)
        for found in (sets.compute, sets.communication, sets.memory, sets.busy, sets.active)
    )
    work = timeline.work
    starts = np.sort(work.start[~work.is_kind("memcpy", "memset")]) if len(steps) else begins
    length = ends - begins
    launched = _launched(timeline, ends)
    times = {
        "step_time_ms": length,
        "busy_ms": busy,
        "idle_ms": length - busy,
        "compute_ms": compute,
        "launched_compute_ms": launched["launched_compute_ms"],
        "communication_ms": communication,
        "exposed_communication_ms": active - compute,
        "memory_ms": memory,
        "exposed_memory_ms": busy - active,
    }
    frame = pd.DataFrame(
        {
            "rank": pd.array([timeline.rank] * len(steps), dtype="Int64"),
            "step": steps["step"].to_numpy(),
            **{name: values / 1e6 for name, values in times.items()},
            "kernels": np.searchsorted(starts, ends) - np.searchsorted(starts, begins),
            **{name: launched[name] / (1 if name == "launched_kernels" else 1e6) for name in LAUNCHED[1:]},
        }
    )
    if work_window(timeline, sets) is None:
        frame[[*(name for name in times if name != "step_time_ms"), "kernels"]] = np.nan
    return frame


LAUNCHED = (
    "launched_compute_ms",
    "launched_communication_ms",
    "launched_memory_ms",
    "launched_busy_ms",
    "launched_kernels",
    "behind_ms",
    "device_step_ms",
)
"""Columns of `iterations` about what the steps launched."""


def _launched(timeline: Timeline, ends: Intervals) -> dict[str, npt.NDArray[np.float64]]:
    """The columns of LAUNCHED in ns and counts. Args: ends: of the steps, in order of start."""
    found = launched_work(timeline)
    if found is None:
        return dict.fromkeys(LAUNCHED, np.full(len(ends), np.nan))
    base = int(ends[0])  # floats hold no ns of today's clocks
    done = np.where(found.end_ns < 0, np.nan, (found.end_ns - base).astype(float))
    columns = (found.compute_ns, found.communication_ns, found.memory_ns, found.busy_ns, found.kernels)
    behind = (done - (ends - base)).clip(min=0)
    values = [*(column.astype(float) for column in columns), behind, np.diff(done, prepend=np.nan)]
    return dict(zip(LAUNCHED, values, strict=True))


def iteration_spread(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the spread over steps of what `iterations` returned: quantity, steps, median, p5, p95, min, max.

    Percentiles are linearly interpolated. Of several ranks' rows put together, every step of every rank counts once.
    """
    import pandas as pd

    columns = ["quantity", "steps", "median", "p5", "p95", "min", "max"]
    rows = []
    for name in frame.columns:
        if not str(name).endswith(("_ms", "kernels")) or not len(frame):
            continue
        values = frame[name].to_numpy(dtype=float)
        values = values[~np.isnan(values)]
        if not len(values):
            continue
        low, median, high = np.percentile(values, [5, 50, 95])
        rows.append([name, len(values), median, low, high, values.min(), values.max()])
    return pd.DataFrame(rows, columns=columns)


def _cpu_sets(timeline: Timeline) -> WorkSets:
    compute = cpu_computation(timeline.operators) if len(timeline.operators) else _NOTHING
    communication = cpu_communication(timeline)
    active = union(compute, communication)
    return WorkSets(compute, communication, _NOTHING, active, active, on_gpu=False)


def cpu_communication(timeline: Timeline) -> Intervals:
    """Return the spans of communication on CPU threads: the collectives, or where none are listed what is named so.

    Ranges of NCCL and RCCL are left out: they end when the collective is in the GPU's queue.
    """
    spans = timeline.collectives
    if len(spans):
        spans = spans[spans["device"] < 0]
        return merged(spans["start"], spans["end"])
    parts = []
    for table in (timeline.operators, timeline.ranges):
        named = {name for name in table["name"].unique() if collective(str(name)) and not is_gpu_library(str(name))}
        part = table[table["name"].isin(named)]
        parts.append(merged(part["start"], part["end"]))
    return union(*parts)


def cpu_computation(operators: "pd.DataFrame") -> Intervals:
    """Return when a CPU computes: the outermost operators of every thread less the communication in them, all threads.

    Another thread that communicates does not stop one that computes.
    """
    communicating = is_communication(operators)
    parts = []
    for _, part in operators.assign(communicating=communicating).groupby("thread"):
        outermost = part[part["outermost"]]
        waiting = part[part["communicating"]]
        parts.append(difference(merged(outermost["start"], outermost["end"]), merged(waiting["start"], waiting["end"])))
    joined = np.concatenate(parts)
    return merged(joined[:, 0], joined[:, 1])
