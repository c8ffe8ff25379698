"""`.nvvp` files that nvprof wrote (`nvprof --export-profile`): SQLite tables of CUPTI's activity records.

Times are ns. Names lie in StringTable; kernels have the compiler's names, calls their number in CUPTI. NVTX ranges are
pairs of markers with one id. Source of fields and numbers: CUPTI's activity API (CUpti_ActivityKernel4, ...Marker2),
cupti_runtime_cbid.h and cupti_driver_cbid.h.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.assembly import assembled
from analysis.readers.cupti import LAST_TIME, UNNAMED, Ids, read_api, read_work
from analysis.readers.sqlite_database import (
    SQLITE_HEADER,
    Database,
    check_header,
    is_of_nvprof,
    open_database,
    unpacked,
)
from analysis.readers.steps import DOMAIN
from analysis.timeline import Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_WORK = {
    f"{_PREFIX}CONCURRENT_KERNEL": "kernel",
    f"{_PREFIX}KERNEL": "kernel",
    f"{_PREFIX}MEMCPY": "memcpy",
    f"{_PREFIX}MEMCPY2": "memcpy",
    f"{_PREFIX}MEMSET": "memset",
}
# Of CUPTI's CUpti_ActivityMemoryKind.
_MEMORY_KINDS = ("", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
# The calls that matter for launching and waiting; all others are shown by number.
_RUNTIME_CALLS = {
    13: "cudaLaunch",
    20: "cudaMalloc",
    22: "cudaFree",
    31: "cudaMemcpy",
    41: "cudaMemcpyAsync",
    49: "cudaMemset",
    51: "cudaMemsetAsync",
    131: "cudaStreamSynchronize",
    135: "cudaEventRecord",
    137: "cudaEventSynchronize",
    147: "cudaStreamWaitEvent",
    165: "cudaDeviceSynchronize",
    211: "cudaLaunchKernel",
}
_CALLS = {f"{_PREFIX}RUNTIME": _RUNTIME_CALLS, f"{_PREFIX}DRIVER": {307: "cuLaunchKernel"}}
_START, _END = 2, 4  # flags of a marker
_INTEGERS = {1: "<Q", 4: "<q"}  # kinds of a payload that are whole numbers
_XML = (
    "{path} is a session of NVIDIA's Visual Profiler (XML), which only it can read: give the output of "
    "`nvprof --export-profile FILE.nvvp`"
)


def recognises(head: "Head") -> bool:
    """Return whether a file is nvprof's database, or a session of the Visual Profiler."""
    if head.data.startswith(SQLITE_HEADER):
        return is_of_nvprof(head)
    begin = head.data[:4096].lstrip().lower()
    return begin.startswith(b"<?xml") and (b"nvidia" in begin or b"nvvp" in begin or head.path.suffix == ".nvvp")


def read(path: Path) -> list[Timeline]:
    """Read a file: the timeline of the process that was profiled, in a list; [] where nothing was recorded.

    kernels: correlation_id, bytes, grid_x to block_z; ranges: domain, payload, json (empty), cut. The rank is the
    payload of the range `bertbench:capture`.

    Raises:
        InputError: the file cannot be read, is cut short, or is not nvprof's; the message says what it seems to be.
    """
    with unpacked(path) as plain:
        with plain.open("rb") as file:
            begin = file.read(64)
        if begin.lstrip().lower().startswith(b"<?xml"):
            raise InputError("file-format", _XML.format(path=path))
        check_header(path, plain, "`nvprof --export-profile`")
        with open_database(plain, path) as database:
            if "StringTable" not in database.tables:
                raise InputError(
                    "file-format",
                    f"{path} is an SQLite database without the table StringTable, so it is not from nvprof",
                )
            return _timelines(database)


