"""Where the time of a rank goes: computing, communicating, copying, idle; as a whole and step by step.

On unions of intervals, as measurement.md defines them. With K computation, C communication, M copies and memsets:

    overlapped communication = |C and K|          exposed communication = |C| - |C and K|
    busy = |K or C or M| = |K| + exposed communication + exposed memory, with exposed memory = |M minus (K or C)|
    idle = window - busy

Times of a rank with several GPUs are means over its GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import launching_calls
from analysis.metrics.time.window import Window, launched_at, step_places, work_time
from analysis.metrics.time.work import device_sets, work_sets
from analysis.names import communicates
from analysis.spans import inside_ns, merged, total_ns, within
from analysis.timeline import MOSTLY, Timeline

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Temporal:
    """The time of one rank."""

    rank: int | None
    window: str
    """"steps": first marked step's start to last one's end; "kernels": first start to last end of work; a window that
    was chosen: its label."""
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
    """Time with copies or memsets."""
    exposed_memory_ns: int
    """Time with copies or memsets and nothing else."""

    @property
    def on_gpu(self) -> bool:
        """Whether it is work of GPUs; a CPU's otherwise."""
        return self.devices > 0

    @property
    def overlap_share(self) -> float | None:
        """Share of the communication that computation hides, 0 to 1; None where there is none."""
        return self.overlapped_communication_ns / self.communication_ns if self.communication_ns else None


def temporal_breakdown(timeline: Timeline, window: Window = "steps") -> Temporal | None:
    """Return where the time of one rank goes; None for a trace without work, such as nsys' of a run on a CPU.

    Args:
        timeline: what a reader returned.
        window: "steps": the marked steps, work outside cut off, or the kernels' window where no step is marked;
            "kernels": from the first start to the last end of any GPU work, as Holistic Trace Analysis has it.
    """
    whole = work_time(timeline, window)
    if whole is None:
        return None
    sets, span = device_sets(timeline), total_ns(whole)
    compute, communication, memory, busy, active = (
        round(sum(total_ns(within(getattr(one, name), whole)) for one in sets) / len(sets))
        for name in ("compute", "communication", "memory", "busy", "active")
    )
    of_steps = window == "steps" and timeline.spans is not None
    overlapped = compute + communication - active
    return Temporal(
        rank=timeline.rank,
        window="kernels" if not of_steps else "steps" if timeline.window is None else timeline.window.label,
        steps=len(timeline.steps) if of_steps else 0,
        devices=len(sets) if sets[0].on_gpu else 0,
        span_ns=span,
        busy_ns=busy,
        idle_ns=span - busy,
        compute_ns=compute,
        communication_ns=communication,
        overlapped_communication_ns=overlapped,
        exposed_communication_ns=communication - overlapped,
        memory_ns=memory,
        exposed_memory_ns=busy - active,
    )


def running_ns(timeline: Timeline, wanted: Callable[[str], bool]) -> int:
    """Return the time of the window in which a kernel of a wanted name runs, ns; copies are no kernels."""
    work = timeline.work
    chosen = work.is_named(wanted) & ~work.is_kind("memcpy", "memset")
    running = merged(work.start[chosen], work.end[chosen])
    return total_ns(running if timeline.spans is None else within(running, timeline.spans))


def start_up_copies_ns(timeline: Timeline) -> int:
    """Return the time of the window with copies or memsets before the first kernel, ns: they fill the memory once.

    0 where there is no kernel, and where steps are marked: what a step copies belongs to it.
    """
    sets = work_sets(timeline)
    if len(timeline.steps) or not sets.on_gpu or not len(sets.active):
        return 0
    memory = sets.memory if timeline.spans is None else within(sets.memory, timeline.spans)
    return int(inside_ns(memory, [np.iinfo(np.int64).min], [sets.active[0, 0]])[0])


def temporal_frame(rows: Sequence[Temporal]) -> "pd.DataFrame":
    """Return one row per rank: rank, window, steps, devices, span_ms, busy_ms, ..., their shares, overlap_share."""
    import pandas as pd

    records = []
    for row in rows:
        values = asdict(row)
        times = {name[:-3]: value for name, value in values.items() if name.endswith("_ns")}
        record = {name: values[name] for name in ("rank", "window", "steps", "devices")}
        record |= {f"{name}_ms": value / 1e6 for name, value in times.items()}
        record |= {f"{name}_share": value / row.span_ns for name, value in times.items() if name != "span"}
        records.append({**record, "overlap_share": row.overlap_share})
    frame = pd.DataFrame(records)
    return frame.astype({"rank": "Int64", "overlap_share": "float64"}) if records else frame


