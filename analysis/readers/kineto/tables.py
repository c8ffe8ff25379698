"""Sorts the events of a Kineto trace into the tables of a timeline.

Names and meanings of categories are those of libkineto/include/ActivityType.h. HIP's and XPU's work has those
of CUDA's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.names import PRECISIONS, family, has_roofline, is_gpu_library, kernel_collective, precision
from analysis.readers.columns import MISSING, Codes, Integers, categories
from analysis.readers.kineto.collectives import HostCall, collectives, is_host_call
from analysis.readers.kineto.events import (
    CallArguments,
    CommunicationArguments,
    Event,
    InputArguments,
    KernelArguments,
    OperatorArguments,
    arguments,
    nanoseconds,
    whole,
    whole_numbers,
)
from analysis.readers.steps import empty_steps, launch_moments, left_out, marked_steps
from analysis.spans import nesting
from analysis.timeline import EVALUATES, HOST_NS, MODULE, GpuWork, ProcessGroup, clip_overlaps, where

if TYPE_CHECKING:
    import pandas as pd

OPERATOR, RANGE, CALL, HOST, WORK = "operator", "range", "call", "host", "work"
COUNTED, SAMPLE, NO_TABLE = "counted", "sample", "none"
_KINDS = ("kernel", "memcpy", "memset")
_KIND = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2}
# Of 2021 (capitals) and of later versions. The last ones are no work: arrows, what work belongs to, or says again.
_TABLES = {
    **dict.fromkeys(("cpu_op", "Operator", "operator"), OPERATOR),
    "user_annotation": RANGE,
    **dict.fromkeys(("cuda_runtime", "hip_runtime", "xpu_runtime", "Runtime", "runtime"), CALL),
    **dict.fromkeys(("cuda_driver", "hip_driver", "xpu_driver", "driver"), CALL),
    **dict.fromkeys(_KIND, WORK),
    **dict.fromkeys(("python_function", "overhead"), HOST),
    "cuda_profiler_range": COUNTED,
    "hardware_counters": SAMPLE,
    **dict.fromkeys(("", "Trace", "cpu_instant_event", "external_correlation", "bertbench"), NO_TABLE),
    **dict.fromkeys(("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward"), NO_TABLE),
    **dict.fromkeys(("gpu_user_annotation", "cuda_sync", "cuda_event", "xpu_sync", "collective_comm"), NO_TABLE),
}
_TIMED = ("X", "C")
"""Phases of events with a duration and of values of counters."""
_LOADS = re.compile("lazy function loading|module loading", re.IGNORECASE)
_LAUNCH = re.compile("LaunchKernel|KernelLaunch|GraphLaunch")
_THREAD = attrgetter("pid", "tid")
_START, _DURATION, _NAME = attrgetter("ts"), attrgetter("dur"), attrgetter("name")
_Columns = dict[str, Any]


class Tables:
    """The tables of one trace: numbers as arrays, texts as codes, until a table is asked for."""

    def __init__(self, events: Iterable[Any], base_ns: int) -> None:
        """Take the events of a trace, and what is added to their times. Raises InexactTimesError."""
        lists: dict[str, list[Any]] = {table: [] for table in _TABLES.values()}
        by_category = {category: lists[table] for category, table in _TABLES.items()}
        for event in events:  # those of one table in the order of the file
            by_category.setdefault(event.cat if event.ph in _TIMED else "", []).append(event)
        self._base_ns, self.timeless = base_ns, 0
        self.unknown = {name: len(found) for name, found in by_category.items() if name not in _TABLES}
        """Number of events by category that is not understood."""
        self.counted, self.samples = lists[COUNTED], lists[SAMPLE]
        """Events that hold counters of a kernel, and hardware counters that CUPTI sampled."""
        self._names: dict[str, list[str]] = {}
        self._threads, self._inputs = Codes(), Codes({"": 0})
        self.host_calls: list[HostCall] = []
        self._columns = {
            OPERATOR: self._operators(lists[OPERATOR]),
            RANGE: self._ranges(lists[RANGE]),
            CALL: self._calls(lists[CALL]),
            HOST: self._host(lists[HOST]),
        }
        self.work, self.problems = self._work(lists[WORK])
        self.is_empty = not any(found for table, found in lists.items() if table != NO_TABLE)
        self._steps, left_out_steps = self._whole_steps()
        self.problems += tuple(left_out_steps)

    def _timed(self, events: list[Event]) -> tuple[list[Event], Integers, Integers]:
        """Return the events with a usable time, their starts and ends, ns."""
        start, duration = nanoseconds(list(map(_START, events))), nanoseconds(list(map(_DURATION, events)))
        usable = (start != MISSING) & (duration >= 0)
        if not usable.all():
            self.timeless += int((~usable).sum())
            events, start, duration = list(compress(events, usable)), start[usable], duration[usable]
        start = start + self._base_ns
        return events, start, start + duration

    def _coded(self, table: str, names: Sequence[str]) -> npt.NDArray[np.int32]:
        codes = Codes()
        numbers = codes.of(names, len(names))
        self._names[table] = list(codes)
        return numbers

    def _spans(self, table: str, events: list[Event]) -> tuple[list[Event], _Columns]:
        events, start, end = self._timed(events)
        threads = self._threads.of(map(_THREAD, events), len(events))
        name = self._coded(table, list(map(_NAME, events)))
        return events, {"name": name, "thread": threads, "start": start, "end": end}

    def _is_named(self, table: str, names: npt.NDArray[Any], wanted: Any) -> list[int]:
        """Return the rows with a name that is wanted."""
        return np.flatnonzero(where(names, self._names[table], wanted)).tolist()

    def _note_host_calls(self, table: str, events: Sequence[Event], columns: _Columns) -> None:
        rows = self._is_named(table, columns["name"], is_host_call)
        spans = zip(columns["start"][rows].tolist(), columns["end"][rows].tolist(), strict=True)
        calls = [events[row] for row in rows]
        for event, span, args in zip(
            calls, spans, arguments(calls, CommunicationArguments, detached=True), strict=True
        ):
            self.host_calls.append((event.name, _thread_name(_THREAD(event)), *span, args))

    def _operators(self, events: list[Event]) -> _Columns:
        events, columns = self._spans(OPERATOR, events)
        self._note_host_calls(OPERATOR, events, columns)
        ties = arguments(events, OperatorArguments)
        evaluates = where(columns["name"], self._names[OPERATOR], lambda name: name.startswith(EVALUATES))
        sequence = whole_numbers([one.sequence for one in ties], -1)
        thread = np.full(len(events), -1, dtype=np.int32)
        for row in np.flatnonzero(evaluates & (sequence >= 0)).tolist():
            thread[row] = whole(ties[row].forward_thread)
        columns |= {"precision": np.zeros(len(events), dtype=np.int8), "sequence": sequence, "forward_thread": thread}
        columns["inputs"] = np.zeros(len(events), dtype=np.int32)
        rows = self._is_named(OPERATOR, columns["name"], lambda name: family(name) == "GEMM" or has_roofline(name))
        for row, args in zip(rows, arguments([events[row] for row in rows], InputArguments), strict=True):
            dimensions, types, inputs = bytes(args.dimensions), bytes(args.types), bytes(args.inputs)
            name = events[row].name
            if family(name) == "GEMM":
                columns["precision"][row] = _precision_of(types)
            if has_roofline(name) and b"null" not in (dimensions, types):
                parts = (dimensions, types, b"[]" if inputs == b"null" else inputs)
                columns["inputs"][row] = self._inputs[f"[{b','.join(parts).decode()}]"]
        return columns

    def _ranges(self, events: list[Event]) -> _Columns:
        events, columns = self._spans(RANGE, events)
        self._note_host_calls(RANGE, events, columns)
        return columns

    def _calls(self, events: list[Event]) -> _Columns:
        events, columns = self._spans(CALL, events)
        correlations = whole_numbers([one.correlation for one in arguments(events, CallArguments)], -1)
        return {**columns, "correlation_id": correlations}

    def _host(self, events: list[Event]) -> _Columns:
        events, start, end = self._timed(events)
        modules = np.array([event.name.startswith(MODULE) for event in events], dtype=bool)
        chosen = np.flatnonzero(modules | (end - start >= HOST_NS))
        names, threads = [], []
        for event in [events[row] for row in chosen.tolist()]:
            of_profiler = event.cat == "overhead"
            loads = of_profiler and _LOADS.search(event.name)
            names.append(f"profiler: {event.name}" if of_profiler and not loads else event.name)
            threads.append(None if of_profiler else _THREAD(event))
        coded = {"name": self._coded(HOST, names), "thread": self._threads.of(threads, len(threads))}
        return {**coded, "start": start[chosen], "end": end[chosen]}

    def _work(self, events: list[Event]) -> tuple[GpuWork, tuple[str, ...]]:
        events, start, end = self._timed(events)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            events, start, end = [events[row] for row in order.tolist()], start[order], end[order]
        args = arguments(events, KernelArguments)
        place = {}
        for column, own in (("device", "pid"), ("stream", "tid")):
            values = whole_numbers([getattr(one, column) for one in args], MISSING)
            if len(absent := np.flatnonzero(values == MISSING)):
                values[absent] = whole_numbers([getattr(events[row], own) for row in absent.tolist()], -1)
            place[column] = values
        name = self._coded(WORK, list(map(_NAME, events)))
        kind = np.array([_KIND[event.cat] for event in events], dtype=np.int8)
        communicating = where(name, self._names[WORK], lambda name: kernel_collective(name) is not None) & (kind == 0)
        rows = np.flatnonzero(communicating).tolist()
        calls = arguments([events[row] for row in rows], CommunicationArguments, detached=True)
        self.kernel_calls = dict(zip(rows, calls, strict=True))
        """Arguments of communication kernels by their row."""
        more: dict[str, npt.NDArray[Any]] = {
            "correlation_id": whole_numbers([one.correlation for one in args], -1),
            "bytes": whole_numbers([one.bytes for one in args], 0),
        }
        for side in ("grid", "block"):
            sizes = chain.from_iterable([getattr(one, side) for one in args])
            shape = np.fromiter(sizes, dtype=np.int64, count=3 * len(args)).reshape(-1, 3).astype(np.int32)
            more |= {f"{side}_{letter}": shape[:, axis] for axis, letter in enumerate("xyz")}
        per_sm = np.array([one.blocks_per_sm for one in args], dtype=np.float64)
        more |= {"blocks_per_sm": per_sm} if np.isfinite(per_sm).any() else {}
        end, problems = clip_overlaps(place["device"], place["stream"], start, end)
        names = self._names[WORK]
        return GpuWork(names, name, _KINDS, kind, place["device"], place["stream"], start, end, more), problems

    def _whole_steps(self) -> tuple[Integers, list[str]]:
        """Number, start and end of the marked steps, shape (n, 3), and notes on those left out."""
        found = [np.empty((0, 3), dtype=np.int64)]
        self._is_step = {}
        for table in (OPERATOR, RANGE):
            columns = self._columns[table]
            numbers = marked_steps(self._names[table])[columns["name"]]
            self._is_step[table] = numbers >= 0
            rows = np.flatnonzero(numbers >= 0)
            found.append(np.column_stack([numbers[rows], columns["start"][rows], columns["end"][rows]]))
        steps = np.concatenate(found)
        steps = steps[np.argsort(steps[:, 1], kind="stable")]
        empty = empty_steps(steps[:, 1], steps[:, 2], self._launches)
        return steps[~empty], left_out(steps[empty, 0], (steps[:, 2] - steps[:, 1])[empty])

    def _launches(self) -> Integers:
        """When work was launched: calls that are tied to it; else operators; else the work's own starts."""
        calls, operators = self._columns[CALL], self._columns[OPERATOR]
        found = launch_moments(self.work.more["correlation_id"], calls["correlation_id"], calls["start"])
        if len(found):
            return found
        begins: Integers = operators["start"][~self._is_step[OPERATOR]]
        return begins if len(begins) else self.work.start

    @property
    def of_a_gpu(self) -> bool:
        """Whether the host launched work on a GPU, or called NCCL or RCCL, whose collectives run on GPUs."""
        return any(map(_LAUNCH.search, self._names[CALL])) or any(
            is_gpu_library(name) for table in (OPERATOR, RANGE) for name in self._names[table]
        )

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """Timeline.steps."""
        import pandas as pd

        return pd.DataFrame(self._steps, columns=["step", "start", "end"])

    @cached_property
    def operators(self) -> "pd.DataFrame":
        """Timeline.operators."""
        columns = self._unmarked(OPERATOR)
        for column, unknown in (("precision", 0), ("inputs", 0), ("sequence", -1), ("forward_thread", -1)):
            if not (columns[column] != unknown).any():
                del columns[column]
        columns["self_ns"], columns["outermost"] = nesting(columns["thread"], columns["start"], columns["end"])
        return self._frame(OPERATOR, columns)

    @cached_property
    def ranges(self) -> "pd.DataFrame":
        """Timeline.ranges."""
        return self._frame(RANGE, self._unmarked(RANGE))

    @cached_property
    def host(self) -> "pd.DataFrame":
        """Timeline.host."""
        return self._frame(HOST, _sorted(self._columns[HOST]))

    @cached_property
    def api(self) -> "pd.DataFrame":
        """Timeline.api."""
        columns = self._columns[CALL]
        order = np.argsort(columns["start"], kind="stable")
        return self._frame(CALL, {name: values[order] for name, values in columns.items()})

    def collectives(self, groups: Mapping[str, ProcessGroup]) -> "pd.DataFrame":
        """Return Timeline.collectives."""
        return collectives(self.work, self.kernel_calls, self.host_calls, self.api, groups)

    def _unmarked(self, table: str) -> _Columns:
        """Return the columns without the marked steps, in order of start."""
        rows = ~self._is_step[table]
        return _sorted({name: values[rows] for name, values in self._columns[table].items()})

    def _frame(self, table: str, columns: _Columns) -> "pd.DataFrame":
        import pandas as pd

        labels = {
            "name": self._names[table],
            "thread": list(map(_thread_name, self._threads)),
            "precision": PRECISIONS,
            "inputs": self._inputs,
        }
        for column, texts in labels.items():
            if column in columns:
                columns[column] = categories(columns[column], list(texts))
        ordered = {name: columns.pop(name) for name in ("name", "thread", "start", "end")}
        return pd.DataFrame(ordered | columns, copy=False)


def _sorted(columns: _Columns) -> _Columns:
    order = np.lexsort((-columns["end"], columns["start"]))
    return {name: values[order] for name, values in columns.items()}


@lru_cache(maxsize=4096)
def _precision_of(types: bytes) -> int:
    return PRECISIONS.index(precision(types.decode(errors="replace")))


def _thread_name(thread: tuple[Any, Any] | None) -> str:
    return "" if thread is None else f"{thread[0]}/{thread[1]}"
