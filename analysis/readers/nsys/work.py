"""GPU work and CUDA calls of an nsys export, in columns as narrow as they can be: there are millions of rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.nsys.ranges import LAST_TIME, PROCESS
from analysis.readers.sqlite_database import MISSING, Database, Integers, Numbers, distinct_rows

if TYPE_CHECKING:
    import pandas as pd

WORK_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
API_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")

COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
COPY_KINDS |= {10: "PtoP", 11: "HtoD (managed)", 12: "DtoH (managed)", 13: "DtoD (managed)"}
"""Directions of a copy by CUPTI's number."""
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_NAMES = ("demangledName", "shortName", "mangledName")
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
    "kernel": {**dict.fromkeys(_NAMES, -1), **dict.fromkeys(_SIZES, 0)},
    "memcpy": {"copyKind": 0, "bytes": 0},
    "memset": {"bytes": 0},
    "graph": {"graphId": -1},
}
_API = {"start": MISSING, "end": MISSING, "globalTid": -1, "correlationId": -1, "nameId": -1}
_API_VERSION = re.compile(r"_v\d{4,}$")
_UNNAMED = "(name not recorded)"
_ROWS_AT_ONCE = 1 << 20


class Labels:
    """Texts under small numbers; equal ones share one."""

    def __init__(self) -> None:
        """Begin without any."""
        self._codes: dict[str, int] = {}

    def codes(self, texts: Sequence[str]) -> Numbers:
        """Return the numbers of some texts, int32."""
        return np.array([self._codes.setdefault(text, len(self._codes)) for text in texts], dtype=np.int32)

    def categorical(self, codes: Numbers) -> Any:
        """Return the texts behind numbers, as a column that knows only those it holds."""
        import pandas as pd

        texts = np.array(list(self._codes), dtype=object)
        used = np.bincount(codes, minlength=len(texts)) > 0 if len(codes) else np.zeros(len(texts), dtype=bool)
        renumbered = (np.cumsum(used) - 1).astype(np.int16 if used.sum() < 2**15 else np.int32)
        kinds: Any = pd.CategoricalDtype(pd.Index(texts[used], dtype="str"))
        own: Any = renumbered[codes] if len(codes) else []
        return pd.Categorical.from_codes(own, dtype=kinds)


@dataclass(slots=True)
class Columns:
    """Rows of all processes, equally long columns; "process" (-1 unknown) says whose each is."""

    values: dict[str, Any]
    """Column -> numbers; those in `labels` are numbers of texts."""
    labels: dict[str, Labels]
    """Texts of the columns that hold texts."""

    @property
    def process(self) -> Integers:
        """Process of each row."""
        found: Integers = self.values["process"]
        return found

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
        ends = [len(process)] if len(keys) == 1 else np.searchsorted(process, keys, side="right").tolist()
        del process, order
        tables = {key: self._table(first, end) for key, first, end in zip(keys, [0, *ends], ends, strict=False)}
        return tables, self._table(0, 0)

    def _table(self, first: int, end: int) -> "pd.DataFrame":
        import pandas as pd

        own = {name: values[first:end] for name, values in self.values.items()}
        for name, labels in self.labels.items():
            own[name] = labels.categorical(own[name])
        return pd.DataFrame(own, copy=False)


def _order(process: Integers, start: Integers, one: bool) -> Any:
    """The rows by process and start; None where they stand so already."""
    if not one:
        return np.lexsort((start, process))
    return None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")


def read_work(database: Database, problems: list[str]) -> Columns:
    """Read kernels, copies, memsets and whole CUDA graphs; see nsys.read for the columns."""
    labels = {name: Labels() for name in ("name", "kind", "short_name")}
    parts: list[dict[str, Any]] = []
    for kind, table in WORK_TABLES.items():
        columns = _timed(database.integers(table, {**_PLACE, **_OWN[kind]}, compact=True), f"of kind {kind}", problems)
        if kind == "kernel" or len(columns["start"]):
            parts.append(_work(kind, columns, database, labels))
    values = {name: _joined([part.pop(name) for part in parts]) for name in list(parts[0])}
    return Columns({"name": values.pop("name"), "kind": values.pop("kind"), **values}, labels)


