"""What readers of traces return: one timeline per rank, as tables. Times are integer nanoseconds of one clock."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from analysis.intervals import Intervals
from analysis.names import communicates

if TYPE_CHECKING:
    import pandas as pd


F = TypeVar("F", bound=Callable[..., Any])
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MISSING = -(2**63)
"""In columns of integers that readers make: the file does not say, or says what is no whole number of 64 bits."""
HOST_NS = 10_000
"""Shorter rows of Timeline.host are not read: there are very many, and none explains why a GPU is idle."""
MODULE = "nn.Module: "
"""How rows of Timeline.host begin that are calls of modules; these are read whatever their length."""
EVALUATES = "autograd::engine::evaluate_function: "
"""How rows of Timeline.operators begin in which autograd evaluates a node of the backward pass."""
MOSTLY = 0.9
"""Share of the computing kernels whose launching call has to be known: fewer would pass for less work."""
CLIPPED_SHARE = 0.01
"""Share of the GPU work's time from which clipped overlaps are a problem of the trace."""
STEP_COLUMNS = {"step": "int64", "start": "int64", "end": "int64"}
SPAN_COLUMNS = {"name": "str", "thread": "str", "start": "int64", "end": "int64"}
OPERATOR_COLUMNS = {**SPAN_COLUMNS, "self_ns": "int64", "outermost": "bool"}
API_COLUMNS = {**SPAN_COLUMNS, "correlation_id": "int64"}
KERNEL_COLUMNS = {"name": "str", "kind": "str", "device": "int64", "stream": "int64", "start": "int64", "end": "int64"}
SAMPLE_COLUMNS = {"name": "str", "device": "int64", "start": "int64", "value": "float64"}
COLLECTIVE_COLUMNS = {
    "name": "str",  # as the trace has it
    "collective": "str",  # one of names.COLLECTIVES
    "device": "int64",  # GPU; -1: the span of a CPU thread (gloo, MPI)
    "stream": "int64",  # -1 on a CPU
    "start": "int64",
    "end": "int64",
    "bytes": "int64",  # as nccl-tests counts: all_reduce the buffer, all_gather what one rank receives
    "dtype": "str",  # as the trace has it; "" unknown
    "group": "str",  # process group; "" unknown
    "group_size": "int64",  # ranks in it; -1 unknown
    "seq": "int64",  # number of the collective in its group, equal on all ranks; -1 unknown
    "correlation_id": "int64",  # of the kernel; -1 unknown
}
"""Numbers that a trace does not say are -1, texts ""."""


_TEXTS = {"window", "collective", "group", "description", "group_ranks", "cause", "phase"}
_MAY_BE_MISSING = {"rank", "step", "bytes", "group_size"}


def columns(names: str) -> dict[str, str]:
    """Return the types of columns by their names: texts, whole numbers, and fractions where the name has a unit."""
    units = ("_ms", "_us", "_gb_s", "_share", "_mean", "_per_step")
    fractions = {name: "float64" for name in names.split() if name.endswith(units)}
    whole = {name: "Int64" if name in _MAY_BE_MISSING else "int64" for name in names.split()}
    return whole | fractions | {name: "str" for name in names.split() if name in _TEXTS}


