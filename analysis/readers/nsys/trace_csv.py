"""Traces that `nsys stats --format csv` wrote: GPU work (cuda_gpu_trace), CUDA calls (cuda_api_trace) and NVTX ranges
(nvtx_pushpop_trace, nvtx_startend_trace), of all versions; several tables may be in one file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.assembly import assembled
from analysis.readers.nsys.csv_tables import BYTES, NS, Table, has_table, read_tables, whole
from analysis.timeline import API_COLUMNS, KERNEL_COLUMNS, SPAN_COLUMNS, Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

_SOURCE = "nsys stats"
_LONGEST_NAME = 300  # of a device: patterns take time that grows with the square
_DEVICE = re.compile(r"^(.*?)\s*\((\d{1,6})\)\s*$")
_SIZES = {f"{side}_{axis}": f"{short}{axis}" for side, short in (("grid", "grd"), ("block", "blk")) for axis in "xyz"}
"""Sizes of grids and blocks by nsys's columns."""


def recognises(head: "Head") -> bool:
    """Return whether a file holds a trace of nsys."""
    return has_table(head.text, "Start", _is_header)


def read(path: Path) -> list[Timeline]:
    """Read a file: one Timeline per process that has ranges or calls, the GPU's work with the only one of them.

    GPU traces do not say their process: beside several processes their work is a timeline of its own. nsys rounds the
    sizes of copies to 1,000 bytes. Summaries in the same file are nsys_csv's.

    Raises:
        InputError: the file cannot be read, or holds no trace.
    """
    work: list[pd.DataFrame] = []
    ranges: list[pd.DataFrame] = []
    calls: list[pd.DataFrame] = []
    devices: dict[int, str] = {}
    problems: list[str] = []
    for table in read_tables(path, _is_header):
        problems += table.problems
        times = _times(table, problems)
        if times is None:
            continue
        names = table.texts("name") or []
        correlation = whole(table.numbers("corrid"), len(table.rows), -1)
        if table.place("device", "strm") is not None:
            columns, named = _gpu_work(table, names, correlation, times)
            work.append(_in_order(columns, problems, "rows of GPU work"))
            devices |= named
        elif table.place("result") is not None:
            columns = {"name": names, **_thread_of(table), **times, "correlation_id": correlation}
            calls.append(_in_order(columns, problems, "CUDA calls"))
        else:
            names = [name.removeprefix(":") for name in names]
            domains = [name.rpartition(":")[0] if name.startswith("bertbench:") else "" for name in names]
            columns = {"name": names, **_thread_of(table), **times, "domain": domains, "json": "", "cut": False}
            ranges.append(_in_order(columns, problems, "ranges"))
    if not (work or ranges or calls):
        raise InputError(
            "trace-without-work",
            f"{path} has no trace with rows: give the output of `nsys stats --format csv --report cuda_gpu_trace` or "
            "nvtx_pushpop_trace, or the SQLite export itself",
        )
    return _timelines(work, calls, ranges, devices, tuple(dict.fromkeys(problems)))


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower().partition("(")[0].strip() for cell in cells}
    return {"start", "duration", "name"} <= names and bool(names & {"strm", "corrid", "tid"})


def _thread_of(table: Table) -> dict[str, Any]:
    """Thread, as "process/thread", and process (-1 unknown) of each row."""
    rows = len(table.rows)
    process, thread = (whole(table.numbers(name), rows, -1) for name in ("pid", "tid"))
    threads = [f"{a}/{b}" if b >= 0 else "" for a, b in zip(process.tolist(), thread.tolist(), strict=True)]
    return {"thread": threads, "process": process}


def _times(table: Table, problems: list[str]) -> dict[str, Any] | None:
    """Return start and end of the rows of a trace, ns; None, with a problem, where their units are not known."""
    places = [table.place(name) for name in ("start", "duration")]
    units = [table.units[place] for place in places if place is not None]
    if len(units) < 2 or not table.rows:
        return None
    if not all(unit in NS for unit in units):
        problems.append(f"the time units {', '.join(map(repr, units))} are unknown: a table was skipped")
        return None
    rows = len(table.rows)
    begin = whole(table.numbers("start", factor=NS[units[0]]), rows, -(2**62))
    return {"start": begin, "end": begin + whole(table.numbers("duration", factor=NS[units[1]]), rows, -(2**60))}