def launching_steps(timeline: Timeline) -> Numbers | None:
    """Return the place of the marked step that launched each row of `kernels`, in order of start, -1 none, shape (n,).

    None where no step is marked, or less than MOSTLY of the kernels that compute can be tied to a call.
    """
    calls, work = launching_calls(timeline), timeline.work
    if calls is None or not len(timeline.steps):
        return None
    moments = launched_at(timeline)
    computes = ~work.is_kind("memcpy", "memset") & ~work.is_named(communicates) & (moments > np.iinfo(np.int64).min)
    if (calls[computes] >= 0).sum() < MOSTLY * computes.sum():
        return None
    return np.where(calls >= 0, step_places(timeline, moments), -1)


def launched_compute_ns(timeline: Timeline) -> int | None:
    """Return the time of the computation that the marked steps launched, wherever it ran, ns; None unknown."""
    places, work = launching_steps(timeline), timeline.work
    if places is None:
        return None
    chosen = (places >= 0) & ~work.is_kind("memcpy", "memset") & ~work.is_named(communicates)
    return total_ns(merged(work.start[chosen], work.end[chosen]))


def iterations(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per marked step, in order of start, times in ms: where the time of each went.

    Columns: rank, step, step_time_ms, busy_ms, idle_ms, compute_ms, launched_compute_ms (of what the step launched,
    whenever it ran), communication_ms, exposed_communication_ms, memory_ms, exposed_memory_ms, kernels (launched in
    it; copies and memsets are none), behind_ms (from the step's end to that of the last work it launched, 0 where that
    is earlier). What is not known is NaN: of a trace without work all but the first three, and launched_compute_ms and
    behind_ms where it is not known who launched what.
    """
    import pandas as pd

    sets, steps = device_sets(timeline), timeline.steps.sort_values("start", kind="stable")
    begins, ends = steps["start"].to_numpy(dtype=np.int64), steps["end"].to_numpy(dtype=np.int64)

    def mean(name: str) -> npt.NDArray[np.float64]:
        inside = [inside_ns(getattr(one, name), begins, ends) for one in sets]
        return np.asarray(np.sum(inside, axis=0) / len(sets))

    compute, busy, active = mean("compute"), mean("busy"), mean("active")
    work, length = timeline.work, ends - begins
    launched = launched_at(timeline) if len(work) else work.start
    kernels = np.bincount(
        step_places(timeline, launched[~work.is_kind("memcpy", "memset")]) + 1, minlength=len(steps) + 1
    )
    computing, behind = _launched(timeline, ends)
    times = {
        "step_time_ms": length,
        "busy_ms": busy,
        "idle_ms": length - busy,
        "compute_ms": compute,
        "launched_compute_ms": computing,
        "communication_ms": mean("communication"),
        "exposed_communication_ms": active - compute,
        "memory_ms": mean("memory"),
        "exposed_memory_ms": busy - active,
    }
    frame = pd.DataFrame(
        {
            "rank": pd.array([timeline.rank] * len(steps), dtype="Int64"),
            "step": steps["step"].to_numpy(),
            **{name: values / 1e6 for name, values in times.items()},
            "kernels": kernels[1:],
            "behind_ms": behind / 1e6,
        }
    )
    if not len(work) and not len(sets[0].busy):
        frame[[name for name in frame.columns if name not in ("rank", "step", "step_time_ms")]] = np.nan
    return frame


def _launched(timeline: Timeline, ends: Numbers) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each step the computation it launched, and how long after its end the last of its work ends, ns."""
    unknown = np.full(len(ends), np.nan)
    places, work = launching_steps(timeline), timeline.work
    if places is None:
        return unknown, unknown
    computes = ~work.is_kind("memcpy", "memset") & ~work.is_named(communicates)
    order = np.argsort(places, kind="stable")
    computing, behind = unknown.copy(), unknown.copy()
    for step, rows in enumerate(np.split(order, np.searchsorted(places[order], np.arange(len(ends) + 1)))[1:-1]):
        chosen = rows[computes[rows]]
        computing[step] = total_ns(merged(work.start[chosen], work.end[chosen]))
        if len(rows):
            behind[step] = max(0, int(work.end[rows].max()) - int(ends[step]))
    return computing, behind


def iteration_spread(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the spread over steps of what `iterations` returned: quantity, steps, median, p5, p95, min, max.

    Percentiles are linearly interpolated. Of several ranks' rows put together, every step of every rank counts once.
    """
    import pandas as pd

    rows = []
    for name in frame.columns:
        values = frame[name].dropna().to_numpy(dtype=float) if name not in ("rank", "step") else np.empty(0)
        if len(values):
            low, median, high = np.percentile(values, [5, 50, 95])
            rows.append((name, len(values), median, low, high, values.min(), values.max()))
    return pd.DataFrame(rows, columns=["quantity", "steps", "median", "p5", "p95", "min", "max"])
