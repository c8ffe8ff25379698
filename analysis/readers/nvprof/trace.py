"""Traces that `nvprof --csv --print-gpu-trace` (and --print-api-trace) wrote.

A row of units follows the header and differs from file to file. Sizes count in 1,024s. A kernel's name ends in the
number of the call that launched it, "[3156]".
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.nsys.collectives import collectives
from analysis.readers.profiler_csv import (
    NS,
    SIZES,
    Table,
    bare_tables,
    devices_of,
    header_cells,
    in_order,
    kind_of,
    read_tables,
    whole,
)
from analysis.timeline import KERNEL_COLUMNS, Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

BYTES = {"b": 1.0, "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "tb": 2.0**40}
"""Bytes by unit of size, in nvprof's sense."""
_SIZES = ("grid x", "grid y", "grid z", "block x", "block y", "block z")
_NOTE = re.compile(r"^=+(\d+)=+\s*(.*?):?\s*$")
_RANGE_TYPES = {"name": "str", "thread": "str", "start": "int64", "end": "int64"}


def recognises(head: "Head") -> bool:
    """Return whether a file holds a trace of nvprof."""
    return any(_is_header(header_cells(line)) for line in head.text.splitlines())


def read(path: Path) -> Timeline:
    """Read a trace. kernels hold correlation_id, bytes and sizes of grid and block too; ranges are empty.

    Raises:
        InputError: the file cannot be read, or holds no trace.
    """
    work: list[pd.DataFrame] = []
    calls: list[pd.DataFrame] = []
    devices: dict[int, str] = {}
    processes: set[int] = set()
    problems: list[str] = []
    for table in read_tables(path, _is_header, lambda line: _title(line, processes), has_units_row=True):
        problems += table.problems
        units = [table.units[table.place(name) or 0] for name in ("start", "duration")]
        if not table.rows or not all(unit in NS for unit in units):
            problems += [f"times in the units {units} are not known: a table was left out"] if table.rows else []
            continue
        devices |= _add(table, [NS[unit] for unit in units], work, calls, problems)
    if not work and not calls:
        raise InputError(
            "trace-without-work",
            f"{path} holds no row of a trace: give what `nvprof --csv --print-gpu-trace --log-file FILE.csv` wrote",
        )
    if len(processes) > 1:
        problems.append(f"the file holds {len(processes)} processes, which its rows do not tell apart")
    kernels = _joined(work) if work else empty(KERNEL_COLUMNS).assign(correlation_id=np.empty(0, dtype=np.int64))
    api = _joined(calls) if calls else bare_tables()["api"]
    none = empty({**_RANGE_TYPES, "json": "str", "payload": "Int64"})
    return Timeline(
        **{**bare_tables(), "api": api},
        rank=None,
        kernels=kernels,
        ranges=none,
        collectives=collectives(kernels, api, none),
        source="nvprof",
        process=processes.pop() if len(processes) == 1 else None,
        problems=tuple(dict.fromkeys(problems)),
        devices=devices,
    )


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower() for cell in cells}
    return {"start", "duration", "name"} <= names and "tid" not in names and "corrid" not in names


def _title(line: str, processes: set[int]) -> str | None:
    match = _NOTE.match(line)
    if not match:
        return None
    if "NVPROF is profiling process" in line:
        processes.add(int(match[1][:18]))
    return match[2]


def _add(
    table: Table, factors: list[float], work: "list[pd.DataFrame]", calls: "list[pd.DataFrame]", problems: list[str]
) -> dict[int, str]:
    """Add a table's rows; return the devices it names."""
    rows = len(table.rows)
    start = whole(table.numbers("start", factor=factors[0]), rows, -(2**62))
    lasted = whole(table.numbers("duration", factor=factors[1]), rows, -(2**60))
    split = [_split_number(name) for name in table.texts("name") or []]
    names = [name for name, _ in split]
    numbers = np.array([correlation for _, correlation in split], dtype=np.int64)
    times = {"start": start, "end": start + lasted}
    texts = table.texts("device")
    on_gpu = np.array([bool(text) for text in texts] if texts else [False] * rows)
    if not on_gpu.all():
        columns = {"name": names, "thread": "", **times, "correlation_id": numbers}
        calls.append(in_order(_chosen(columns, ~on_gpu), problems, "CUDA calls"))
    if not on_gpu.any():
        return {}
    device, devices = devices_of(texts, rows)
    place = table.place("size")
    factor = BYTES.get(table.units[place], 1.0) if place is not None else 1.0
    columns = {
        "name": names,
        "kind": [kind_of(name) for name in names],
        "device": device,
        "stream": whole(table.numbers("stream"), rows, -1),
        **times,
        "correlation_id": numbers,
        "bytes": whole(table.numbers("size", factor=factor), rows, 0),
        **{own: whole(table.numbers(theirs), rows, 0) for own, theirs in zip(SIZES, _SIZES, strict=True)},
    }
    work.append(in_order(_chosen(columns, on_gpu), problems, "rows of GPU work"))
    return devices


def _split_number(name: str) -> tuple[str, int]:
    """Return a name and the number of the launching call behind it, -1 where there is none."""
    head, _, tail = name.rstrip().rpartition("[")
    digits = tail[:-1]
    if not head or not tail.endswith("]") or not digits.isdecimal() or len(digits) > 18:
        return name, -1
    return head.rstrip(), int(digits)


def _chosen(columns: dict[str, Any], rows: Any) -> dict[str, Any]:
    found = {}
    for name, values in columns.items():
        texts = object if name in ("name", "kind") else None
        found[name] = values if isinstance(values, str) else np.asarray(values, dtype=texts)[rows]
    return found


def _joined(frames: "list[pd.DataFrame]") -> "pd.DataFrame":
    import pandas as pd

    joined = pd.concat(frames, ignore_index=True).sort_values("start", kind="stable", ignore_index=True)
    return joined.astype({name: "str" for name in ("name", "kind", "thread") if name in joined})
