"""CSVs of `nsys stats --format csv`, of all versions: summaries (totals by name of kernels, copies, calls, ranges) and
traces (GPU work, CUDA calls, NVTX ranges). Several tables may be in one file, between lines of other kinds.

Names and headers changed: gpukernsum, cuda_gpu_kern_sum; "Time(%)", "Time (%)"; "Average" without a unit beside "Total
Time (ns)", "Avg (ns)". Kernels stand by name, or by name, grid and block; ranges may stand by thread.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.counters import Summary
from analysis.readers.cupti import by_process, finish_ranges, labels, thread_name
from analysis.readers.packed import log_lines
from analysis.readers.steps import DOMAIN
from analysis.timeline import API_COLUMNS, KERNEL_COLUMNS, SPAN_COLUMNS, Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_NS = {"ns": 1, "nsec": 1, "us": 1e3, "\u03bcs": 1e3, "\u00b5s": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9}
_NS |= {"sec": 1e9}
_BYTES = {"b": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)$")
_TITLE = re.compile(r"^\s*(?:Processing\b.*[/\[](\w+)(?:\.py)?\b[^/\]]*\]?|SKIPPED\b|NOTICE\b)")
_DEVICE = re.compile(r"^(.*?)\s*\((\d+)\)$")
_HEAD_LINES = 2000
_TIMES = ("start", "duration")

_NAMES = ("range", "operation", "name")
_COUNTS = ("instances", "num calls", "calls", "operations", "count")
_TOTALS = ("total time", "total")
_CATEGORIES = {"CUDA_KERNEL": "kernels", "MEMORY_OPER": "copies", "CUDA_API": "api"}
_SIZES = {f"{side}_{axis}": f"{short}{axis}" for side, short in (("grid", "grd"), ("block", "blk")) for axis in "xyz"}


class _Table(NamedTuple):
    title: str
    """Report that the line before it names; "" where none does."""
    rows: "pd.DataFrame"
    """Cells as texts, by the name of their column in small letters, without its unit."""
    units: dict[str, str]
    problems: list[str]

    def first(self, *names: str) -> str | None:
        """Return the first of these columns that the table has."""
        return next((name for name in names if name in self.rows), None)

    def numbers(self, *names: str, factor: float = 1) -> Any:
        """Return the first of these columns times a factor; NaN where a cell holds no number or there is no column."""
        import pandas as pd

        name = self.first(*names)
        if name is None:
            return pd.Series(np.nan, index=self.rows.index)
        values = pd.to_numeric(self.rows[name].str.replace(",", ""), errors="coerce").astype("float64")
        return values.where(np.abs(values) < 2.0**62) * factor

    def whole(self, *names: str, default: int = -1, factor: float = 1) -> Any:
        """Return `numbers` as int64."""
        return self.numbers(*names, factor=factor).round().fillna(default).astype("int64")


def recognises(head: "Head") -> bool:
    """Return whether a file holds a summary or a trace of nsys."""
    return any(_is_header(line) for line in head.text.splitlines()[:_HEAD_LINES])


def read(path: Path) -> list[Summary | Timeline]:
    """Read a file: one Summary per summary in order, and one Timeline per process of its traces.

    GPU traces do not say their process: beside several processes their work is a timeline of its own. nsys rounds the
    sizes of copies to 1,000 bytes.

    Raises:
        InputError: the file cannot be read, or holds no table with rows.
    """
    tables = [table for table in _tables(path) if len(table.rows)]
    traces = [table for table in tables if "start" in table.rows]
    found: list[Summary | Timeline] = [
        one for table in tables if "start" not in table.rows for one in _summaries(table)
    ]
    found += _timelines(traces) if traces else []
    if not found:
        raise InputError(
            "trace-without-work",
            f"{path} has no summary or trace with rows: give the output of `nsys stats --format csv --report "
            "cuda_gpu_kern_sum` or cuda_gpu_trace, or the SQLite export itself",
        )
    return found


def _is_header(line: str) -> bool:
    names = {cell.strip(' "').lower().partition("(")[0].strip() for cell in line.split(",")} if "," in line else set()
    if {"start", "duration", "name"} <= names:
        return bool(names & {"strm", "corrid", "tid"})
    return all(names & set(some) for some in (_NAMES, _COUNTS, _TOTALS))


def _tables(path: Path) -> Iterator[_Table]:
    title, lines, problems = "", list[str](), list[str]()
    for line in log_lines(path, problems.append):
        match = _TITLE.match(line)
        if match or not line.strip() or _is_header(line):
            if lines:
                yield _table(title, lines, [])
                title = ""
            lines = [] if match or not line.strip() else [line]
            title = match[1] or "" if match else title
        elif lines:
            lines.append(line)
    if lines:
        yield _table(title, lines, problems)


def _table(title: str, lines: list[str], problems: list[str]) -> _Table:
    import pandas as pd

    text = io.StringIO("\n".join(lines))
    rows = pd.read_csv(text, dtype=str, keep_default_na=False, on_bad_lines="skip", index_col=False)
    split = [(match[1], match[2]) if (match := _UNIT.match(name)) else (name, "") for name in rows.columns.str.lower()]
    rows.columns = pd.Index([name.strip() for name, _ in split])
    if problems and len(rows) and not rows.iat[-1, -1]:  # the last line is cut short
        rows = rows[:-1]
    if torn := len(lines) - 1 - len(rows):
        problems.append(f"{torn:,} lines are not rows of the table and were skipped")
    return _Table(title, rows, dict(zip(rows.columns, (unit for _, unit in split), strict=True)), problems)


def _summaries(table: _Table) -> Iterator[Summary]:
    import pandas as pd

    rows, problems, total = table.rows, table.problems, table.first(*_TOTALS) or ""
    what, unit = _what(table), table.units[total]
    units, suffix = (_BYTES, "bytes") if unit in _BYTES else (_NS, "ns")
    counts, sums = table.numbers(*_COUNTS), table.numbers(total, factor=units.get(unit, np.nan)).round()
    good = counts.notna() & sums.notna()
    if not good.all():
        problems.append(f"{(~good).sum():,} rows without count or total (unit {unit!r}) were skipped")
    columns = {"name": rows[table.first(*_NAMES)], "count": counts, f"total_{suffix}": sums}
    frame = pd.DataFrame(columns)[good].astype({"count": "int64", f"total_{suffix}": "int64"})
    category = rows["category"].str.upper() if "category" in rows else pd.Series(what, index=rows.index)
    kinds = category.map(lambda text: _CATEGORIES.get(text, what))[good]
    for kind in kinds.unique() if len(kinds) else [what]:
        part, title = frame[kinds == kind].reset_index(drop=True), table.title or f"nsys stats: {kind}"
        yield Summary(kind, title, part, "nsys stats", problems=tuple(problems))


def _what(table: _Table) -> str:
    title = table.title.lower()
    if table.first("range", "style") or "nvtx" in title:
        return "ranges"
    if table.first("operation", "operations") or "mem_" in title:
        return "copies"
    return "api" if table.first("num calls", "calls") else "kernels"


def _timelines(tables: list[_Table]) -> list[Timeline]:
    import pandas as pd

    work = [empty({**KERNEL_COLUMNS, "correlation_id": "int64", "process": "int64"})]
    calls = [empty({**API_COLUMNS, "process": "int64"})]
    ranges = [empty({**SPAN_COLUMNS, **dict.fromkeys(("process", "thread_id"), "int64")})]
    devices: dict[int, str] = {}
    problems: list[str] = []
    for table in tables:
        start, length = (table.numbers(name, factor=_NS.get(table.units[name], np.nan)) for name in _TIMES)
        timed = start.notna() & (length >= 0)
        if not timed.all():
            problems.append(f"{(~timed).sum():,} rows without start or duration, or of an unknown unit, were skipped")
        problems += table.problems
        table = table._replace(rows=table.rows[timed])
        start, length = (values[timed].round().astype("int64") for values in (start, length))
        rows = table.rows[["name"]].assign(start=start, end=start + length, correlation_id=table.whole("corrid"))
        rows = rows.assign(process=table.whole("pid"), thread_id=table.whole("tid"))
        if "strm" in table.rows:
            known = {text: match for text in table.rows["device"].unique() if (match := _DEVICE.match(text))}
            devices |= {int(match[2]): match[1] for match in known.values()}
            numbers = {text: int(match[2]) for text, match in known.items()}
            factor = _BYTES.get(table.units.get("bytes", ""), 1)
            rows = rows.drop(columns="thread_id").assign(
                kind=rows["name"].map(_kind),
                device=table.rows["device"].map(numbers).fillna(-1).astype("int64"),
                stream=table.whole("strm"),
                bytes=table.whole("bytes", default=0, factor=factor),
                **{name: table.whole(theirs, default=0) for name, theirs in _SIZES.items()},
            )
            work.append(rows)
        elif "result" in table.rows:
            threads = labels(rows[["process", "thread_id"]], thread_name)
            calls.append(rows.drop(columns="thread_id").assign(thread=threads.astype(object)))
        else:
            ranges.append(rows)
    marked = pd.concat(ranges, ignore_index=True)
    text = marked["name"].str.removeprefix(":")
    domain = np.where(text.str.startswith(f"{DOMAIN}:"), DOMAIN, "")
    marked = marked.assign(text=text, domain=domain, json="", payload=pd.array([pd.NA] * len(marked), dtype="Int64"))
    kernels, api = (pd.concat(one).sort_values("start", kind="stable", ignore_index=True) for one in (work, calls))
    return by_process(
        kernels,
        api,
        finish_ranges(marked),
        source="nsys stats",
        problems=problems,
        gpus=lambda _process, used: {"devices": devices if used else {}},
    )


def _kind(name: str) -> str:
    """Return what a row of a GPU trace is: kernel, memcpy or memset."""
    if not name.startswith("["):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"
