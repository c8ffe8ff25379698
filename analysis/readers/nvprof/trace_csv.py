"""Traces that `nvprof --csv --print-gpu-trace` (and --print-api-trace) wrote.

A row of units follows the header and differs from file to file. Sizes count in 1,024s. A kernel's name ends in the
number of the call that launched it, "[3156]".
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.assembly import assembled
from analysis.readers.profiler_csv import gpu_work, header_cells, in_order, read_tables, times_of, together
from analysis.timeline import API_COLUMNS, KERNEL_COLUMNS, Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

BYTES = {"b": 1.0, "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "tb": 2.0**40}
"""Bytes by unit of size, in nvprof's sense."""
_NOTE = re.compile(r"^=+(\d+)=+\s*(.*?):?\s*$")


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
        times = times_of(table, problems)
        if times is None:
            continue
        split = [_split_number(name) for name in table.texts("name") or []]
        names, numbers = [name for name, _ in split], np.array([number for _, number in split], dtype=np.int64)
        on_gpu = np.array([bool(text) for text in table.texts("device") or [""] * len(split)])
        if not on_gpu.all():
            columns: dict[str, Any] = {"name": names, "thread": "", **times, "correlation_id": numbers}
            calls.append(in_order(columns, problems, "CUDA calls", ~on_gpu))
        if on_gpu.any():
            columns, named = gpu_work(table, names, numbers, times, BYTES)
            work.append(in_order(columns, problems, "rows of GPU work", on_gpu))
            devices |= named
    if not work and not calls:
        raise InputError(
            "trace-without-work",
            f"{path} has no rows of a trace: give the output of `nvprof --csv --print-gpu-trace --log-file FILE.csv`",
        )
    if len(processes) > 1:
        problems.append(f"the file holds {len(processes)} processes and does not separate them")
    kernels = together(work, {**KERNEL_COLUMNS, "correlation_id": "int64"})
    process = processes.pop() if len(processes) == 1 else None
    api = together(calls, API_COLUMNS)
    return assembled(kernels, api, None, source="nvprof", problems=problems, process=process, devices=devices)


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


def _split_number(name: str) -> tuple[str, int]:
    """Return a name and the number of the launching call behind it, -1 where there is none."""
    head, _, tail = name.rstrip().rpartition("[")
    digits = tail[:-1]
    if not head or not tail.endswith("]") or not digits.isdecimal() or len(digits) > 18:
        return name, -1
    return head.rstrip(), int(digits)
