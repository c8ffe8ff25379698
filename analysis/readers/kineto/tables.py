"""Sorts Kineto's events into the tables of a timeline while they are read, by their category.

Names and meanings of categories are those of libkineto/include/ActivityType.h. HIP's and XPU's work has those
of CUDA's.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.names import PRECISIONS, family, has_roofline, kernel_collective, precision
from analysis.readers.columns import MISSING, Codes, Columns, Integers
from analysis.readers.kineto.events import (
    AnyEvent,
    Arguments,
    CallArguments,
    Chunk,
    CommunicationArguments,
    HostCall,
    KernelArguments,
    sizes,
    whole_numbers,
)
from analysis.readers.kineto.unknown import Unknown
from analysis.timeline import EVALUATES, HOST_NS, MODULE

OPERATOR, RANGE, CALL, HOST, WORK, COUNTERS = "operator", "range", "call", "host", "work", "counters"
KINDS = ("kernel", "memcpy", "memset")
# Of 2021 (capitals) and of later versions.
TABLES = {
    **dict.fromkeys(("cpu_op", "Operator", "operator"), OPERATOR),
    "user_annotation": RANGE,
    **dict.fromkeys(("cuda_runtime", "hip_runtime", "xpu_runtime", "Runtime", "runtime"), CALL),
    **dict.fromkeys(("cuda_driver", "hip_driver", "xpu_driver", "driver"), CALL),
    **dict.fromkeys(("kernel", "Kernel"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), "memcpy"),
    **dict.fromkeys(("gpu_memset", "Memset"), "memset"),
    **dict.fromkeys(("python_function", "overhead"), HOST),
    "cuda_profiler_range": COUNTERS,
}
"""Where the events of a category go: a table, one of KINDS, or COUNTERS."""

# No work of its own: arrows, what a GPU's work belongs to, or says again.
NEEDLESS = frozenset(
    (
        *("", "Trace", "cpu_instant_event", "external_correlation"),
        *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward"),
        *("gpu_user_annotation", "cuda_sync", "cuda_event", "xpu_sync", "collective_comm"),
        *("gpu_pm_counter", "xpu_scope_profiler", "bertbench"),  # the last is this suite's own, in a file for Perfetto
    )
)
"""Categories that are left out on purpose."""

_HOST_CALL = re.compile(
    r"record_param_comms$|(?:nccl|gloo|mpi|ucc|xccl)[:_]|c10d::_?allgather_base|symm_mem::|_C_custom_ar::",
    re.IGNORECASE,
)
_LOADS = re.compile("lazy function loading|module loading", re.IGNORECASE)
_SPAN = {"name": "int32", "thread": "int32", "start": "int64", "duration": "int64"}
_SIZES = {name: "int32" for side in ("grid", "block") for name in (f"{side}_x", f"{side}_y", f"{side}_z")}
_PIECE = {"name": "int32", "kind": "int8", "device": "int64", "stream": "int64", "start": "int64", "duration": "int64",
        "correlation_id": "int64", "bytes": "int64", **_SIZES, "blocks_per_sm": "float64"}  # fmt: skip
_COLUMNS = {
    OPERATOR: {**_SPAN, "precision": "int8", "sequence": "int64", "forward_thread": "int32", "inputs": "int32"},
    RANGE: _SPAN,
    CALL: {**_SPAN, "correlation_id": "int64"},
    HOST: _SPAN,
    WORK: _PIECE,
}

# Several times faster than decoding arguments of which only this is wanted; lists of tensors have a list of types.
_IN_LIST = rb"[^][]*+(?:\[[^][]*+\][^][]*+)*+"
_INPUT_TYPES = re.compile(rb'"Input type"\s*:\s*\[(' + _IN_LIST + rb")\]")
_SEQUENCE = re.compile(rb'Sequence number"\s*:\s*(\d{1,18})\b')
_FORWARD_THREAD = re.compile(rb'Fwd thread id"\s*:\s*(\d{1,9})\b')
_INPUTS = re.compile(rb'"(Input Dims|Input type|Concrete Inputs)"\s*:\s*(\[' + _IN_LIST + rb"\])")

_CATEGORY, _NAME, _THREAD = attrgetter("cat"), attrgetter("name"), attrgetter("pid", "tid")
_ARGUMENTS = attrgetter("args")
_CORRELATION, _BYTES, _BLOCKS = attrgetter("correlation"), attrgetter("bytes"), attrgetter("blocks_per_sm")


class _Marks:
    """Which names are wanted; asked once for each name."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._known: list[bool] = []

    def flags(self, codes: npt.NDArray[np.int32], names: Codes) -> npt.NDArray[np.bool_]:
        """Return which of n codes of names are wanted."""
        new = islice(names, len(self._known), None)
        self._known += [isinstance(name, str) and self._wanted(name) for name in new]
        found: npt.NDArray[np.bool_] = np.array(self._known, dtype=bool)[codes]
        return found


