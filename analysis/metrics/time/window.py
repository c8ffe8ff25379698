"""What a rank did when, and the window: the part of a trace that is analyzed (docs/explanation/timeline.md).

On a GPU computation is kernels and CUDA graphs that are not communication. On a CPU it is the outermost operators of
every thread less the communication in them; communication is the spans of gloo and MPI. A rank with several GPUs has
one of these a GPU, and its times are means over its GPUs.

Time is cut at the window's edges. Counts, and sums over kernels and collectives, are of what the host launched in the
window (see `launched_at`), with all its length: a GPU may run behind its CPU, and so the work of each step counts once.
The window is the marked steps, or all work where none is marked, or what was asked for: steps, a named range, a time.
Occurrences of a range are steps; those that overlap are one, and the time between them is not in the window.
"""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.intervals import Intervals, difference, merged, total_ns, union
from analysis.names import collective, communicates, is_gpu_library
from analysis.timeline import STEP_COLUMNS, ChosenWindow, Mask, Timeline, empty, is_communication, kept, named, typed
from analysis.wording import number
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]
Window = Literal["steps", "kernels"]
NOTHING: Intervals = np.empty((0, 2), dtype=np.int64)
STEPS, KERNELS = "steps", "kernels"
_FORMS = "steps, kernels, step:N, step:N..M, range:NAME, or a time such as 1.2s..3.4s (units s, ms, us)"
_NUMBER = r"(\d{1,15}(?:\.\d*)?|\.\d+)"
_TIME = re.compile(rf"{_NUMBER}(s|ms|us)?\.\.{_NUMBER}(s|ms|us)", re.IGNORECASE)
_STEP = re.compile(r"step:(\d{1,18})(?:\.\.(\d{1,18}))?")
_UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3}
_MOST_NAMES = 12
_DAY_NS = 24 * 3600 * 10**9
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class WorkSets:
    """What a rank, or one of its GPUs, did when."""

    compute: Intervals
    communication: Intervals
    memory: Intervals
    """Copies and memsets."""
    busy: Intervals
    active: Intervals
    """Computation or communication."""
    on_gpu: bool
    device: int | None = None
    """The GPU; None for all GPUs together, and on a CPU."""


@kept
def is_kernel(timeline: Timeline) -> Mask:
    """Return which rows of `kernels` are kernels or CUDA graphs, shape (n,); copies and memsets are none."""
    return timeline.work.is_kind("kernel", "graph")


@kept
def communicating(timeline: Timeline) -> Mask:
    """Return which rows of `kernels` are kernels of communication, shape (n,)."""
    return timeline.work.is_named(communicates) & is_kernel(timeline)


@kept
def work_sets(timeline: Timeline, device: int | None = None) -> WorkSets:
    """Return what a rank did when, on one GPU or, by default, on any of them."""
    work = timeline.work
    if not len(work):
        compute = cpu_computation(timeline.operators) if len(timeline.operators) else NOTHING
        communication = cpu_communication(timeline)
        active = union(compute, communication)
        return WorkSets(compute, communication, NOTHING, active, active, on_gpu=False)
    kernels, talks = is_kernel(timeline), communicating(timeline)
    here = True if device is None else work.device == device
    compute, communication, memory = (
        merged(work.start[chosen], work.end[chosen])
        for chosen in (kernels & ~talks & here, talks & here, ~kernels & here)
    )
    active = union(compute, communication)
    return WorkSets(compute, communication, memory, union(active, memory), active, on_gpu=True, device=device)


@kept
def device_sets(timeline: Timeline) -> list[WorkSets]:
    """Return what each GPU that ran kernels did when; one entry for a rank with one GPU or none."""
    work = timeline.work
    devices = np.unique(work.device[is_kernel(timeline)]).tolist() if len(work) else []
    return [work_sets(timeline, device) for device in devices] if len(devices) > 1 else [work_sets(timeline)]


def cpu_communication(timeline: Timeline) -> Intervals:
    """Return the spans of communication on CPU threads: the collectives, or where none are listed what is named so.

    Ranges of NCCL and RCCL are left out: they end when the collective is in the GPU's queue.
    """
    spans = timeline.collectives
    if len(spans):
        spans = spans[spans["device"] < 0]
        return merged(spans["start"], spans["end"])
    marked = (timeline.operators, timeline.ranges)
    return open_times(marked, lambda name: collective(name) is not None and not is_gpu_library(name))


