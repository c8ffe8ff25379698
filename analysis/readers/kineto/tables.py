"""Sorts Kineto's events into the tables of a timeline while they are read."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.names import family, kernel_collective
from analysis.precisions import PRECISIONS, precision
from analysis.readers.kineto.arguments import (
    Arguments,
    CallArguments,
    CommunicationArguments,
    KernelArguments,
    sizes,
    whole_numbers,
)
from analysis.readers.kineto.categories import CALL, COUNTERS, KINDS, NEEDLESS, OPERATOR, RANGE, TABLES, WORK, Unknown
from analysis.readers.kineto.columns import Codes, Columns
from analysis.readers.kineto.events import MISSING, AnyEvent, Chunk, Integers

_HOST_CALL = re.compile(r"record_param_comms$|(?:nccl|gloo|mpi|ucc|xccl)[:_]|c10d::_?allgather_base", re.IGNORECASE)
_SPAN = {"name": "int32", "thread": "int32", "start": "int64", "duration": "int64"}
_SIZES = {name: "int32" for side in ("grid", "block") for name in (f"{side}_x", f"{side}_y", f"{side}_z")}
_PIECE = {"name": "int32", "kind": "int8", "device": "int64", "stream": "int64", "start": "int64", "duration": "int64",
        "correlation_id": "int64", "bytes": "int64", **_SIZES, "blocks_per_sm": "float64"}  # fmt: skip
_COLUMNS = {
    OPERATOR: {**_SPAN, "precision": "int8"},
    RANGE: _SPAN,
    CALL: {**_SPAN, "correlation_id": "int64"},
    WORK: _PIECE,
}

# Several times faster than decoding arguments of which only this is wanted; lists of tensors have a list of types.
_INPUT_TYPES = re.compile(rb'"Input type"\s*:\s*\[((?:[^][]|\[[^][]*\])*)\]')

HostCall = tuple[str, str, int, int, CommunicationArguments]


class Tables:
    """The tables of one trace. Times are the trace's own until `base_ns` is added."""

    def __init__(self) -> None:
        """Start without rows."""
        self.names: dict[str, Codes] = {table: Codes() for table in _COLUMNS}
        self.threads = Codes()
        self.events = 0
        """Events that are in the tables."""
        self.timeless = 0
        """Events of known categories without a usable time."""
        self.host_calls: list[HostCall] = []
        """Calls of collectives: name, thread, start, end, arguments."""
        self.kernel_calls: dict[int, CommunicationArguments] = {}
        """Arguments of communication kernels by place of the kernel."""
        self.counted: list[tuple[AnyEvent, int, int]] = []
        """Events that hold counters of a kernel, their starts and durations."""
        self.unknown = Unknown()
        self._columns = {table: Columns() for table in _COLUMNS}
        self._spans_of_thread: Counter[int] = Counter()
        self._multiplies: list[bool] = []

    def add(self, chunk: Chunk) -> None:
        """Sort the events of a chunk into the tables."""
        codes = Codes()
        category = codes.of([event.cat for event in chunk.events])
        usable = (chunk.start != MISSING) & (chunk.duration >= 0)
        by_table: dict[str, list[npt.NDArray[np.intp]]] = {}
        for name, code in codes.items():
            if not isinstance(name, str) or name in NEEDLESS:
                continue
            rows = np.flatnonzero(category == code)
            if (table := TABLES.get(name)) is not None:
                by_table.setdefault(table, []).append(rows)
            else:
                self.unknown.add(name, [chunk.events[row] for row in rows.tolist()])
        for table, found in by_table.items():
            rows = np.sort(np.concatenate(found))
            self.timeless += int((~usable[rows]).sum())
            rows = rows[usable[rows]]
            self.events += len(rows)
            if len(rows):
                events = [chunk.events[row] for row in rows.tolist()]
                self._add(table, events, chunk.start[rows], chunk.duration[rows])

    def _add(self, table: str, events: list[AnyEvent], start: Integers, duration: Integers) -> None:
        if table in KINDS:
            self._add_work(table, events, start, duration)
        elif table == COUNTERS:
            self.counted += zip(events, start.tolist(), duration.tolist(), strict=True)
        else:
            columns: dict[str, npt.NDArray[Any]] = {
                "name": self.names[table].of([event.name for event in events]),
                "thread": self.threads.of([(event.pid, event.tid) for event in events]),
                "start": start,
                "duration": duration,
            }
            if table == CALL:
                found = Arguments(CallArguments).of(events)
                columns["correlation_id"] = whole_numbers([one.correlation for one in found], -1)
            else:
                if table == OPERATOR:
                    columns["precision"] = self._precisions(events, columns["name"])
                self._note_host_calls(events, self.names[table], columns)
            self._columns[table].add(columns)

    def _add_work(self, kind: str, events: list[AnyEvent], start: Integers, duration: Integers) -> None:
        found = Arguments(KernelArguments).of(events)
        names = self.names[WORK].of([event.name for event in events])
        place: dict[str, Integers] = {}
        for column, field in (("device", "pid"), ("stream", "tid")):
            values = whole_numbers([getattr(one, column) for one in found], MISSING)
            absent = values == MISSING
            if absent.any():
                values[absent] = whole_numbers([getattr(events[row], field) for row in np.flatnonzero(absent)], -1)
            place[column] = values
        shape: dict[str, npt.NDArray[Any]] = {}
        for side in ("grid", "block"):
            found_sizes = sizes([getattr(one, side) for one in found])
            shape |= {f"{side}_{letter}": found_sizes[:, axis] for axis, letter in enumerate("xyz")}
        self._note_kernel_calls(kind, events, names)
        self._columns[WORK].add(
            {
                "name": names,
                "kind": np.full(len(events), KINDS.index(kind), dtype=np.int8),
                **place,
                "start": start,
                "duration": duration,
                "correlation_id": whole_numbers([one.correlation for one in found], -1),
                "bytes": whole_numbers([one.bytes for one in found], 0),
                **shape,
                "blocks_per_sm": np.array([one.blocks_per_sm for one in found], dtype=np.float64),
            }
        )

    def _precisions(self, events: Sequence[AnyEvent], names: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
        """The place in PRECISIONS of the types that each matrix product was given, 0 for all else."""
        known = islice(self.names[OPERATOR], len(self._multiplies), None)
        self._multiplies += [isinstance(name, str) and family(name) == "GEMM" for name in known]
        found = np.zeros(len(events), dtype=np.int8)
        for row in np.flatnonzero(np.array(self._multiplies, dtype=bool)[names]).tolist():
            types = _INPUT_TYPES.search(events[row].args)
            found[row] = _precision_of(types[1]) if types else 0
        return found

    def _note_host_calls(self, events: Sequence[AnyEvent], names: Codes, columns: dict[str, Any]) -> None:
        rows = np.flatnonzero(names.flags(_is_host_call)[columns["name"]]).tolist()
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
        columns["end"] = columns["start"] + columns.pop("duration")
        if table != WORK:
            self._spans_of_thread.update(dict(enumerate(np.bincount(columns["thread"]).tolist())))
        return columns

    def process(self) -> int | None:
        """Return the process that most of the spans taken so far are of; None where none has a number."""
        found: Counter[int] = Counter()
        for number, (process, _) in enumerate(self.threads):
            if isinstance(process, int):
                found[process] += self._spans_of_thread[number]
        return max(found, key=lambda process: found[process]) if found else None


@lru_cache(maxsize=4096)
def _precision_of(types: bytes) -> int:
    return PRECISIONS.index(precision(types.decode(errors="replace")))


def _is_host_call(name: Any) -> bool:
    return isinstance(name, str) and _HOST_CALL.match(name) is not None


def _is_collective(name: Any) -> bool:
    return isinstance(name, str) and kernel_collective(name) is not None


def label(name: Any) -> str:
    """Return a name as text."""
    return "" if name is None else str(name)


def thread_name(thread: tuple[Any, Any]) -> str:
    """Return how tables name a thread: process/thread."""
    return f"{thread[0]}/{thread[1]}"
