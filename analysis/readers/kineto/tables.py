"""Sorts the events of a Kineto trace into the tables of a timeline.

Names and meanings of categories are those of libkineto/include/ActivityType.h. HIP's and XPU's work has those
of CUDA's.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.intervals import Integers, nesting
from analysis.names import PRECISIONS, family, has_roofline, is_gpu_library, kernel_collective, precision
from analysis.readers.kineto.collectives import HostCall, collectives, is_host_call
from analysis.readers.kineto.events import Event, nanoseconds, whole_numbers
from analysis.readers.steps import empty_steps, launch_moments, marked_steps
from analysis.timeline import (
    EVALUATES,
    HOST_NS,
    MISSING,
    MODULE,
    GpuWork,
    ProcessGroup,
    clip_overlaps,
    where,
)

if TYPE_CHECKING:
    import pandas as pd

COUNTED, SAMPLED = "cuda_profiler_range", "hardware_counters"
"""Categories of counters of a kernel, and of hardware counters that CUPTI sampled."""
_OPERATOR, _RANGE, _CALL, _HOST, _WORK, _NO_TABLE = "operators", "ranges", "api", "host", "kernels", "none"
_KINDS = ("kernel", "memcpy", "memset")
_KIND = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2}
# Of 2021 (capitals) and of later versions. The last ones are no work: arrows, what work belongs to, or says again.
_TABLES = {
    **dict.fromkeys(("cpu_op", "Operator", "operator"), _OPERATOR),
    "user_annotation": _RANGE,
    **dict.fromkeys(("cuda_runtime", "hip_runtime", "xpu_runtime", "Runtime", "runtime"), _CALL),
    **dict.fromkeys(("cuda_driver", "hip_driver", "xpu_driver", "driver"), _CALL),
    **dict.fromkeys(_KIND, _WORK),
    **dict.fromkeys(("python_function", "overhead"), _HOST),
    COUNTED: COUNTED,
    SAMPLED: SAMPLED,
    **dict.fromkeys(("", "Trace", "cpu_instant_event", "external_correlation", "bertbench"), _NO_TABLE),
    **dict.fromkeys(("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward"), _NO_TABLE),
    **dict.fromkeys(("gpu_user_annotation", "cuda_sync", "cuda_event", "xpu_sync", "collective_comm"), _NO_TABLE),
}
_TIMED = ("X", "C")
"""Phases of events with a duration and of values of counters."""
_LOADS = re.compile("lazy function loading|module loading", re.IGNORECASE)
_LAUNCH = re.compile("LaunchKernel|KernelLaunch|GraphLaunch")
_Columns = dict[str, Any]


class _Codes(dict[Any, int]):
    """Numbers values as they come: codes[value]."""

    def __missing__(self, value: Hashable) -> int:
        code = len(self)
        self[value] = code
        return code

    def of(self, values: Iterable[Any]) -> npt.NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32)


class Tables:
    """The tables of one trace: numbers as arrays, texts as codes, until a table is asked for."""

    def __init__(self, events: Iterable[Event], base_ns: int, truncated: bool) -> None:
        """Take the events of a trace, and what is added to their times. Raises InexactTimesError."""
        lists: dict[str, list[Event]] = {table: [] for table in _TABLES.values()}
        by_category = defaultdict(list, {category: lists[table] for category, table in _TABLES.items()})
        for event in events:  # those of one table in the order of the file
            if event.ph in _TIMED:
                by_category[event.cat].append(event)
        self._base_ns, self.timeless = base_ns, 0
        self.unknown = Counter({name: len(rows) for name, rows in by_category.items() if name not in _TABLES})
        """Number of events by category that is not understood."""
        self.filled = {table for table, rows in lists.items() if rows} - {_NO_TABLE}
        self._names: dict[str, list[str]] = {}
        self._threads, self._inputs = _Codes(), _Codes({"": 0})
        self.host_calls: list[HostCall] = []
        self._columns = {
            _OPERATOR: self._operators(lists[_OPERATOR]),
            _RANGE: self._spans(_RANGE, lists[_RANGE])[1],
            _CALL: self._calls(lists[_CALL]),
            _HOST: self._host(lists[_HOST]),
        }
        self.work, clipped = self._work(lists[_WORK])
        self._steps, left_out = self._whole_steps(truncated)
        self.problems = (*clipped, *left_out)

    def _timed(self, events: list[Event]) -> tuple[list[Event], Integers, Integers]:
        """Return the events with a usable time, their starts and ends, ns."""
        start, duration = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
        usable = (start != MISSING) & (duration >= 0)
        if not usable.all():
            self.timeless += int((~usable).sum())
            events, start, duration = list(compress(events, usable)), start[usable], duration[usable]
        start = start + self._base_ns
        return events, start, start + duration

    def _coded(self, table: str, names: Sequence[str]) -> npt.NDArray[np.int32]:
        codes = _Codes()
        numbers = codes.of(names)
        self._names[table] = list(codes)
        return numbers

    def _spans(self, table: str, events: list[Event]) -> tuple[list[Event], _Columns]:
        """Return the usable events of operators, ranges or calls with their columns; note the calls of collectives."""
        events, start, end = self._timed(events)
        threads = self._threads.of(zip([event.pid for event in events], [event.tid for event in events], strict=True))
        name = self._coded(table, [event.name for event in events])
        for row in np.flatnonzero(where(name, self._names[table], is_host_call)).tolist() if table != _CALL else ():
            event = events[row]
            thread = _thread_name((event.pid, event.tid))
            self.host_calls.append((event.name, thread, int(start[row]), int(end[row]), event.args.detached()))
        return events, {"name": name, "thread": threads, "start": start, "end": end}

    def _operators(self, events: list[Event]) -> _Columns:
        events, columns = self._spans(_OPERATOR, events)
        names, count = self._names[_OPERATOR], len(events)
        sequence = whole_numbers([event.args.sequence for event in events], -1)
        thread, inputs = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int32)
        precisions = np.zeros(count, dtype=np.int8)
        evaluates = where(columns["name"], names, lambda name: name.startswith(EVALUATES)) & (sequence >= 0)
        rows = np.flatnonzero(evaluates)
        thread[rows] = whole_numbers([events[row].args.forward_thread for row in rows.tolist()], -1)
        for row in np.flatnonzero(where(columns["name"], names, lambda name: family(name) == "GEMM")).tolist():
            precisions[row] = _precision_of(bytes(events[row].args.types))
        for row in np.flatnonzero(where(columns["name"], names, has_roofline)).tolist():
            args = events[row].args
            dimensions, types, values = (bytes(part).decode() for part in (args.dimensions, args.types, args.inputs))
            if "null" not in (dimensions, types):
                inputs[row] = self._inputs[f"[{dimensions},{types},{'[]' if values == 'null' else values}]"]
        more: _Columns = {"precision": precisions, "inputs": inputs, "sequence": sequence, "forward_thread": thread}
        return columns | {column: values for column, values in more.items() if (values != _UNKNOWN[column]).any()}

    def _calls(self, events: list[Event]) -> _Columns:
        events, columns = self._spans(_CALL, events)
        return {**columns, "correlation_id": whole_numbers([event.args.correlation for event in events], -1)}

    def _host(self, events: list[Event]) -> _Columns:
        events, start, end = self._timed(events)
        modules = np.array([event.name.startswith(MODULE) for event in events], dtype=bool)
        chosen = np.flatnonzero(modules | (end - start >= HOST_NS))
        names, threads = [], []
        for event in [events[row] for row in chosen.tolist()]:
            of_profiler = event.cat == "overhead"
            loads = of_profiler and _LOADS.search(event.name)
            names.append(f"profiler: {event.name}" if of_profiler and not loads else event.name)
            threads.append(None if of_profiler else (event.pid, event.tid))
        coded = {"name": self._coded(_HOST, names), "thread": self._threads.of(threads)}
        return {**coded, "start": start[chosen], "end": end[chosen]}

    def _work(self, events: list[Event]) -> tuple[GpuWork, tuple[str, ...]]:
        events, start, end = self._timed(events)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            events, start, end = [events[row] for row in order.tolist()], start[order], end[order]
        args = [event.args for event in events]
        place = {}
        for column, field in (("device", "pid"), ("stream", "tid")):
            values = whole_numbers([getattr(one, column) for one in args], MISSING)
            if len(absent := np.flatnonzero(values == MISSING)):
                values[absent] = whole_numbers([getattr(events[row], field) for row in absent.tolist()], -1)
            place[column] = values
        name = self._coded(_WORK, [event.name for event in events])
        kind = np.array([_KIND[event.cat] for event in events], dtype=np.int8)
        names = self._names[_WORK]
        communicating = where(name, names, lambda name: kernel_collective(name) is not None) & (kind == 0)
        self.kernel_calls = {row: args[row].detached() for row in np.flatnonzero(communicating).tolist()}
        """Arguments of communication kernels by their row."""
        more: dict[str, npt.NDArray[Any]] = {
            "correlation_id": whole_numbers([one.correlation for one in args], -1),
            "bytes": whole_numbers([one.bytes for one in args], 0),
        }
        shape = np.array([one.grid for one in args], dtype=np.int64).astype(np.int32).reshape(-1, 3)
        more |= {f"grid_{letter}": shape[:, axis] for axis, letter in enumerate("xyz")}
        per_sm = np.array([one.blocks_per_sm for one in args], dtype=np.float64)
        more |= {"blocks_per_sm": per_sm} if np.isfinite(per_sm).any() else {}
        end, problems = clip_overlaps(place["device"], place["stream"], start, end)
        return GpuWork(names, name, _KINDS, kind, place["device"], place["stream"], start, end, more), problems

    def _whole_steps(self, truncated: bool) -> tuple[Integers, list[str]]:
        """Take the marked steps out of operators and ranges.

        Returns:
            their number, start and end, shape (n, 3), and notes on those left out.
        """
        marks = [np.empty((0, 3), dtype=np.int64)]
        for table in (_OPERATOR, _RANGE):
            columns = self._columns[table]
            numbers = marked_steps(self._names[table])[columns["name"]]
            rows = np.flatnonzero(numbers >= 0)
            marks.append(np.column_stack([numbers[rows], columns["start"][rows], columns["end"][rows]]))
            if len(rows):
                self._columns[table] = {name: values[numbers < 0] for name, values in columns.items()}
        steps = np.concatenate(marks)
        steps = steps[np.argsort(steps[:, 1], kind="stable")]
        ends = self.work.end if len(self.work) else self._columns[_OPERATOR]["end"]
        cut = truncated & (steps[:, 2] > ends.max(initial=0))  # work of the rest of such a step is lost
        listed = ", ".join(map(str, steps[cut, 0].tolist()))
        steps = steps[~cut]
        empty, notes = empty_steps(steps[:, 0], steps[:, 1], steps[:, 2], self._launches)
        return steps[~empty], [*notes, *[f"left out, as the file ends inside: step {listed}"] * bool(listed)]

    def _launches(self) -> Integers:
        """When work was launched: calls that are tied to it; else operators; else the work's own starts."""
        calls, operators = self._columns[_CALL], self._columns[_OPERATOR]
        moments = launch_moments(self.work.more["correlation_id"], calls["correlation_id"], calls["start"])
        return next((some for some in (moments, operators["start"]) if len(some)), self.work.start)

    @property
    def of_a_gpu(self) -> bool:
        """Whether the host launched work on a GPU, or called NCCL or RCCL, whose collectives run on GPUs."""
        return any(map(_LAUNCH.search, self._names[_CALL])) or any(
            is_gpu_library(name) for table in (_OPERATOR, _RANGE) for name in self._names[table]
        )

    def steps(self) -> "pd.DataFrame":
        """Return Timeline.steps."""
        import pandas as pd

        return pd.DataFrame(self._steps, columns=["step", "start", "end"])

    def frame(self, table: str) -> "pd.DataFrame":
        """Return Timeline.operators, ranges, api or host."""
        import pandas as pd

        columns = self._columns[table]
        order = np.lexsort((-columns["end"], columns["start"]))
        columns = {name: values[order] for name, values in columns.items()}
        if table == _OPERATOR:
            columns["self_ns"], columns["outermost"] = nesting(columns["thread"], columns["start"], columns["end"])
        labels: dict[str, Iterable[str]] = {
            "name": self._names[table],
            "thread": map(_thread_name, self._threads),
            "precision": PRECISIONS,
            "inputs": self._inputs,
        }
        for column in labels.keys() & columns.keys():
            columns[column] = _categories(columns[column], list(labels[column]))
        return pd.DataFrame(columns, copy=False)

    def collectives(self, groups: Mapping[str, ProcessGroup]) -> "pd.DataFrame":
        """Return Timeline.collectives."""
        calls, ids = self._columns[_CALL], self.work.more["correlation_id"][list(self.kernel_calls)]
        rows = np.flatnonzero(np.isin(calls["correlation_id"], ids[ids >= 0]))
        rows = rows[np.argsort(calls["start"][rows], kind="stable")]
        threads = list(map(_thread_name, self._threads))
        launches = {
            number: (threads[thread], start)
            for number, thread, start in zip(
                *(calls[name][rows].tolist() for name in ("correlation_id", "thread", "start")), strict=True
            )
        }
        return collectives(self.work, self.kernel_calls, self.host_calls, launches, groups)


_UNKNOWN = {"precision": 0, "inputs": 0, "sequence": -1, "forward_thread": -1}
"""Columns of operators that are left out where they say nothing."""


def _categories(codes: npt.NDArray[Any], labels: Sequence[str]) -> "pd.Categorical":
    """Return a column of texts; only labels that occur become categories, each once."""
    import pandas as pd

    distinct, place = _Codes(), np.zeros(len(labels), dtype=np.int32)
    for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
        place[code] = distinct[labels[code]]
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(list(distinct), dtype="str"))


@lru_cache(maxsize=4096)
def _precision_of(types: bytes) -> int:
    return PRECISIONS.index(precision(types.decode(errors="replace")))


def _thread_name(thread: tuple[Any, Any] | None) -> str:
    return "" if thread is None else f"{thread[0]}/{thread[1]}"