def open_times(
    tables: "Iterable[pd.DataFrame]", wanted: Callable[[str], bool], threads: Container[str] | None = None
) -> Intervals:
    """Return when a row of a wanted name is open in any of the tables, on one of the threads where they are given."""
    parts = []
    for table in tables:
        rows = table[named(table["name"], wanted)]
        rows = rows if threads is None else rows[named(rows["thread"], threads.__contains__)]
        parts.append(merged(rows["start"], rows["end"]))
    return union(*parts)


def cpu_computation(operators: "pd.DataFrame") -> Intervals:
    """Return when a CPU computes: the outermost operators of every thread less the communication in them."""
    parts = []
    for _, part in operators.assign(waits=is_communication(operators)).groupby("thread"):
        outermost, waiting = (
            merged(part.loc[part[flag], "start"], part.loc[part[flag], "end"]) for flag in ("outermost", "waits")
        )
        parts.append(difference(outermost, waiting))
    return union(*parts)


@kept
def launching_calls(timeline: Timeline) -> Numbers | None:
    """Return for each row of `kernels` the row of `api` that launched it, -1 unknown; None where no row is known.

    Several rows of one call (a CUDA graph's) have the same. Of calls that share an id the first counts.
    """
    kernels, api = timeline.kernels, timeline.api
    if "correlation_id" not in {*kernels.columns} & {*api.columns} or not len(kernels) or not len(api):
        return None
    calls = _calls_with(timeline, kernels["correlation_id"].to_numpy())
    return calls if (calls >= 0).any() else None


def _calls_with(timeline: Timeline, correlations: npt.NDArray[Any]) -> Numbers:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has.

    Ids begin with 1; 0 is no call's.
    """
    ids, first = _numbered_calls(timeline)
    if not len(ids):
        return np.full(len(correlations), -1, dtype=np.int64)
    place = np.searchsorted(ids, correlations).clip(max=len(ids) - 1)
    return np.where((ids[place] == correlations) & (correlations > 0), first[place], -1)


@kept
def _numbered_calls(timeline: Timeline) -> tuple[Numbers, Numbers]:
    ids, first = np.unique(timeline.api["correlation_id"].to_numpy(), return_index=True)
    return ids, first


@kept
def work_time(timeline: Timeline, window: Window = "steps") -> Intervals | None:
    """Return the window as a set; None for a trace without work, or without time between its first and last.

    "kernels" is from the first start to the last end of GPU work, whatever is marked (as Holistic Trace Analysis).
    """
    work, busy = timeline.work, work_sets(timeline).busy
    starts, ends = (work.start, work.end) if len(work) else busy.T  # GPU work with that of no length
    if not len(starts):
        return None
    whole = np.array([[starts.min(), ends.max()]], dtype=np.int64)
    if window == "steps" and timeline.spans is not None:
        whole = timeline.spans
    return whole if total_ns(whole) else None


def analysis_time(timeline: Timeline) -> Intervals | None:
    """Return the window as a set, also of a trace without work: its steps, or all that was recorded; None for none."""
    whole = timeline.spans if timeline.spans is not None else work_time(timeline)
    if whole is None:
        begin, end = _extent(*([timeline.kernels] if len(timeline.kernels) else [timeline.operators, timeline.ranges]))
        whole = np.array([[begin, end]], dtype=np.int64) if begin < end else None
    return whole


@kept
def launched_at(timeline: Timeline) -> Numbers:
    """Return the moment at which each row of `kernels` counts, ns, shape (n,).

    That is when the host launched it; where the trace does not tie it to a call, when it begins. Work of one stream
    runs in the order of its launches: where more than half of all work is tied to calls, work without a call that
    begins before the first of its stream that has one (of a stream that has none: before the first of any) was
    launched before the recording began. It counts never.
    """
    work, calls = timeline.work, launching_calls(timeline)
    if calls is None:
        return work.start
    known = calls >= 0
    moments = np.where(known, timeline.api["start"].to_numpy(dtype=np.int64)[calls], work.start)
    if known.all() or 2 * known.sum() <= len(known):
        return moments
    device, stream = (np.unique(values, return_inverse=True)[1] for values in (work.device, work.stream))
    streams, latest = device * (stream.max() + 1) + stream, np.iinfo(np.int64).max
    first = np.full(int(streams.max()) + 1, latest)
    np.minimum.at(first, streams[known], work.start[known])
    first[first == latest] = work.start[known].min()
    return np.where(~known & (work.start < first[streams]), _NEVER, moments)


@kept
def collectives_at(timeline: Timeline) -> Numbers:
    """Return the same of each row of `collectives`, shape (n,)."""
    table, begins = timeline.collectives, timeline.api["start"].to_numpy(dtype=np.int64)
    calls = _calls_with(timeline, table["correlation_id"].to_numpy(dtype=np.int64))
    return np.where(calls >= 0, np.append(begins, 0)[calls], table["start"].to_numpy(dtype=np.int64))


@kept
def in_window(timeline: Timeline, window: Window = "steps") -> tuple[Mask, int]:
    """Return which rows of `kernels` are launched in the window, see `work_time`, and the window's length in ns."""
    work = timeline.work
    if window == "kernels" or not len(work) or timeline.spans is None:
        return np.ones(len(work), dtype=bool), int(work.end.max() - work.start.min()) if len(work) else 0
    return timeline.inside(launched_at(timeline)), total_ns(timeline.spans)