def _gpu_work(
    table: Table, names: Sequence[str], correlation_ids: Any, times: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[int, str]]:
    rows = len(table.rows)
    device, devices = _devices(table.texts("device"), rows)
    place = table.place("bytes")
    factor = BYTES.get(table.units[place], 1.0) if place is not None else 1.0
    columns = {
        "name": names,
        "kind": [_kind(name) for name in names],
        "device": device,
        "stream": whole(table.numbers("strm"), rows, -1),
        **times,
        "correlation_id": correlation_ids,
        "bytes": whole(table.numbers("bytes", factor=factor), rows, 0),
        **{name: whole(table.numbers(theirs), rows, 0) for name, theirs in _SIZES.items()},
    }
    return columns, devices


def _devices(texts: Sequence[str] | None, rows: int) -> tuple[Any, dict[int, str]]:
    """Return device numbers and names of cells such as "Tesla T4 (0)"; -1 where a cell has no number."""
    if texts is None:
        return np.full(rows, -1, dtype=np.int64), {}
    known = {text: _DEVICE.match(text[:_LONGEST_NAME]) for text in set(texts)}
    numbers = {text: int(match[2]) if match else -1 for text, match in known.items()}
    names = {int(match[2]): match[1] for match in known.values() if match}
    return np.array([numbers[text] for text in texts], dtype=np.int64), dict(sorted(names.items()))


def _kind(name: str) -> str:
    """Return what a row of a GPU trace is: kernel, memcpy or memset."""
    if not name.startswith("["):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"


def _in_order(columns: Mapping[str, Any], problems: list[str], what: str) -> "pd.DataFrame":
    """Return the rows that have a start and an end, in order of start; others are counted in a problem."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    good = (frame["start"] > -(2**61)) & (frame["end"] >= frame["start"]) & (frame["end"] < 2**62)
    if not good.all():
        problems.append(f"{int((~good).sum()):,} {what} without start or duration were skipped")
    return frame[good].sort_values("start", kind="stable", ignore_index=True)


def _together(frames: "Sequence[pd.DataFrame]", otherwise: Mapping[str, str]) -> "pd.DataFrame":
    """Return tables as one, in order of start; without any, an empty one with those columns and types."""
    import pandas as pd

    if not frames:
        return empty(otherwise)
    return pd.concat(frames, ignore_index=True).sort_values("start", kind="stable", ignore_index=True)


def _timelines(
    work: "list[pd.DataFrame]",
    calls: "list[pd.DataFrame]",
    ranges: "list[pd.DataFrame]",
    devices: dict[int, str],
    problems: tuple[str, ...],
) -> list[Timeline]:
    import pandas as pd

    kernels = _together(work, {**KERNEL_COLUMNS, "correlation_id": "int64"})
    every_call = _together(calls, {**API_COLUMNS, "process": "int64"})
    every_range = _together(ranges, {**SPAN_COLUMNS, "domain": "str", "json": "str", "cut": "bool", "process": "int64"})
    every_range["payload"] = pd.array([pd.NA] * len(every_range), dtype="Int64")
    owners = sorted({*every_call["process"].tolist(), *every_range["process"].tolist()}) or [-1]
    if len(owners) > 1 and work:
        owners.append(-2)  # nobody's
        problems = (*problems, "GPU work does not name its process: it forms a separate timeline")
    found = []
    for owner in owners:
        own = kernels if owner == owners[-1] else kernels[:0]
        api, marked = (
            table[table["process"] == owner].drop(columns="process").reset_index(drop=True)
            for table in (every_call, every_range)
        )
        process, gpus = owner if owner >= 0 else None, devices if len(own) else {}
        found.append(assembled(own, api, marked, source=_SOURCE, problems=problems, process=process, devices=gpus))
    return found
