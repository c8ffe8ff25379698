"""Totals that `nvprof --csv` wrote: the summary of kernels, copies and calls, and results of --metrics and --events.

Lines `==1234== ...` stand around the tables. In the summary a row of units follows the header. In metric tables every
value has its own: `100.000000%`, `6.270065GB/s`, `Low (1)`; rates are taken to count in 1,024s, as its sizes do.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.readers.nvprof.trace_csv import BYTES
from analysis.readers.profiler_csv import NS, Statistics, Table, header_cells, number, read_tables, totals, whole
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

FORM = "summaries"

LEVEL = "level (0 to 10)"
"""Unit of nvprof's utilization levels."""

_NOTE = re.compile(r"^=+(\d+)=+\s*(.*?):?\s*$")
_LEVEL = re.compile(r"^[A-Z][a-z]+ \((\d{1,2})\)$")
_VALUE = re.compile(r"^([-+]?[\d.,]+(?:[eE][-+]?\d+)?)\s*(%|[KMGT]?B/s|[KMGT]?B|[munp]?s)?$")
_TEXT = re.compile(r"\s*(?:Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\b|Invocations\s+(?:Metric|Event) Name\b")
_STATISTICS = Statistics({"average": ("avg",), "min": ("min",), "max": ("max",)}, NS, math.nan)
_WHAT = {"gpu activities": "kernels", "api calls": "api"}
_TITLES = {"kernels": "GPU activities", "copies": "GPU copies", "api": "API calls"}


def recognises(head: "Head") -> bool:
    """Return whether a file was written by nvprof, as CSV or as text."""
    lines = head.text.splitlines()
    return any(re.match(r"^=+\d*=+ NVPROF is profiling", line) for line in lines[:5000]) or any(
        _is_header(header_cells(line)) for line in lines if "Avg" in line
    )


def read(path: Path) -> list[Summary]:
    """Read a file; one Summary per kind of row.

    kernels, copies, api: name, count, total_ns, average_ns, min_ns, max_ns. metrics: device, kernel, invocations,
    metric, description, unit ("" none; LEVEL), min, max, average (float64, NaN where nvprof says none) and, of events,
    total. Bytes and rates are in B and B/s. `facts["process"]` is the profiled process.

    Raises:
        InputError: the file cannot be read, is nvprof's text, or holds no totals.
    """
    seen: dict[str, Any] = {}
    found: list[Summary] = []
    for table in read_tables(path, _is_header, lambda line: _title(line, seen), has_units_row=True):
        found += _metrics(table, seen) if "invocations" in table.names else _totals(table, seen)
    if not found:
        raise _why_not(path)
    return found


def _why_not(path: Path) -> InputError:
    from analysis.readers.packed import log_lines

    text = any(_TEXT.match(line) for line in log_lines(path))
    what = "is nvprof's text, which is rounded" if text else "has no nvprof totals with rows"
    return InputError(
        "file-format" if text else "trace-without-work",
        f"{path} {what}: record with `nvprof --csv --log-file FILE.csv` and give that file",
    )


def _title(line: str, seen: dict[str, Any]) -> str | None:
    match = _NOTE.match(line)
    if match and "NVPROF is profiling process" in line:
        seen["process"] = int(match[1][:18])
    return match[2] if match else None


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower() for cell in cells}
    summary = {"time(%)", "time", "calls", "avg", "name"} <= names
    return summary or {"device", "kernel", "invocations", "min", "max", "avg"} <= names


def _totals(table: Table, seen: dict[str, Any]) -> list[Summary]:
    # "time(%)" has become ("time", "%"): the total is the other one.
    total_place = next((at for at, name in enumerate(table.names) if name == "time" and table.units[at] in NS), None)
    if total_place is None or not table.rows:
        return []
    names = table.texts("name") or []
    frame, good, problems = totals(table, names, ("calls",), total_place, _STATISTICS)
    every = [_kind(table, row, name) for row, name in zip(table.rows, names, strict=True)]
    kinds = np.array(every, dtype=object)[good]
    return [
        Summary(
            what=kind,
            title=_TITLES[kind],
            table=frame[kinds == kind].reset_index(drop=True),
            source="nvprof",
            facts=dict(seen),
            problems=tuple(problems),
        )
        for kind in dict.fromkeys(kinds.tolist())
    ]


def _kind(table: Table, row: Sequence[str], name: str) -> str:
    place = table.place("type")
    said = row[place] if place is not None else table.title
    kind = _WHAT.get(said.strip().lower(), "kernels")
    return "copies" if kind == "kernels" and name.startswith("[") else kind


def _metrics(table: Table, seen: dict[str, Any]) -> list[Summary]:
    import pandas as pd

    if not table.rows:
        return []
    rows = len(table.rows)
    problems = table.problems
    columns: dict[str, Any] = {
        "device": table.texts("device"),
        "kernel": table.texts("kernel"),
        "invocations": whole(table.numbers("invocations"), rows, -1),
        "metric": table.texts("metric name", "event name") or [""] * rows,
        "description": table.texts("metric description") or [""] * rows,
        "unit": [""] * rows,
    }
    units: list[set[str]] = [set() for _ in range(rows)]
    for own, theirs in (("min", "min"), ("max", "max"), ("average", "avg"), ("total", "total")):
        texts = table.texts(theirs)
        if texts is None:
            continue
        values = [_value(text) for text in texts]
        columns[own] = np.array([value for value, _ in values], dtype=np.float64)
        for found, (value, unit) in zip(units, values, strict=True):
            if not math.isnan(value):
                found.add(unit)
    columns["unit"] = [found.pop() if len(found) == 1 else "" for found in units]
    unread = sum(1 for value in columns["average"] if math.isnan(value))
    if unread:
        problems.append(f"{unread:,} metrics are not numbers, such as <OVERFLOW>: they are unknown")
    frame = pd.DataFrame(columns)
    return [Summary("metrics", table.title or "Metric result", frame, "nvprof", dict(seen), tuple(problems))]


def _value(text: str) -> tuple[float, str]:
    """Return a value in base units and its unit; NaN where it is no number."""
    text = text.strip()
    level = _LEVEL.match(text)
    if level:
        return float(level[1]), LEVEL
    match = _VALUE.match(text)
    if not match:
        return math.nan, ""
    value, unit = number(match[1]), match[2] or ""
    if unit.lower() in NS:
        return value * NS[unit.lower()], "ns"
    if unit.endswith(("B", "B/s")):
        factor = BYTES[unit.removesuffix("/s").lower()]
        return value * factor, "B/s" if unit.endswith("/s") else "B"
    return value, unit
