"""Traces that `nsys stats` wrote, CSV or columns of text: GPU work (cuda_gpu_trace), CUDA calls (cuda_api_trace) and
NVTX ranges (nvtx_pushpop_trace, nvtx_startend_trace), of all versions; several tables may be in one file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.assembly import assembled
from analysis.readers.nsys.summary_csv import BYTES, title_of
from analysis.readers.profiler_csv import (
    Table,
    gpu_work,
    headers,
    in_order,
    read_tables,
    times_of,
    together,
    whole,
)
from analysis.timeline import API_COLUMNS, KERNEL_COLUMNS, SPAN_COLUMNS, Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

_SOURCE = "nsys stats"


def recognises(head: "Head") -> bool:
    """Return whether a file holds a trace of nsys."""
    return any(map(_is_header, headers(head.text, "Start")))


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
    for table in read_tables(path, _is_header, title_of):
        problems += table.problems
        times = times_of(table, problems)
        if times is None:
            continue
        names = table.texts("name") or []
        correlation = whole(table.numbers("corrid"), len(table.rows), -1)
        if table.place("device", "strm") is not None:
            columns, named = gpu_work(table, names, correlation, times, BYTES)
            work.append(in_order(columns, problems, "rows of GPU work"))
            devices |= named
        elif table.place("result") is not None:
            columns = {"name": names, **_thread_of(table), **times, "correlation_id": correlation}
            calls.append(in_order(columns, problems, "CUDA calls"))
        else:
            names = [name.removeprefix(":") for name in names]
            domains = [name.rpartition(":")[0] if name.startswith("bertbench:") else "" for name in names]
            columns = {"name": names, **_thread_of(table), **times, "domain": domains, "json": "", "cut": False}
            ranges.append(in_order(columns, problems, "ranges"))
    if not (work or ranges or calls):
        raise InputError(
            "trace-without-work",
            f"{path} has no trace with rows: give the output of `nsys stats --format csv --report cuda_gpu_trace` or "
            "nvtx_pushpop_trace, or the SQLite export itself",
        )
    return _timelines(work, calls, ranges, devices, tuple(dict.fromkeys(problems)))


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower().partition("(")[0].strip() for cell in cells}
    if not {"start", "duration", "name"} <= names or "grid x" in names:
        return False
    return bool(names & {"strm", "corrid", "tid"})


def _thread_of(table: Table) -> dict[str, Any]:
    """Thread, as "process/thread", and process (-1 unknown) of each row."""
    rows = len(table.rows)
    process, thread = (whole(table.numbers(name), rows, -1) for name in ("pid", "tid"))
    threads = [f"{a}/{b}" if b >= 0 else "" for a, b in zip(process.tolist(), thread.tolist(), strict=True)]
    return {"thread": threads, "process": process}


def _timelines(
    work: "list[pd.DataFrame]",
    calls: "list[pd.DataFrame]",
    ranges: "list[pd.DataFrame]",
    devices: dict[int, str],
    problems: tuple[str, ...],
) -> list[Timeline]:
    import pandas as pd

    kernels = together(work, {**KERNEL_COLUMNS, "correlation_id": "int64"})
    every_call = together(calls, {**API_COLUMNS, "process": "int64"})
    every_range = together(ranges, {**SPAN_COLUMNS, "domain": "str", "json": "str", "cut": "bool", "process": "int64"})
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