def read_api(database: Database, problems: list[str]) -> Columns:
    """Read the calls of CUDA's runtime and driver: name (without nsys's suffix _v7000), thread "process/thread",
    start, end, correlation_id."""
    labels = {"name": Labels(), "thread": Labels()}
    parts: list[dict[str, Any]] = []
    for table in API_TABLES:
        columns = _timed(database.integers(table, _API, compact=True), "of CUDA's calls", problems)
        rows = len(columns["start"])
        if not rows and parts:
            continue
        (ids,), place = _distinct(columns.pop("nameId"))
        names = database.strings(np.array(ids, dtype=np.int64))
        texts = [_API_VERSION.sub("", names.get(number, _UNNAMED)) for number in ids]
        name = labels["name"].codes(texts)[place] if rows else place
        (threads,), place = _distinct(columns.pop("globalTid"))
        owners = [number // PROCESS if number >= 0 else -1 for number in threads]
        texts = [f"{number // PROCESS % PROCESS}/{number % PROCESS}" if number >= 0 else "" for number in threads]
        part = {
            "name": name,
            "thread": labels["thread"].codes(texts)[place] if rows else place,
            "start": columns["start"],
            "end": columns["end"],
            "correlation_id": columns["correlationId"],
            "process": np.array(owners, dtype=np.int64)[place] if rows else place.astype(np.int64),
        }
        parts.append(part)
    return Columns({name: _joined([part.pop(name) for part in parts]) for name in list(parts[0])}, labels)


def _timed(columns: dict[str, Any], what: str, problems: list[str]) -> dict[str, Any]:
    """Leave out what has no start or end, and times that no clock shows."""
    start, end = columns["start"].astype(np.int64, copy=False), columns["end"].astype(np.int64, copy=False)
    columns |= {"start": start, "end": end}
    good = (end >= start) & (start > -LAST_TIME) & (end < LAST_TIME)
    if good.all():
        return columns
    problems.append(f"{int((~good).sum()):,} records {what} have no start or end and were left out")
    return {name: values[good] for name, values in columns.items()}


def _work(kind: str, columns: dict[str, Any], database: Database, labels: Mapping[str, Labels]) -> dict[str, Any]:
    rows = len(columns["start"])
    name, short = _names(kind, columns, database, labels)
    process = columns.pop("globalPid").astype(np.int64, copy=False)
    process //= PROCESS  # -1 stays -1
    process[process < 0] = -1
    return {
        "name": name,
        "kind": np.full(rows, labels["kind"].codes([kind])[0], dtype=np.int8),
        "device": columns.pop("deviceId"),
        "stream": columns.pop("streamId"),
        "start": columns.pop("start"),
        "end": columns.pop("end"),
        "short_name": short,
        "correlation_id": columns.pop("correlationId"),
        "bytes": columns.pop("bytes", np.zeros(rows, dtype=np.int64)).astype(np.int64, copy=False),
        "graph_node": columns.pop("graphNodeId"),
        **{f"{size[:-1]}_{size[-1].lower()}": _size(columns.pop(size, None), rows) for size in _SIZES},
        "process": process,
    }


def _size(values: Numbers | None, rows: int) -> Numbers:
    return np.zeros(rows, dtype=np.int32) if values is None else values.clip(0, 2**31 - 1).astype(np.int32, copy=False)


def _names(
    kind: str, columns: dict[str, Any], database: Database, labels: Mapping[str, Labels]
) -> tuple[Numbers, Numbers]:
    """Numbers of the full and the short name of each record."""
    if kind == "kernel":
        ids, place = _distinct(*(columns.pop(name) for name in _NAMES))
        names = database.strings(np.array([number for column in ids for number in column], dtype=np.int64))
        found = [[names.get(number) for number in row] for row in zip(*ids, strict=True)]
        full = [demangled or mangled or short or _UNNAMED for demangled, short, mangled in found]
        brief = [short or demangled or mangled or _UNNAMED for demangled, short, mangled in found]
    else:
        number = columns.pop("copyKind", None)
        if number is None:
            number = columns.pop("graphId", np.zeros(len(columns["start"]), dtype=np.int32))
        (kinds,), place = _distinct(number)
        brief = full = [_label(kind, number) for number in kinds]
    if not full:
        return place, place
    return labels["name"].codes(full)[place], labels["short_name"].codes(brief)[place]


def _label(kind: str, number: int) -> str:
    if kind == "memcpy":
        return f"Memcpy {COPY_KINDS.get(number, f'of kind {number}')}"
    if kind == "graph":
        return "CUDA graph" if number < 0 else f"CUDA graph {number}"
    return "Memset"


def _distinct(*columns: Numbers) -> tuple[list[list[int]], Numbers]:
    """Distinct rows as columns, and for each row which of them it is; some rows at a time, to need little memory."""
    known: dict[tuple[int, ...], int] = {}
    place = np.zeros(len(columns[0]), dtype=np.int32)
    for first in range(0, len(place), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        rows, own = distinct_rows(*(column[part] for column in columns))
        place[part] = np.array([known.setdefault(row, len(known)) for row in rows], dtype=np.int32)[own]
    return [list(column) for column in zip(*known, strict=True)] or [[] for _ in columns], place


def _joined(parts: list[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
