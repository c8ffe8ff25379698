"""Traces that `nsys stats --format csv` wrote: GPU work (cuda_gpu_trace), CUDA calls (cuda_api_trace) and NVTX ranges
(nvtx_pushpop_trace, nvtx_startend_trace), of all versions; several tables may stand in one file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.nsys.collectives import collectives
from analysis.readers.nsys.summary_csv import BYTES, title_of
from analysis.readers.profiler_csv import (
    NS,
    SIZES,
    Table,
    bare_tables,
    devices_of,
    header_cells,
    in_order,
    kind_of,
    read_tables,
    whole,
)
from analysis.readers.steps import take_steps, without_empty
from analysis.timeline import KERNEL_COLUMNS, Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

_SOURCE = "nsys stats"
_GPU_SIZES = ("grdx", "grdy", "grdz", "blkx", "blky", "blkz")


def recognises(head: "Head") -> bool:
    """Return whether a file holds a trace of nsys."""
    lines = head.text.splitlines()[:2000]
    return any("Start" in line and "Name" in line and _is_header(header_cells(line)) for line in lines)


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
        times = _times(table, problems)
        if times is None or not table.rows:
            continue
        if table.place("device", "strm") is not None:
            frame, named = _gpu_work(table, times, problems)
            work.append(frame)
            devices |= named
        elif table.place("result") is not None:
            calls.append(_calls(table, times, problems))
        else:
            ranges.append(_ranges(table, times, problems))
    if not (work or ranges or calls):
        raise InputError(
            "trace-without-work",
            f"{path} holds no trace with rows: give what `nsys stats --format csv --report cuda_gpu_trace` or "
            "nvtx_pushpop_trace wrote, or the SQLite export itself",
        )
    return _timelines(work, calls, ranges, devices, tuple(dict.fromkeys(problems)))


def _is_header(cells: Sequence[str]) -> bool:
    names = {cell.strip().lower().partition("(")[0].strip() for cell in cells}
    if not {"start", "duration", "name"} <= names or "grid x" in names:
        return False
    return bool(names & {"strm", "corrid", "tid"})


def _times(table: Table, problems: list[str]) -> dict[str, Any] | None:
    place = table.place("start")
    length = table.place("duration")
    if place is None or length is None:
        return None
    units = [table.units[place], table.units[length]]
    if not all(unit in NS for unit in units):
        problems.append(f"times in the units {', '.join(map(repr, units))} are not known: a table was left out")
        return None
    start, duration = table.numbers("start", factor=NS[units[0]]), table.numbers("duration", factor=NS[units[1]])
    begin = whole(start, len(table.rows), -(2**62))
    lasted = whole(duration, len(table.rows), -(2**60))
    return {"start": begin, "end": begin + lasted}


def _gpu_work(table: Table, times: dict[str, Any], problems: list[str]) -> tuple["pd.DataFrame", dict[int, str]]:
    rows = len(table.rows)
    names = table.texts("name") or [""] * rows
    device, devices = devices_of(table.texts("device"), rows)
    place = table.place("bytes")
    factor = BYTES.get(table.units[place], 1) if place is not None else 1
    columns = {
        "name": names,
        "kind": [kind_of(name) for name in names],
        "device": device,
        "stream": whole(table.numbers("strm"), rows, -1),
        **times,
        "correlation_id": whole(table.numbers("corrid"), rows, -1),
        "bytes": whole(table.numbers("bytes", factor=factor), rows, 0),
        **{own: whole(table.numbers(theirs), rows, 0) for own, theirs in zip(SIZES, _GPU_SIZES, strict=True)},
    }
    return in_order(columns, problems, "rows of GPU work"), devices


def _place_of(table: Table) -> tuple[Any, list[str]]:
    """Process (-1 unknown) and thread, as "process/thread"."""
    rows = len(table.rows)
    process = whole(table.numbers("pid"), rows, -1)
    thread = whole(table.numbers("tid"), rows, -1)
    return process, [f"{a}/{b}" if b >= 0 else "" for a, b in zip(process.tolist(), thread.tolist(), strict=True)]


def _calls(table: Table, times: dict[str, Any], problems: list[str]) -> "pd.DataFrame":
    process, thread = _place_of(table)
    correlation = whole(table.numbers("corrid"), len(table.rows), -1)
    columns = {"name": table.texts("name"), "thread": thread, **times, "correlation_id": correlation}
    return in_order({**columns, "process": process}, problems, "CUDA calls")


def _ranges(table: Table, times: dict[str, Any], problems: list[str]) -> "pd.DataFrame":
    process, thread = _place_of(table)
    names = [name.removeprefix(":") for name in table.texts("name") or []]
    columns = {
        "name": names,
        "thread": thread,
        **times,
        "domain": [name.rpartition(":")[0] if name.startswith("bertbench:") else "" for name in names],
        "json": "",
        "cut": False,
        "process": process,
    }
    return in_order(columns, problems, "ranges")


def _timelines(
    work: "list[pd.DataFrame]",
    calls: "list[pd.DataFrame]",
    ranges: "list[pd.DataFrame]",
    devices: dict[int, str],
    problems: tuple[str, ...],
) -> list[Timeline]:
    import pandas as pd

    kernels = _together(work) if work else empty(KERNEL_COLUMNS)
    owners = sorted({int(owner) for frame in [*calls, *ranges] for owner in frame["process"].unique()}) or [-1]
    if len(owners) > 1 and work:
        owners.append(-2)  # nobody's
        problems = (*problems, "the GPU's work does not say its process: it is a timeline of its own")
    found = []
    for owner in owners:
        own_kernels = kernels if work and owner == owners[-1] else kernels[:0]
        marked = _of(ranges, owner)
        steps = bare_tables()["steps"]
        if marked is None:
            marked = pd.DataFrame({name: pd.Series(dtype=t) for name, t in _RANGE_TYPES.items()})
        else:
            marked["payload"] = pd.array([pd.NA] * len(marked), dtype="Int64")
            steps, marked, _ = take_steps(marked)
        api = _of(calls, owner)
        api = bare_tables()["api"] if api is None else api
        steps, left_out = without_empty(steps, own_kernels, api)
        launched = own_kernels if "correlation_id" in own_kernels else own_kernels.assign(correlation_id=-1)
        found.append(
            Timeline(
                **{**bare_tables(), "steps": steps, "api": api},
                rank=None,
                kernels=own_kernels,
                ranges=marked,
                collectives=collectives(launched, api, marked),
                source=_SOURCE,
                process=owner if owner >= 0 else None,
                problems=(*problems, *left_out),
                devices=devices if len(own_kernels) else {},
            )
        )
    return found


_RANGE_TYPES = {
    "name": "str",
    "thread": "str",
    "start": "int64",
    "end": "int64",
    "domain": "str",
    "payload": "Int64",
    "json": "str",
    "cut": "bool",
}


def _together(frames: "list[pd.DataFrame]") -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(frames, ignore_index=True).sort_values("start", kind="stable", ignore_index=True)


def _of(frames: "list[pd.DataFrame]", owner: int) -> "pd.DataFrame | None":
    if not frames:
        return None
    own = [frame[frame["process"] == owner].drop(columns="process") for frame in frames]
    return _together(own)
