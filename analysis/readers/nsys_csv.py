"""CSVs of summaries by `nsys stats --format csv`, of all versions: totals by name of kernels, copies, calls, ranges.
Several tables may be in one file, between lines of other kinds.

Names and headers changed: gpukernsum, cuda_gpu_kern_sum; "Time(%)", "Time (%)"; "Average" without a unit beside "Total
Time (ns)", "Avg (ns)". Kernels stand by name, or by name, grid and block; ranges may stand by thread.
"""

import io
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import Summary
from analysis.readers.packed import log_lines
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_NS = {"ns": 1, "nsec": 1, "us": 1e3, "\u03bcs": 1e3, "\u00b5s": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9}
_NS |= {"sec": 1e9}
_BYTES = {"b": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)$")
_TITLE = re.compile(r"^\s*(?:Processing\b.*[/\[](\w+)(?:\.py)?\b[^/\]]*\]?|SKIPPED\b|NOTICE\b)")

_NAMES = ("range", "operation", "name")
_COUNTS = ("instances", "num calls", "calls", "operations", "count")
_TOTALS = ("total time", "total")
_TRACE, _OF_TRACE = {"start", "duration", "name"}, {"strm", "corrid", "tid"}
_CATEGORIES = {"CUDA_KERNEL": "kernels", "MEMORY_OPER": "copies", "CUDA_API": "api"}


def recognises(head: "Head") -> bool:
    """Return whether a file holds a summary of nsys, or a trace, of which `read` says what to give."""
    return any(_is_header(line) for line in head.text.splitlines())


def read(path: Path) -> list[Summary]:
    """Read a file: the summaries in order.

    Raises:
        InputError: the file cannot be read, or holds no summary with rows.
    """
    problems: list[str] = []
    tables = [*_tables(path, problems)]
    summaries = [one for title, lines in tables for one in _summaries(title, lines, problems)]
    if not summaries:
        raise InputError(
            "trace-without-work",
            f"{path} has no summary with rows: give the output of `nsys stats --format csv --report "
            "cuda_gpu_kern_sum`, or, for a timeline, the SQLite export itself",
        )
    return summaries


def _is_header(line: str) -> bool:
    names = {cell.strip(' "').lower().partition("(")[0].strip() for cell in line.split(",")} if "," in line else set()
    is_summary = all(names.intersection(some) for some in (_NAMES, _COUNTS, _TOTALS))
    return is_summary or (names >= _TRACE and bool(names & _OF_TRACE))


def _tables(path: Path, problems: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the report that the line before a table names, "" where none does, and the table's lines."""
    lines = [*log_lines(path, problems.append)]
    for begin in [number for number, line in enumerate(lines) if _is_header(line)]:
        before = next(filter(str.strip, reversed(lines[:begin])), "")
        rows = itertools.takewhile(lambda line: line.strip() and not _TITLE.match(line), lines[begin + 1 :])
        rows = itertools.takewhile(lambda line: not _is_header(line), rows)
        yield (match[1] or "") if (match := _TITLE.match(before)) else "", [lines[begin], *rows]


def _summaries(title: str, lines: list[str], problems: list[str]) -> Iterator[Summary]:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.ParserWarning)  # fields beyond the header are dropped
        text = io.StringIO("\n".join(lines))
        rows = pd.read_csv(text, dtype=str, keep_default_na=False, on_bad_lines="skip", index_col=False)
    split = [(match[1], match[2]) if (match := _UNIT.match(name)) else (name, "") for name in rows.columns.str.lower()]
    rows.columns = pd.Index([name.strip() for name, _ in split])
    if problems and len(rows) and not rows.iat[-1, -1]:  # the last line is cut short
        rows = rows.iloc[:-1]
    if not len(rows) or {*rows.columns} >= _TRACE:
        return

    def first(*names: str) -> Any:
        return next((name for name in names if name in rows), None)

    def numbers(name: str) -> "pd.Series[float]":
        return pd.to_numeric(rows[name].str.replace(",", ""), errors="coerce").astype("float64")

    total = first(*_TOTALS)
    unit = dict(zip(rows.columns, (unit for _, unit in split), strict=True))[total]
    units, column = (_BYTES, "total_bytes") if unit in _BYTES else (_NS, "total_ns")
    counts, sums = numbers(first(*_COUNTS)), (numbers(total) * units.get(unit, float("nan"))).round()
    good = counts.notna() & sums.notna()
    skipped = [f"{(~good).sum():,} rows without count or total (unit {unit!r}) were skipped"] if not good.all() else []
    frame = pd.DataFrame({"name": rows[first(*_NAMES)], "count": counts, column: sums})[good]
    frame = frame.astype({"count": "int64", column: "int64"})
    what = "api" if first("num calls", "calls") else "kernels"
    if first("range", "style") or "nvtx" in title.lower():
        what = "ranges"
    elif first("operation", "operations") or "mem_" in title.lower():
        what = "copies"
    kinds = (
        rows["category"].str.upper().map(_CATEGORIES).fillna(what)
        if "category" in rows
        else rows[total].mask(good, what)
    )
    for kind, part in frame.groupby(kinds[good], sort=False):
        table = part.reset_index(drop=True)
        yield Summary(str(kind), title or f"nsys stats: {kind}", table, "nsys stats", problems=(*problems, *skipped))