def typed(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return rows as a table with these columns and types; also of no rows."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def empty(columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return a table without rows that has these columns and types."""
    return typed((), columns)


def name_codes(column: "pd.Series[str]") -> tuple[npt.NDArray[Any], list[str]]:
    """Return a number per row, of any type of integer, and the names that these number; categories are not unpacked."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, names = column.cat.codes.to_numpy(), column.cat.categories
    else:
        codes, names = pd.factorize(column)
    if (codes < 0).any():  # a missing name
        codes = np.where(codes < 0, len(names), codes)
    return codes, [*map(str, names.tolist()), ""]


def where(codes: npt.NDArray[Any], names: Sequence[str], wanted: Callable[[str], bool]) -> Mask:
    """Return which of n codes stand for a name that is wanted, shape (n,); asked once for each name that occurs."""
    used = np.zeros(len(names), dtype=bool)
    used[codes] = True
    chosen: Mask = np.array([bool(used[code]) and wanted(name) for code, name in enumerate(names)], dtype=bool)[codes]
    return chosen


def named(column: "pd.Series[str]", wanted: Callable[[str], bool]) -> Mask:
    """Return which rows of a column of texts are wanted; asked once for each text that occurs."""
    return where(*name_codes(column), wanted)


def is_communication(table: "pd.DataFrame") -> Mask:
    """Return which rows of a table with `name` are communication."""
    return named(table["name"], communicates)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """n pieces of work as arrays, in the order of Timeline.kernels. Times are integer nanoseconds.

    `names` and `kinds` hold each text once, and some may not occur; `name` and `kind` are places in them. Numbers of
    devices and streams are of any type of integer. `more` are further columns of Timeline.kernels.
    """

    names: Sequence[str]
    name: npt.NDArray[Any]
    kinds: Sequence[str]
    kind: npt.NDArray[Any]
    device: npt.NDArray[Any]
    stream: npt.NDArray[Any]
    start: Codes
    end: Codes
    more: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of_frame(cls, kernels: "pd.DataFrame") -> "GpuWork":
        """Return the rows of Timeline.kernels as arrays."""
        if not len(kernels):
            none = np.empty(0, dtype=np.int64)
            return cls((), none, (), none, none, none, none, none)
        name, names = name_codes(kernels["name"])
        kind, kinds = name_codes(kernels["kind"])
        device, stream = (kernels[column].to_numpy() for column in ("device", "stream"))
        start, end = (kernels[column].to_numpy(dtype=np.int64) for column in ("start", "end"))
        return cls(names, name, kinds, kind, device, stream, start, end)

    def frame(self) -> "pd.DataFrame":
        """Return the pieces as Timeline.kernels."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for column, codes, names in (("name", self.name, self.names), ("kind", self.kind, self.kinds)):
            categories = pd.Categorical.from_codes(codes, categories=pd.Index(list(names), dtype="str"))
            columns[column] = categories.remove_unused_categories()
        columns |= {"device": self.device, "stream": self.stream, "start": self.start, "end": self.end}
        return pd.DataFrame({**columns, **self.more}, copy=False)

    def __len__(self) -> int:
        """Return n."""
        return len(self.start)

    def is_kind(self, *kinds: str) -> Mask:
        """Return which pieces are of one of the kinds, shape (n,)."""
        return where(self.kind, self.kinds, lambda kind: kind in kinds)

    def is_named(self, wanted: Callable[[str], bool]) -> Mask:
        """Return which pieces have a name that is wanted, shape (n,); asked once for each name that occurs."""
        return where(self.name, self.names, wanted)


def clip_overlaps(
    device: npt.NDArray[Any], stream: npt.NDArray[Any], start: Codes, end: Codes
) -> tuple[Codes, tuple[str, ...]]:
    """Return the ends of n pieces of GPU work, none after the start of the next one on its stream, and the problem.

    A stream runs one piece after another, so a longer duration is an error of the recording, or a few microseconds of
    programmatic dependent launch. Below CLIPPED_SHARE of the time it is no problem. Pieces of no known stream stay.
    """
    order = np.lexsort((end, start, stream, device))
    begins, owners = start[order], np.stack([device[order], stream[order]])
    over = np.flatnonzero(
        (owners[:, 1:] == owners[:, :-1]).all(axis=0) & (owners[1, 1:] >= 0) & (end[order][:-1] > begins[1:])
    )
    if not len(over):
        return end, ()
    clipped = end.copy()
    clipped[order[over]] = begins[over + 1]
    lost = int((end - clipped).sum())
    if lost < CLIPPED_SHARE * int((clipped - start).sum()):
        return clipped, ()
    said = f"clipped {len(over):,} overlaps of GPU work at the next start on its stream, {lost / 1e6:,.1f} ms"
    return clipped, (f"{said}: these durations cannot be right; record again",)


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate with each other."""

    name: str
    description: str = ""
    """What the program calls it, such as "TENSOR_MODEL_PARALLEL_GROUP"; "" unknown."""
    size: int = -1
    """Number of its ranks; -1 unknown."""
    ranks: tuple[int, ...] = ()
    """Their numbers in the job, ascending; () unknown."""

    @property
    def listed(self) -> str:
        """Ranks in short: "0-7", "0-6 by 2", "0,1,5", "" unknown."""
        if len(self.ranks) > 2:
            steps = {second - first for first, second in itertools.pairwise(self.ranks)}
            if len(steps) == 1:
                step = steps.pop()
                return f"{self.ranks[0]}-{self.ranks[-1]}" + (f" by {step}" if step > 1 else "")
        return ",".join(map(str, self.ranks[:16])) + (",..." if len(self.ranks) > 16 else "")


@dataclass(frozen=True, slots=True)
class ChosenWindow:
    """The part of a trace that was asked for."""

    label: str
    """How it was asked for; "steps" for some of the marked steps."""
    spans: Intervals
    """What it is, see analysis.intervals; not empty."""
    origin_ns: int
    """Where times of windows count from."""


class LostKernels(str):
    """A problem of a trace: GPU kernels that ran are not in it."""


class _Table:
    """A field of a timeline that holds a table, or GpuWork or a function that makes it when it is first read."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, timeline: "Timeline | None", owner: type) -> "pd.DataFrame":
        if timeline is None:  # the field's default
            return partial(empty, self._columns)  # type: ignore[return-value]
        table: pd.DataFrame = vars(timeline)[self._name]
        if isinstance(table, GpuWork) or callable(table):
            table = vars(timeline)[self._name] = table.frame() if isinstance(table, GpuWork) else table()
        return table

    def __set__(self, timeline: "Timeline", table: Any) -> None:
        vars(timeline)[self._name] = table


@dataclass(frozen=True, eq=False)
class Timeline:
    """One rank's trace. Tables are in order of start; a table without rows still has its columns.

    A table is given as it is or as a function that makes it; `kernels` also as GpuWork. Columns of text may be
    categories: use `observed=True` when grouping by them. A reader may add columns to those named here: its docstring
    says which, and users of a timeline check whether they are there.
    """

    rank: int | None
    """Rank, None where the trace does not say."""
    steps: _Table = _Table(STEP_COLUMNS)
    """step, start, end: the marked iterations that are in the trace as a whole; nsys: thread too."""
    operators: _Table = _Table(OPERATOR_COLUMNS)
    """name, thread, start, end, self_ns (less what it called), outermost (called by no other operator)."""
    kernels: _Table = _Table(KERNEL_COLUMNS)
    """name, kind (kernel | memcpy | memset | graph), device, stream, start, end: work on a GPU. A graph is a CUDA graph
    that was recorded as one piece. Where the trace has them: correlation_id (of the launching call in `api`, -1
    unknown), bytes (of copies), grid_x, grid_y, grid_z (0 unknown)."""
    ranges: _Table = _Table(SPAN_COLUMNS)
    """name, thread, start, end: named regions of the program, such as the phases of a step ("bertbench:forward":
    domain, colon, name); nsys: domain, payload, json, cut too."""
    api: _Table = _Table(API_COLUMNS)
    """name, thread, start, end, correlation_id: calls of the CUDA runtime and driver."""
    host: _Table = _Table(SPAN_COLUMNS)
    """name, thread ("" unknown), start, end: what else was recorded of the CPU and took HOST_NS or more: functions of
    Python, calls of the operating system, work of the profiler ("profiler: ..."), libraries that were loaded."""
    collectives: _Table = _Table(COLLECTIVE_COLUMNS)
    """COLLECTIVE_COLUMNS: communication, the kernels of a GPU or, where there are none, the spans of CPU threads. Its
    kernels are in `kernels` too."""
    samples: _Table = _Table(SAMPLE_COLUMNS)
    """name (of the counter), device, start, value: hardware counters that were sampled at regular times."""
    source: str = ""
    """What wrote the trace, with its version where the trace says it."""
    process: int | None = None
    """Process id, None where the trace does not say."""
    problems: tuple[str, ...] = ()
    """What the trace should hold and does not, or what of it could not be read: one sentence each, LostKernels where
    GPU kernels are missing."""
    devices: Mapping[int, str] = field(default_factory=dict)
    """GPU name by device number, as far as the trace says."""
    sm_counts: Mapping[int, int] = field(default_factory=dict)
    """Streaming multiprocessors by device number, as far as the trace says."""
    world_size: int | None = None
    """Ranks of the whole job, None where the trace does not say."""
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    """Process groups by name, as far as the trace says."""
    truncated: bool = False
    """Whether the end of the recording is missing, as the file is cut short."""
    window: ChosenWindow | None = None
    """The part to analyze; None: the marked steps, or everything where none is marked. `steps` are in it."""
    results: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """What functions decorated by `kept` returned."""

    def replace(self, **changes: Any) -> "Timeline":
        """Return the timeline with other fields; tables that nobody asked for stay unmade."""
        return Timeline(**{one.name: vars(self)[one.name] for one in dataclasses.fields(self) if one.init} | changes)

    @cached_property
    def work(self) -> GpuWork:
        """`kernels` as arrays: sums over them need no pandas."""
        held = vars(self)["kernels"]
        return held if isinstance(held, GpuWork) else GpuWork.of_frame(self.kernels)

    @cached_property
    def spans(self) -> Intervals | None:
        """What is analyzed: the window, or from the first marked step's start to the last one's end; None: all."""
        if self.window is not None:
            return self.window.spans
        if not len(self.steps):
            return None
        return np.array([[self.steps["start"].to_numpy().min(), self.steps["end"].to_numpy().max()]], dtype=np.int64)

    @property
    def is_part(self) -> bool:
        """Whether a range or a time was chosen: what is analyzed is neither steps nor the whole recording."""
        return self.window is not None and self.window.label != "steps"

    def inside(self, moments: npt.NDArray[Any]) -> Mask:
        """Return which of n moments, ns, are in what is analyzed, shape (n,)."""
        if self.spans is None:
            return np.ones(len(moments), dtype=bool)
        place = np.searchsorted(self.spans[:, 0], moments, side="right") - 1
        return np.asarray((place >= 0) & (moments < self.spans[place, 1]))


def kept(function: F) -> F:
    """Decorate a function of a timeline: what it returns is kept with the timeline, as several metrics ask for it."""

    @wraps(function)
    def asked(timeline: Timeline, *args: Any) -> Any:
        key = (function.__module__, function.__name__, args)  # names: a timeline can be pickled
        if key not in timeline.results:
            timeline.results[key] = function(timeline, *args)
        return timeline.results[key]

    return cast(F, asked)


def lost_kernels(timelines: Sequence[Timeline]) -> str:
    """Return why the first trace lacks kernels that it should hold, as its reader says it; "" where none does."""
    problems = (problem for timeline in timelines for problem in timeline.problems)
    return next((str(problem) for problem in problems if isinstance(problem, LostKernels)), "")