def step_places(timeline: Timeline, moments: npt.NDArray[Any]) -> Numbers:
    """Return the place of the marked step, in order of start, around each of n moments, -1 none, shape (n,)."""
    steps = timeline.steps.sort_values("start", kind="stable")
    begins, ends = (np.append(steps[name].to_numpy(dtype=np.int64), _NEVER) for name in ("start", "end"))
    place = np.searchsorted(begins[:-1], moments, side="right") - 1
    return np.where((place >= 0) & (moments < ends[place]), place, -1)


def steps_at(timeline: Timeline, moments: npt.NDArray[Any]) -> "pd.api.extensions.ExtensionArray":
    """Return the number of the marked step around each of n moments, Int64, missing where there is none, shape (n,)."""
    steps = timeline.steps.sort_values("start", kind="stable")["step"].astype("Int64").array
    return steps.take(step_places(timeline, moments), allow_fill=True)


class WindowChoice(NamedTuple):
    """A part of a trace that a text names; ranges of numbers are half-open."""

    text: str
    name: str = ""
    """Of a range."""
    steps: tuple[int, int] | None = None
    time_ns: tuple[int, int] | None = None
    """Since the origin."""


def parse_window(text: str) -> WindowChoice:
    """Return what a text asks for.

    Raises:
        UsageError: it is none of the forms, or it is empty.
    """
    if text in (STEPS, KERNELS):
        return WindowChoice(text)
    if (name := text.removeprefix("range:")) != text and name.strip():
        return WindowChoice(text, name)
    if step := _STEP.fullmatch(text):
        choice = WindowChoice(text, steps=(int(step[1]), int(step[2] or step[1]) + 1))
    elif time := _TIME.fullmatch(text):
        units = (_UNITS_NS[(unit or time[4]).lower()] for unit in (time[2], time[4]))
        begin, end = (round(float(value) * unit) for value, unit in zip((time[1], time[3]), units, strict=True))
        choice = WindowChoice(text, time_ns=(begin, end))
    else:
        raise UsageError("option-value", f"--window {text} is not a window: give {_FORMS}")
    begin, end = choice.steps or choice.time_ns or (0, 1)
    if end <= begin:
        raise UsageError("option-value", f"--window {text} is empty: give an end that is after the begin")
    return choice


