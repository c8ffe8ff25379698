"""Kernel traces that `rocprofv3 --kernel-trace --output-format csv` wrote (..._kernel_trace.csv): GPU work alone."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.assembly import assembled
from analysis.readers.profiler_csv import Table, header_cells, in_order, read_tables, together
from analysis.readers.rocprof.reader import SOURCE, WORK_COLUMNS
from analysis.timeline import API_COLUMNS, Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

FORM = "timelines"

_NEEDED = {"kind", "agent_id", "kernel_name", "start_timestamp", "end_timestamp"}
_DIGITS = re.compile(r"\d{1,18}")


def recognises(head: "Head") -> bool:
    """Return whether a file begins as a kernel trace of rocprofv3."""
    return _is_header(header_cells(head.text.partition("\n")[0]))


def read(path: Path) -> Timeline:
    """Read a file. kernels hold correlation_id and sizes of grid and block too; agents are the devices.

    Raises:
        InputError: the file cannot be read, or holds no kernel.
    """
    problems: list[str] = []
    frames = []
    for table in read_tables(path, _is_header, lambda _: None):
        problems += table.problems
        frames.append(in_order(_columns(table), problems, "kernels"))
    kernels = together(frames, WORK_COLUMNS)
    if not len(kernels):
        raise InputError(
            "trace-without-work",
            f"{path} has no kernels: record again with `rocprofv3 --kernel-trace --output-format json -- PROGRAM`",
        )
    return assembled(kernels, empty(API_COLUMNS), None, source=SOURCE, problems=problems)


def _columns(table: Table) -> dict[str, Any]:
    sizes: dict[str, list[int]] = {}
    for axis in "xyz":
        block, threads = (_whole(table, f"{what}_size_{axis}", 0) for what in ("workgroup", "grid"))
        sizes |= {f"block_{axis}": block}
        # AMD's grids count threads, not blocks.
        sizes |= {f"grid_{axis}": [-(-n // b) if b > 0 else 0 for n, b in zip(threads, block, strict=True)]}
    return {
        "name": [name.removesuffix(".kd") for name in table.texts("kernel_name") or []],
        "kind": ["kernel"] * len(table.rows),
        "device": _whole(table, "agent_id", -1),
        "stream": _whole(table, "stream_id" if table.place("stream_id") is not None else "queue_id", -1),
        "start": _whole(table, "start_timestamp", -(2**62)),
        "end": _whole(table, "end_timestamp", -(2**62)),
        "correlation_id": _whole(table, "correlation_id", -1),
        **sizes,
    }


def _whole(table: Table, column: str, missing: int) -> list[int]:
    """The whole number in each cell ("Agent 4" is 4), which floating point would round."""
    found = (_DIGITS.search(text) for text in table.texts(column) or [""] * len(table.rows))
    return [int(match[0]) if match else missing for match in found]


def _is_header(cells: Sequence[str]) -> bool:
    return {cell.strip().lower() for cell in cells} >= _NEEDED
