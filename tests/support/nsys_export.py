"""SQLite exports of Nsight Systems, given as rows of their tables."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Tables = dict[str, tuple[str, Sequence[tuple[Any, ...]]]]
"""Columns as SQL declares them, and rows, by table."""
Row = dict[str, Any]

_VM = 7 << 48
_TEXTS = ("text", "jsonText", "value", "name")
_NAMES = {
    **{short: f"CUPTI_ACTIVITY_KIND_{name}" for short, name in (
        ("kernels", "KERNEL"), ("copies", "MEMCPY"), ("memsets", "MEMSET"), ("graphs", "GRAPH_TRACE"),
        ("calls", "RUNTIME"), ("driver", "DRIVER"))},
    "nvtx": "NVTX_EVENTS", "gpus": "TARGET_INFO_GPU",
}  # fmt: skip


def write_sqlite(path: Path, tables: Tables) -> None:
    """Write a database with small pages."""
    with sqlite3.connect(path) as connection:
        # Damage, in tests of readers, hits rows as often as what is between them.
        connection.execute("PRAGMA page_size = 512")
        for name, (columns, rows) in tables.items():
            quoted = name.replace('"', '""')
            connection.execute(f'CREATE TABLE "{quoted}" ({columns})')
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f'INSERT INTO "{quoted}" VALUES ({marks})', rows)
    connection.close()


def export(path: Path, strings: Sequence[str] = (), **tables: Sequence[Row]) -> Path:
    """Write an export; `strings` are numbered from 0, and what a row leaves out is NULL."""
    written: Tables = {"StringIds": ("id INTEGER PRIMARY KEY, value TEXT", [*enumerate(strings)])}
    for name, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        declared = ", ".join(f'"{column}" {"TEXT" if column in _TEXTS else "INTEGER"}' for column in columns)
        written[_NAMES.get(name, name)] = declared, [tuple(row.get(column) for column in columns) for row in rows]
    write_sqlite(path, {name: table for name, table in written.items() if table[0]})
    return path


def pid(process: int) -> int:
    """Return a process as exports number it."""
    return _VM | process << 24


def tid(process: int, thread: int | None = None) -> int:
    """Return a thread as exports number it; by default the process's first one."""
    return pid(process) | (process if thread is None else thread)


def work(start: int, end: int, process: int = 40, **more: Any) -> Row:
    """Return a row of any kind of work of a GPU."""
    place = {"deviceId": 0, "streamId": 7, "correlationId": 5, "globalPid": pid(process)}
    return {"start": start, "end": end, **place, **more}


def kernel(start: int, end: int, name: int, process: int = 40, **more: Any) -> Row:
    """Return a row of a kernel."""
    return work(start, end, process, **{"demangledName": name, "shortName": name, **more})


def call(start: int, end: int, name: int, correlation: int, thread: int = tid(40)) -> Row:
    """Return a row of a call of CUDA."""
    return {"start": start, "end": end, "nameId": name, "correlationId": correlation, "globalTid": thread}


def nvtx(start: int, end: int | None, text: str | None = None, process: int = 40, **more: Any) -> Row:
    """Return a row of a range."""
    return {"start": start, "end": end, "eventType": 59, "globalTid": tid(process), "text": text, **more}


def ours(process: int = 40, number: int = 1) -> Row:
    """Return the row that names the suite's domain."""
    return nvtx(-500, None, "bertbench", process, eventType=75, domainId=number)