def windowed(timelines: Sequence[Timeline], text: str) -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Return the timelines with a window, and a sentence each on ranks without it and on time outside the recording.

    The text is "steps": unchanged; "kernels": no step is marked, so that everything counts; "step:N", "step:N..M";
    "range:NAME", in which * stands for any text; or a time, "1.2s..3.4s", counted from `origin_ns`.

    Raises:
        UsageError: the text is no window, or there is no trace to choose a part of.
        InputError: no timeline has it.
    """
    choice = parse_window(text)
    if text == STEPS:
        return tuple(timelines), ()
    if text == KERNELS:
        return tuple(one.replace(steps=empty(STEP_COLUMNS)) for one in timelines), ()
    if not timelines:
        raise UsageError("option-not-applicable", f"--window {text} needs a trace: tables of totals have no time line")
    cut = [_cut(timeline, choice) for timeline in timelines]
    chosen = tuple(one for one in cut if one is not None)
    if not chosen:
        raise InputError("trace-without-work", f"--window {text}: {_refusal(timelines, choice)}")
    problems = []
    if lost := [str(old.rank) for old, new in zip(timelines, cut, strict=True) if new is None]:
        problems.append(f"left out, as they have no window {text}: rank {', '.join(lost)}")
    if choice.time_ns is not None:
        begin, end = _recorded_seconds(chosen)
        if choice.time_ns[0] < begin * 1e9 or choice.time_ns[1] > end * 1e9:
            problems.append(f"--window {text}: only {number(begin)}s to {number(end)}s was recorded")
    return chosen, tuple(problems)


def origin_ns(timeline: Timeline) -> int:
    """Return where times of a window count from, ns.

    nsys and nvprof count from the start of the recording, as their viewers do; absolute times count from the first
    step, operator, call, range or piece of work.
    """
    if timeline.window is not None:
        return timeline.window.origin_ns
    first, _ = _recorded(timeline)
    return 0 if timeline.source.startswith(("nsys", "nvprof")) and 0 <= first < _DAY_NS else first


def _cut(timeline: Timeline, choice: WindowChoice) -> Timeline | None:
    """Return the timeline with the window; None where it does not have it."""
    steps = timeline.steps.sort_values("start", kind="stable")
    label, origin = choice.text, origin_ns(timeline)
    if choice.time_ns is not None:
        begin, end = (origin + moment for moment in choice.time_ns)
        steps = steps[(steps["start"] >= begin) & (steps["end"] <= end)]
        first, last = _recorded(timeline)
        spans = merged([max(begin, first)], [min(end, last)])  # what was not recorded is not idle
    elif choice.steps is not None:
        label, steps = STEPS, steps[steps["step"].between(*choice.steps, inclusive="left")]
        spans = merged([steps["start"].min()], [steps["end"].max()]) if len(steps) else NOTHING
    else:
        spans = _occurrences(timeline, choice.name)
        rows = [{"step": place, "start": begin, "end": end} for place, (begin, end) in enumerate(spans.tolist())]
        steps, spans = typed(rows, STEP_COLUMNS), merged(spans[:, 0], spans[:, 1])
    window = ChosenWindow(label, spans, origin)
    return timeline.replace(steps=steps.reset_index(drop=True), window=window) if len(spans) else None


def _occurrences(timeline: Timeline, name: str) -> Intervals:
    """Return the occurrences of a range, those that overlap as one; those that touch stay apart."""
    pattern = re.compile(f"(?:bertbench:)?{re.escape(name).replace(re.escape('*'), '.*')}", re.DOTALL)
    chosen = timeline.ranges[named(timeline.ranges["name"], lambda one: bool(pattern.fullmatch(one)))]
    starts, ends = (chosen[column].to_numpy(dtype=np.int64) for column in ("start", "end"))
    starts, ends = starts[ends > starts], np.maximum.accumulate(ends[ends > starts])
    first = np.append(True, starts[1:] >= ends[:-1])[: len(starts)]
    return np.column_stack([starts[first], ends[np.roll(first, -1)]])


def _extent(*tables: "pd.DataFrame") -> tuple[int, int]:
    """Return the first start and the last end in any of the tables, ns; zeros where all are empty."""
    filled = [(int(table["start"].min()), int(table["end"].max())) for table in tables if len(table)]
    starts, ends = zip(*filled, strict=True) if filled else ((0,), (0,))
    return min(starts), max(ends)


def _recorded(timeline: Timeline) -> tuple[int, int]:
    return _extent(timeline.steps, timeline.kernels, timeline.api, timeline.operators, timeline.ranges)


def _recorded_seconds(timelines: Sequence[Timeline]) -> tuple[float, float]:
    """Return from when to when something was recorded on any rank, seconds since the origin of its window."""
    times = [(moment - origin_ns(one)) / 1e9 for one in timelines for moment in _recorded(one)]
    return min(times), max(times)


def _refusal(timelines: Sequence[Timeline], choice: WindowChoice) -> str:
    if choice.time_ns is not None:
        begin, end = _recorded_seconds(timelines)
        return f"nothing was recorded then; the trace is from {number(begin)}s to {number(end)}s"
    kind, column = ("range", "name") if choice.steps is None else ("step", "step")
    tables = (one.ranges if choice.steps is None else one.steps for one in timelines)
    values = dict.fromkeys(value for table in tables for value in table[column].unique().tolist())
    names = [str(value)[:80] for value in (values if choice.steps is None else sorted(values))]
    shown = ", ".join(names[:_MOST_NAMES]) or "none"
    return f"no such {kind}; there are {shown}{', ...' if len(names) > _MOST_NAMES else ''}"
