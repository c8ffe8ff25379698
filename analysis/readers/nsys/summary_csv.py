"""Summaries that `nsys stats --format csv` wrote, of all versions: totals by name of kernels, copies, calls, ranges.

Names and headers changed: gpukernsum, cuda_gpu_kern_sum; "Time(%)", "Time (%)"; "Average" without a unit beside "Total
Time (ns)", "Avg (ns)". Kernels stand by name, or by name, grid and block; ranges may stand by thread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.readers.nsys.csv_tables import BYTES, NS, Table, has_table, read_tables, whole
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

FORM = "summaries"

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


def recognises(head: "Head") -> bool:
    """Return whether a file holds a summary of nsys."""
    return has_table(head.text, "T", _is_header)


def read(path: Path) -> list[Summary]:
    """Read a file; one Summary per table, in order.

    Beyond name, count, total_ns: average_ns, median_ns, min_ns, max_ns, stddev_ns; of sizes total_bytes, average_bytes
    and so on in place of them; grid and block (texts), style, process and thread where the table has them. Names are
    empty for none. `facts["report"]` is nsys's name of the report where the file says it.

    Raises:
        InputError: the file cannot be read, or holds no summary.
    """
    found: list[Summary] = []
    for table in read_tables(path, _is_header):
        found += _summaries(table)
    if not found:
        raise InputError(
            "trace-without-work",
            f"{path} has no summary with rows: give the output of `nsys stats --format csv --report cuda_gpu_kern_sum`",
        )
    return found


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower().partition("(")[0].strip() for cell in cells}
    counted = bool(names & set(_COUNTS)) and bool(names & set(_NAMES))
    return counted and bool(names & set(_TOTALS))


def _summaries(table: Table) -> list[Summary]:
    import pandas as pd

    names = table.texts(*reversed(_NAMES)) or []
    total_place, counts = table.place(*_TOTALS), table.numbers(*_COUNTS)
    if not names or total_place is None or counts is None:
        return []
    unit = table.units[total_place]
    units: dict[str, float] = BYTES if unit in BYTES else NS
    if unit not in units:
        return [_empty(table, f"the time unit {unit!r} is unknown: the table was skipped")]
    suffix = "bytes" if units is BYTES else "ns"
    rows, factor, problems = len(table.rows), units[unit], table.problems
    sums = table.numbers(*_TOTALS, factor=factor)
    assert sums is not None
    columns: dict[str, Any] = {
        "name": names,
        "count": whole(counts, rows, -1),
        f"total_{suffix}": whole(sums, rows, -1),
    }
    for name, theirs in _STATISTICS.items():
        place = table.place(*theirs)
        if place is not None:
            columns[f"{name}_{suffix}"] = table.numbers(*theirs, factor=units.get(table.units[place], factor))
    columns |= {name: texts for other, name in _EXTRA.items() if (texts := table.texts(other)) is not None}
    good = np.isfinite(counts) & np.isfinite(sums)
    if not good.all():
        problems.append(f"{int((~good).sum()):,} rows without count or total were skipped")
    frame = pd.DataFrame(columns)[good].reset_index(drop=True)
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
            table=frame[chosen].reset_index(drop=True),
            source="nsys stats",
            facts={"report": table.title} if table.title else {},
            problems=tuple(problems),
        )
        for kind, chosen in groups.items()
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