class Tables:
    """The tables of one trace. Times are the trace's own until `base_ns` is added."""

    def __init__(self) -> None:
        """Start without rows."""
        self.names: dict[str, Codes] = {table: Codes() for table in _COLUMNS}
        self.threads = Codes()
        self.inputs = Codes()
        """Inputs of operators as JSON: list of their sizes, types and values."""
        self.inputs[""]
        self.events = 0
        """Events that are in the tables."""
        self.timeless = 0
        """Events of known categories without a usable time."""
        self.damaged = 0
        """Events of any category without a usable time."""
        self.host_calls: list[HostCall] = []
        """Calls of collectives: name, thread, start, end, arguments."""
        self.kernel_calls: dict[int, CommunicationArguments] = {}
        """Arguments of communication kernels by place of the kernel."""
        self.counted: list[tuple[AnyEvent, int, int]] = []
        """Events that hold counters of a kernel, their starts and durations."""
        self.unknown = Unknown()
        self._columns = {table: Columns() for table in _COLUMNS}
        self._spans_of_thread: Counter[int] = Counter()
        self._multiplies = _Marks(_is_gemm)
        self._evaluates = _Marks(_evaluates)
        self._sized = _Marks(has_roofline)

    @property
    def has_work(self) -> bool:
        """Whether any work of a GPU was found."""
        return self._columns[WORK].rows > 0

    @property
    def bytes(self) -> int:
        """What the columns take."""
        return sum(columns.bytes for columns in self._columns.values())

    def add(self, chunk: Chunk) -> None:
        """Sort the events of a chunk into the tables."""
        codes = Codes()
        category = codes.of(map(_CATEGORY, chunk.events))
        usable = (chunk.start != MISSING) & (chunk.duration >= 0)
        self.damaged += int((~usable).sum())
        by_table: dict[str, list[npt.NDArray[np.intp]]] = {}
        for name, code in codes.items():
            if not name:
                self.unknown.add_nameless([chunk.events[row] for row in np.flatnonzero(category == code).tolist()])
            if not isinstance(name, str) or name in NEEDLESS:
                continue
            rows = np.flatnonzero(category == code)
            if (table := TABLES.get(name)) is not None:
                by_table.setdefault(table, []).append(rows)
            else:
                self.unknown.add(name, [chunk.events[row] for row in rows.tolist()])
        for table, found in by_table.items():
            rows = np.sort(np.concatenate(found))
            if table == HOST:
                rows = rows[usable[rows]]
                long = chunk.duration[rows] >= HOST_NS
                short = np.flatnonzero(~long)
                long[short] = [_is_module(chunk.events[row].name) for row in rows[short].tolist()]
                self._add_host(chunk, rows[long])
                continue
            self.timeless += int((~usable[rows]).sum())
            rows = rows[usable[rows]]
            self.events += len(rows)
            if len(rows):
                self._add(table, _chosen(chunk.events, rows), chunk.start[rows], chunk.duration[rows])

    def _add(self, table: str, events: Sequence[AnyEvent], start: Integers, duration: Integers) -> None:
        if table in KINDS:
            self._add_work(table, events, start, duration)
        elif table == COUNTERS:
            self.counted += zip(events, start.tolist(), duration.tolist(), strict=True)
        else:
            columns: dict[str, npt.NDArray[Any]] = {
                "name": self.names[table].of(map(_NAME, events)),
                "thread": self.threads.of(map(_THREAD, events)),
                "start": start,
                "duration": duration,
            }
            if table == CALL:
                found = Arguments(CallArguments).of(events)
                columns["correlation_id"] = whole_numbers(list(map(_CORRELATION, found)), -1)
            else:
                if table == OPERATOR:
                    columns["precision"] = self._precisions(events, columns["name"])
                    columns |= self._ties(events, columns["name"])
                    columns["inputs"] = self._inputs(events, columns["name"])
                self._note_host_calls(events, self.names[table], columns)
            self._columns[table].add(columns)

    def _add_host(self, chunk: Chunk, rows: npt.NDArray[np.intp]) -> None:
        events = [chunk.events[row] for row in rows.tolist()]
        own = [event.cat == "overhead" for event in events]
        names = [event.name for event in events]
        names = [
            f"profiler: {name}" if mark and not _LOADS.search(str(name)) else name
            for name, mark in zip(names, own, strict=True)
        ]
        threads = [None if mark else (event.pid, event.tid) for event, mark in zip(events, own, strict=True)]
        spans = {"start": chunk.start[rows], "duration": chunk.duration[rows]}
        self._columns[HOST].add({"name": self.names[HOST].of(names), "thread": self.threads.of(threads), **spans})

    def _add_work(self, kind: str, events: Sequence[AnyEvent], start: Integers, duration: Integers) -> None:
        found = Arguments(KernelArguments).of(events)
        names = self.names[WORK].of(map(_NAME, events))
        place: dict[str, Integers] = {}
        for column, own in (("device", "pid"), ("stream", "tid")):
            values = whole_numbers(list(map(attrgetter(column), found)), MISSING)
            absent = values == MISSING
            if absent.any():
                others = [getattr(events[row], own) for row in np.flatnonzero(absent).tolist()]
                values[absent] = whole_numbers(others, -1)
            place[column] = values
        shape: dict[str, npt.NDArray[Any]] = {}
        for side in ("grid", "block"):
            found_sizes = sizes(list(map(attrgetter(side), found)))
            shape |= {f"{side}_{letter}": found_sizes[:, axis] for axis, letter in enumerate("xyz")}
        self._note_kernel_calls(kind, events, names)
        self._columns[WORK].add(
            {
                "name": names,
                "kind": np.full(len(events), KINDS.index(kind), dtype=np.int8),
                **place,
                "start": start,
                "duration": duration,
                "correlation_id": whole_numbers(list(map(_CORRELATION, found)), -1),
                "bytes": whole_numbers(list(map(_BYTES, found)), 0),
                **shape,
                "blocks_per_sm": np.fromiter(map(_BLOCKS, found), dtype=np.float64),
            }
        )

    def _precisions(self, events: Sequence[AnyEvent], names: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
        """Return the index in PRECISIONS of each GEMM's input types, 0 for all else."""
        found = np.zeros(len(events), dtype=np.int8)
        for row in np.flatnonzero(self._multiplies.flags(names, self.names[OPERATOR])).tolist():
            types = _INPUT_TYPES.search(events[row].args)
            found[row] = _precision_of(types[1]) if types else 0
        return found

    def _ties(self, events: Sequence[AnyEvent], names: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """What ties the backward pass to the forward pass: numbers of autograd's nodes, -1 without one."""
        sequence = _sequence_numbers(list(map(_ARGUMENTS, events)))
        thread = np.full(len(events), -1, dtype=np.int32)
        for row in np.flatnonzero((sequence >= 0) & self._evaluates.flags(names, self.names[OPERATOR])).tolist():
            if said := _FORWARD_THREAD.search(events[row].args):
                thread[row] = int(said[1])
        return {"sequence": sequence, "forward_thread": thread}

    def _inputs(self, events: Sequence[AnyEvent], names: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        found = np.zeros(len(events), dtype=np.int32)
        for row in np.flatnonzero(self._sized.flags(names, self.names[OPERATOR])).tolist():
            said = dict(_INPUTS.findall(events[row].args))
            if b"Input Dims" in said and b"Input type" in said:
                parts = (said[b"Input Dims"], said[b"Input type"], said.get(b"Concrete Inputs", b"[]"))
                found[row] = self.inputs["[" + ",".join(part.decode(errors="replace") for part in parts) + "]"]
        return found

    def _note_host_calls(self, events: Sequence[AnyEvent], names: Codes, columns: dict[str, Any]) -> None:
        rows = np.flatnonzero(names.flags(is_host_call)[columns["name"]]).tolist()
        if not rows:
            return
        arguments = Arguments(CommunicationArguments).of([events[row] for row in rows])
        start, duration = columns["start"], columns["duration"]
        for row, said in zip(rows, arguments, strict=True):
            event = events[row]
            span = (int(start[row]), int(start[row] + duration[row]))
            self.host_calls.append((str(event.name), thread_name((event.pid, event.tid)), *span, said))

    def _note_kernel_calls(self, kind: str, events: Sequence[AnyEvent], names: npt.NDArray[np.int32]) -> None:
        if kind != "kernel":
            return
        rows = np.flatnonzero(self.names[WORK].flags(_is_collective)[names]).tolist()
        before = self._columns[WORK].rows
        for row, said in zip(rows, Arguments(CommunicationArguments).of([events[row] for row in rows]), strict=True):
            self.kernel_calls[before + row] = said

    def columns(self, table: str, base_ns: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a table with times of the clock, `name` and `thread` as numbers; forget them."""
        columns = self._columns[table].joined(**_COLUMNS[table])
        columns["start"] += base_ns
        columns["end"] = columns.pop("duration")
        columns["end"] += columns["start"]
        if table not in (WORK, HOST):
            self._spans_of_thread.update(dict(enumerate(np.bincount(columns["thread"]).tolist())))
        return columns

    def naming_groups(self) -> list[CommunicationArguments]:
        """Return arguments that name every process group, those of kernels first."""
        return [*self.kernel_calls.values(), *(call[4] for call in self.host_calls)]

    def process(self) -> int | None:
        """Return the process that most of the spans taken so far are of; None where none has a number."""
        found: Counter[int] = Counter()
        for number, thread in enumerate(self.threads):
            if thread is not None and isinstance(thread[0], int):
                found[thread[0]] += self._spans_of_thread[number]
        return max(found, key=lambda process: found[process]) if found else None


def _sequence_numbers(arguments: Sequence[Any]) -> Integers:
    """Return the number in each one's arguments, -1 without one: one search through all is faster than one of each."""
    ends = np.cumsum(np.fromiter(map(len, arguments), dtype=np.int64, count=len(arguments)) + 1)
    found = list(_SEQUENCE.finditer(b"\n".join(arguments)))
    rows = np.searchsorted(ends, [match.start() for match in found], side="right")
    numbers = np.full(len(arguments), -1, dtype=np.int64)
    for row, match in zip(reversed(rows.tolist()), reversed(found), strict=True):  # the first one in a row counts
        numbers[row] = int(match[1])
    return numbers


def _chosen(events: Sequence[AnyEvent], rows: npt.NDArray[np.intp]) -> Sequence[AnyEvent]:
    if len(rows) < 2:  # itemgetter of one place returns no tuple
        return [events[row] for row in rows.tolist()]
    found: tuple[AnyEvent, ...] = itemgetter(*rows.tolist())(events)
    return found


@lru_cache(maxsize=4096)
def _precision_of(types: bytes) -> int:
    return PRECISIONS.index(precision(types.decode(errors="replace")))


def _is_gemm(name: str) -> bool:
    return family(name) == "GEMM"


def _evaluates(name: str) -> bool:
    return name.startswith(EVALUATES)


def _is_module(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(MODULE)


def is_host_call(name: Any) -> bool:
    """Return whether an operator or range of this name is the host's call of a collective."""
    return isinstance(name, str) and _HOST_CALL.match(name) is not None


def _is_collective(name: Any) -> bool:
    return isinstance(name, str) and kernel_collective(name) is not None


def label(name: Any) -> str:
    """Return a name as text."""
    return "" if name is None else str(name)


def thread_name(thread: tuple[Any, Any] | None) -> str:
    """Return how tables name a thread: process/thread, "" for one that is not known."""
    return "" if thread is None else f"{thread[0]}/{thread[1]}"
