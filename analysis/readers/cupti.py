"""GPU work and CUDA calls from the tables of CUPTI's activity records, which nsys and nvprof keep in SQLite files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.blocks import in_order
from analysis.readers.columns import MISSING, Codes, Integers, categories, distinct_rows
from analysis.readers.sqlite_database import Database, Numbers

if TYPE_CHECKING:
    import pandas as pd

LAST_TIME = 1 << 62
"""Times from here on are damage, ns."""
PROCESS = 1 << 24
"""globalPid and globalTid hold the process above these bits, the thread in them."""

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_COPY_KINDS |= {10: "PtoP", 11: "HtoD (managed)", 12: "DtoH (managed)", 13: "DtoD (managed)"}
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PLACE = {
    "start": MISSING,
    "end": MISSING,
    "globalPid": -1,
    "deviceId": -1,
    "streamId": -1,
    "correlationId": -1,
    "graphNodeId": 0,
}
_OWN: Mapping[str, Mapping[str, int]] = {
    "kernel": dict.fromkeys(_SIZES, 0),
    "memcpy": {"copyKind": 0, "srcKind": -1, "dstKind": -1, "bytes": 0},
    "memset": {"bytes": 0},
    "graph": {"graphId": -1},
}
_CALL = {"start": MISSING, "end": MISSING, "correlationId": -1}
UNNAMED = "(name not recorded)"

Ids = list[list[int]]
"""Distinct rows, as columns."""
KernelNames = Callable[[Ids], list[str]]
Caller = Callable[[str, Ids], tuple[list[str], list[str], list[int]]]


@dataclass(slots=True)
class Records:
    """Rows of all processes, equally long columns; "process" (-1 unknown) says whose each is."""

    values: dict[str, Any]
    """Column -> numbers; those in `labels` are numbers of texts."""
    labels: dict[str, Codes]
    """Numbers of the texts of the columns that hold texts."""

    @property
    def process(self) -> Numbers:
        """Process of each row."""
        found: Numbers = self.values["process"]
        return found

    @process.setter
    def process(self, owners: Numbers) -> None:
        self.values["process"] = owners

    def by_process(self) -> tuple[dict[int, "pd.DataFrame"], "pd.DataFrame"]:
        """Return the table of each process, in order of start, and a table without rows. Gives the columns away."""
        import pandas as pd

        process = self.values.pop("process")
        keys = sorted(pd.unique(process).tolist())
        order = _order(process, self.values["start"], one=len(keys) < 2)
        if order is not None:
            for name in list(self.values):
                self.values[name] = self.values[name][order]
            process = process[order]
        ends = [len(process)] if len(keys) == 1 else _ends(process, keys)
        del process, order
        tables = {key: self._table(first, end) for key, first, end in zip(keys, [0, *ends], ends, strict=False)}
        return tables, self._table(0, 0)

    def table(self) -> "pd.DataFrame":
        """Return the rows of all processes together, in order of start. Gives the columns away."""
        self.process = np.full(len(self.process), -1, dtype=np.int8)
        tables, nothing = self.by_process()
        return next(iter(tables.values()), nothing)

    def _table(self, first: int, end: int) -> "pd.DataFrame":
        import pandas as pd

        own = {name: values[first:end] for name, values in self.values.items()}
        for name, labels in self.labels.items():
            own[name] = categories(own[name], list(labels))
        return pd.DataFrame(own, copy=False)


def _order(process: Numbers, start: Integers, one: bool) -> Any:
    """The rows by process and start; None where they stand so already."""
    if not one:
        return np.lexsort((start, process))
    return None if in_order(start) else np.argsort(start, kind="stable")


def _ends(process: Numbers, keys: Sequence[int]) -> list[int]:
    """Where the rows of each process end, of sorted ones."""
    found: list[int] = np.searchsorted(process, np.array(keys, dtype=process.dtype), side="right").tolist()
    return found


def read_work(
    database: Database,
    tables: Mapping[str, str],
    named_by: Sequence[str],
    kernel_names: KernelNames,
    memory_kinds: Sequence[str],
    problems: list[str],
) -> Records:
    """Read kernels, copies, memsets and whole CUDA graphs: name, kind, device, stream, start, end, correlation_id,
    bytes, graph_node, grid_x to block_z.

    Args:
        database: an open database.
        tables: kind of work by table.
        named_by: columns that name a kernel.
        kernel_names: takes the distinct rows of these columns, and gives the name of each.
        memory_kinds: what the numbers of memory kinds mean, from 0, as Kineto writes them: "Pageable"; "" unknown.
        problems: takes what could not be read, one sentence each.
    """
    labels = {"name": Codes(), "kind": Codes()}
    parts: list[dict[str, Any]] = []
    for table, kind in tables.items():
        wanted = {**_PLACE, **_OWN[kind], **dict.fromkeys(named_by if kind == "kernel" else (), -1)}
        columns = _timed(database.integers(table, wanted), f"of kind {kind}", problems)
        if parts and not len(columns["start"]):
            continue
        if kind == "kernel":
            ids, place = _distinct(*(columns.pop(name) for name in named_by))
            names = kernel_names(ids)
        else:
            names, place = _copy_names(kind, columns, memory_kinds)
        kinds = np.full(len(place), labels["kind"][kind], dtype=np.int8)
        parts.append({"name": labels["name"].of(names)[place], "kind": kinds, **_work(columns)})
    return Records({name: _joined([part.pop(name) for part in parts]) for name in list(parts[0])}, labels)


def read_api(
    database: Database,
    tables: Sequence[str],
    told_by: Sequence[str],
    caller: Caller,
    problems: list[str],
    shortest_ns: int = 0,
) -> Records:
    """Read the calls of CUDA's runtime and driver: name, thread "process/thread", start, end, correlation_id.

    Args:
        database: an open database.
        tables: of the calls.
        told_by: columns that tell name and thread.
        caller: takes a table and the distinct rows of these columns, and gives name, thread and process of each.
        problems: takes what could not be read, one sentence each.
        shortest_ns: calls that are shorter are left out.
    """
    labels = {"name": Codes(), "thread": Codes()}
    parts: list[dict[str, Any]] = []
    for table in tables:
        wanted = {**_CALL, **dict.fromkeys(told_by, -1)}
        what = "of calls of the system" if shortest_ns else "of CUDA's calls"
        columns = _timed(database.integers(table, wanted), what, problems)
        if shortest_ns:
            lasting = columns["end"] - columns["start"] >= shortest_ns
            columns = {name: values[lasting] for name, values in columns.items()}
        if parts and not len(columns["start"]):
            continue
        ids, place = _distinct(*(columns.pop(name) for name in told_by))
        names, threads, owners = caller(table, ids)
        part = {
            "name": labels["name"].of(names)[place],
            "thread": labels["thread"].of(threads)[place],
            "start": columns["start"],
            "end": columns["end"],
            "correlation_id": columns["correlationId"],
            "process": np.array(owners, dtype=np.int64)[place],
        }
        parts.append(part)
    return Records({name: _joined([part.pop(name) for part in parts]) for name in list(parts[0])}, labels)


def _timed(columns: dict[str, Any], what: str, problems: list[str]) -> dict[str, Any]:
    """Leave out what has no start or end, and times that no clock shows."""
    start, end = columns["start"], columns["end"]
    good = (end >= start) & (start > -LAST_TIME) & (end < LAST_TIME)
    if good.all():
        return columns
    problems.append(f"{int((~good).sum()):,} records {what} without start or end were skipped")
    return {name: values[good] for name, values in columns.items()}


def _work(columns: dict[str, Any]) -> dict[str, Any]:
    nothing = np.zeros(len(columns["start"]), dtype=np.int64)
    process = np.maximum(-1, columns.pop("globalPid") // PROCESS)
    return {
        "device": columns.pop("deviceId"),
        "stream": columns.pop("streamId"),
        "start": columns.pop("start"),
        "end": columns.pop("end"),
        "correlation_id": columns.pop("correlationId"),
        "bytes": columns.pop("bytes", nothing),
        "graph_node": columns.pop("graphNodeId"),
        **{f"{size[:-1]}_{size[-1].lower()}": columns.pop(size, nothing) for size in _SIZES},
        "process": process,
    }


def _copy_names(kind: str, columns: dict[str, Any], memory_kinds: Sequence[str]) -> tuple[list[str], Numbers]:
    """Names of copies, memsets or graphs, and which of them each record has."""
    if kind == "memcpy":
        rows, place = _distinct(*(columns.pop(name) for name in ("copyKind", "srcKind", "dstKind")))
        return [_copy(direction, ends, memory_kinds) for direction, *ends in zip(*rows, strict=True)], place
    if kind == "graph":
        (numbers,), place = _distinct(columns.pop("graphId"))
        return ["CUDA graph" if number < 0 else f"CUDA graph {number}" for number in numbers], place
    return ["Memset"], np.zeros(len(columns["start"]), dtype=np.int32)


def _copy(kind: int, ends: Sequence[int], memory_kinds: Sequence[str]) -> str:
    """The name of a copy, with the memory at its ends where both are known, as Kineto has it."""
    name = f"Memcpy {_COPY_KINDS.get(kind, f'of kind {kind}')}"
    memories = [memory_kinds[end] if 0 <= end < len(memory_kinds) else "" for end in ends]
    return f"{name} ({' -> '.join(memories)})" if all(memories) else name


def _distinct(*columns: Numbers) -> tuple[list[list[int]], Numbers]:
    """Distinct rows as columns, and for each row which of them it is."""
    rows, place = distinct_rows(*columns)
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns], place


def _joined(parts: list[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