def _timelines(database: Database) -> list[Timeline]:
    problems: list[str] = []
    work = read_work(database, _WORK, ("name",), lambda ids: _kernel_names(database, ids), _MEMORY_KINDS, problems)
    calls = read_api(database, list(_CALLS), ("cbid", "processId", "threadId"), _callers, problems)
    owners = {owner for owner in calls["process"].unique().tolist() if owner >= 0}
    kernels, api = work.drop(columns="process"), calls.drop(columns="process")
    marked, more = _ranges(database, problems)
    if not (len(kernels) or len(api) or len(marked)):
        return []
    owners |= more
    if len(owners) > 1:
        problems.append(f"the file holds {len(owners)} processes and does not separate their GPU work")
    gpus = database.rows(_PREFIX + "DEVICE", ("id", "name", "numMultiprocessors"))
    gpus = [row for row in gpus if isinstance(row[0], int)]
    names = database.strings("StringTable", "_id_")
    return [
        assembled(
            kernels,
            api,
            marked,
            source="nvprof",
            problems=problems,
            process=owners.pop() if len(owners) == 1 else None,
            devices={row[0]: names[row[1]] for row in gpus if row[1] in names},
            sm_counts={row[0]: row[2] for row in gpus if isinstance(row[2], int) and 0 < row[2] < 2**20},
        )
    ]


def _kernel_names(database: Database, ids: Ids) -> list[str]:
    (numbers,) = ids
    texts = database.strings("StringTable", "_id_")
    return [texts.get(number, UNNAMED) for number in numbers]


def _callers(table: str, ids: Ids) -> tuple[list[str], list[str], list[int]]:
    numbers, processes, threads = ids
    names = [_CALLS[table].get(number, f"{table.removeprefix(_PREFIX).lower()} call {number}") for number in numbers]
    return names, [f"{a}/{b % 2**32}" for a, b in zip(processes, threads, strict=True)], processes


def _ranges(database: Database, problems: list[str]) -> tuple["pd.DataFrame", set[int]]:
    """Return the ranges, outer ones first where several begin at once, and the processes that made them."""
    import pandas as pd

    wanted = ("flags", "timestamp", "id", "objectKind", "objectId", "name", "domain")
    rows = database.rows(_PREFIX + "MARKER", wanted)
    good = [row for row in rows if all(isinstance(row[at], int) for at in (0, 1, 2)) and abs(row[1]) < LAST_TIME]
    texts = database.strings("StringTable", "_id_")
    data = database.rows(_PREFIX + "MARKER_DATA", ("id", "payloadKind", "payload"))
    payloads = {row[0]: _payload(row[1], row[2]) for row in data}
    ends = {row[2]: row[1] for row in good if row[0] & _END}
    last = max((row[1] for row in good), default=0)
    found, owners, still_open = [], set(), 0
    for flags, start, number, kind, place, name, domain in good:
        if not flags & _START:
            continue
        end = ends.get(number)
        still_open += end is None
        process, thread = _owner(kind, place)
        if process >= 0:
            owners.add(process)
        prefix = texts.get(domain, "") if isinstance(domain, int) else ""
        text = texts.get(name, "") if isinstance(name, int) else ""
        full = text if not prefix or text.startswith(f"{prefix}:") else f"{prefix}:{text}"
        owner = prefix or (DOMAIN if text.startswith(f"{DOMAIN}:") else "")
        label = f"{process}/{thread}" if process >= 0 else ""
        stop = last if end is None else max(end, start)
        found.append((full, label, start, stop, owner, payloads.get(number), "", end is None))
    if still_open:
        problems.append(f"{still_open:,} ranges have no end: they are assumed to last until the end of the recording")
    types = {"name": "str", "thread": "str", "start": "int64", "end": "int64", "domain": "str"}
    types |= {"payload": "Int64", "json": "str", "cut": "bool"}
    frame = pd.DataFrame(found, columns=list(types)).astype(types)
    order = np.lexsort((-frame["end"].to_numpy(), frame["start"].to_numpy()))
    return frame.iloc[order].reset_index(drop=True), owners


def _payload(kind: Any, value: Any) -> int | None:
    if kind not in _INTEGERS:
        return None
    if isinstance(value, bytes) and len(value) >= 8:
        (value,) = struct.unpack(_INTEGERS[kind], value[:8])
    return value if isinstance(value, int) and abs(value) < 2**62 else None


def _owner(kind: Any, place: Any) -> tuple[int, int]:
    """Process and thread of a marker; -1 where the record does not say."""
    if kind not in (1, 2) or not isinstance(place, bytes) or len(place) < 8:
        return -1, -1
    process, thread = struct.unpack("<II", place[:8])
    return process, thread if kind == 2 else 0
