"""Summaries that `nsys stats` wrote, of all versions: totals by name of kernels, copies, calls, ranges.

They are CSV (`--format csv`) or columns of text, as nsys prints them by default; there it cuts names to 100 letters.
Names and headers changed: gpukernsum, cuda_gpu_kern_sum; "Time(%)", "Time (%)"; "Average" without a unit beside "Total
Time (ns)", "Avg (ns)". Kernels stand by name, or by name, grid and block; ranges may stand by thread.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.readers.profiler_csv import NS, Statistics, Table, headers, read_tables, totals
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

FORM = "summaries"

BYTES = {"b": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Bytes by unit of size, in nsys's sense: MB is 1,000,000, MiB 1,048,576."""

_NAMES = ("name", "operation", "range")
_COUNTS = ("instances", "num calls", "calls", "operations", "count")
_TOTALS = ("total time", "total")
_STATISTICS = {
    "average": ("avg", "average"),
    "median": ("med", "median"),
    "min": ("min", "minimum"),
    "max": ("max", "maximum"),
    "stddev": ("stddev",),
}
_EXTRA = {"style": "style", "pid": "process", "tid": "thread", "gridxyz": "grid", "blockxyz": "block"}
_CATEGORIES = {"CUDA_KERNEL": "kernels", "MEMORY_OPER": "copies", "CUDA_API": "api"}
_TITLES = {
    "kernels": "CUDA GPU Kernel Summary",
    "copies": "CUDA GPU MemOps Summary",
    "api": "API Summary",
    "ranges": "NVTX Range Summary",
}
_TITLE_LINE = re.compile(
    r"^\s*(?:Processing\b.*[/\[](\w+)(?:\.py)?\b[^/\]]*\]?|\*\*\s*(.*?)\s*:?\s*$|SKIPPED\b|NOTICE\b|"
    r"([A-Z][\w ()]* Statistics(?: \([\w ]*\))?):?\s*$)"
)
# Of 2020 and 2021: "CUDA Memory Operation Statistics (by size in KiB)" over a column "Total".
_UNIT_IN_TITLE = re.compile(r"by size in (\w+)\)")


def recognises(head: "Head") -> bool:
    """Return whether a file holds a summary of nsys."""
    return any(map(_is_header, headers(head.text, "T")))


def read(path: Path) -> list[Summary]:
    """Read a file; one Summary per table, in order.

    Beyond name, count, total_ns: average_ns, median_ns, min_ns, max_ns, stddev_ns; of sizes total_bytes, average_bytes
    and so on in place of them; grid and block (texts), style, process and thread where the table has them. Names are
    empty for none. `facts["report"]` is nsys's name of the report where the file says it.

    Raises:
        InputError: the file cannot be read, or holds no summary.
    """
    found: list[Summary] = []
    for table in read_tables(path, _is_header, title_of):
        found += _summaries(table)
    if not found:
        raise InputError(
            "trace-without-work",
            f"{path} has no summary with rows: give the output of `nsys stats --report cuda_gpu_kern_sum`",
        )
    return found


def title_of(line: str) -> str | None:
    """Return the report that a line between tables names, "" where it names none; None where it is no such line."""
    match = _TITLE_LINE.match(line)
    return match[1] or match[2] or match[3] or "" if match else None


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower().partition("(")[0].strip() for cell in cells}
    counted = bool(names & set(_COUNTS)) and bool(names & set(_NAMES))
    # nvprof has "Type" and "Time", and its units in a row of their own.
    return counted and bool(names & set(_TOTALS)) and "type" not in names


def _summaries(table: Table) -> list[Summary]:
    names = table.texts(*reversed(_NAMES)) or []
    total_place = table.place(*_TOTALS)
    if not names or total_place is None or table.place(*_COUNTS) is None:
        return []
    unit = table.units[total_place]
    if not unit and (match := _UNIT_IN_TITLE.search(table.title)):
        unit = table.units[total_place] = match[1].lower()
    sizes = unit in BYTES
    factor = BYTES[unit] if sizes else NS.get(unit)
    if factor is None:
        return [_empty(table, f"the time unit {unit!r} is unknown: the table was skipped")]
    suffix = "bytes" if sizes else "ns"
    statistics = Statistics(_STATISTICS, BYTES if sizes else NS)
    frame, good, problems = totals(table, names, _COUNTS, total_place, statistics, suffix)
    for other, name in _EXTRA.items():
        texts = table.texts(other)
        if texts is not None:
            frame[name] = np.array(texts, dtype=object)[good]
    problems += _checked(frame, suffix, factor)
    what = _what(table)
    groups = {what: np.ones(len(frame), dtype=bool)}
    categories = table.texts("category")
    if categories is not None:
        kinds = np.array([_CATEGORIES.get(text.strip().upper(), what) for text in categories], dtype=object)[good]
        groups = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())} or groups
    return [
        Summary(
            what=kind,
            title=table.title or _TITLES[kind],
            table=frame[rows].reset_index(drop=True),
            source="nsys stats",
            facts={"report": table.title} if table.title else {},
            problems=tuple(problems),
        )
        for kind, rows in groups.items()
    ]


def _empty(table: Table, problem: str) -> Summary:
    import pandas as pd

    what = _what(table)
    frame = pd.DataFrame({"name": pd.Series(dtype="str"), "count": pd.Series(dtype="int64")})
    frame["total_ns"] = pd.Series(dtype="int64")
    return Summary(what, table.title or _TITLES[what], frame, "nsys stats", problems=(problem,))


def _what(table: Table) -> str:
    title = table.title.lower()
    if "range" in table.names or "style" in table.names or "nvtx" in title:
        return "ranges"
    if "operation" in table.names or "operations" in table.names or "mem_" in title:
        return "copies"
    return "api" if table.place("num calls", "calls") is not None else "kernels"


def _checked(frame: Any, suffix: str, factor: float) -> list[str]:
    """Instances x average must be the total, as far as the average's digits go."""
    if f"average_{suffix}" not in frame:
        return []
    total = frame[f"total_{suffix}"].to_numpy(dtype=np.float64)
    count = frame["count"].to_numpy(dtype=np.float64)
    off = np.abs(count * frame[f"average_{suffix}"].to_numpy(dtype=np.float64) - total)
    wrong = int((off > np.maximum(1e-3 * np.abs(total), 0.51 * factor * np.maximum(count, 1))).sum())
    return [f"{wrong:,} rows have a total other than count times average: the file was changed"] if wrong else []
