"""`.nvvp` files that nvprof wrote (`nvprof --export-profile`): SQLite tables of CUPTI's activity records.

Times are ns. Kernels have the compiler's names, calls their number in CUPTI. NVTX ranges are pairs of markers with one
id. Source of fields and numbers: CUPTI's activity API (CUpti_ActivityKernel4, ...Marker2), cupti_runtime_cbid.h and
cupti_driver_cbid.h.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.readers.cupti import CALLS, PREFIX, by_process, finish_ranges, read_calls, read_work
from analysis.readers.sqlite_database import SQLITE_HEADER, Database, is_of_nvprof, open_database, unpacked
from analysis.readers.steps import DOMAIN
from analysis.timeline import MISSING, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_START, _END = 2, 4  # flags of a marker
_INTEGERS = {1: "<Q", 4: "<q"}  # kinds of a payload that are whole numbers


def recognises(head: "Head") -> bool:
    """Return whether a file is nvprof's database."""
    return head.data.startswith(SQLITE_HEADER) and is_of_nvprof(head)


def read(path: Path) -> list[Timeline]:
    """Read a file: the timeline of the process that was profiled, in a list; [] where nothing was recorded."""
    problems: list[str] = []
    with unpacked(path) as plain, open_database(plain, path) as database:
        work, calls = read_work(database, 1, problems), read_calls(database, CALLS, problems)
        ranges = _ranges(database, problems)
        rows = database.rows(f"{PREFIX}DEVICE", "id", "name", "numMultiprocessors")
        gpus = {
            "devices": {number: database.strings[name] for number, name, _ in rows if name in database.strings},
            "sm_counts": {number: size for number, _, size in rows if size},
        }
    return by_process(work, calls, calls[:0], ranges, source="nvprof", problems=problems, gpus=lambda _pid, _used: gpus)


def _ranges(database: Database, problems: list[str]) -> "pd.DataFrame":
    import pandas as pd

    strings = database.strings
    data = database.rows(f"{PREFIX}MARKER_DATA", "id", "payloadKind", "payload")
    payloads = {number: struct.unpack(_INTEGERS[kind], value)[0] for number, kind, value in data if kind in _INTEGERS}
    columns = ("flags", "timestamp", "id", "objectKind", "objectId", "name", "domain")
    markers = database.rows(f"{PREFIX}MARKER", *columns)
    ends = {number: time for flags, time, number, *_ in markers if flags & _END}
    rows = []
    for flags, start, number, kind, place, name, domain in markers:
        if flags & _START:
            text = strings.get(name, "")
            # A kind of object is a process (1) or a thread of one (2).
            process, thread = struct.unpack("<II", place[:8]) if kind in (1, 2) else (-1, 0)
            owner = strings.get(domain) or (DOMAIN if text.startswith(f"{DOMAIN}:") else "")
            end = ends.get(number, MISSING)
            rows.append((text, owner, process, thread if kind == 2 else 0, start, end, payloads.get(number), ""))
    types = {"text": "object", "domain": "object", "process": "int64", "thread_id": "int64", "start": "int64"}
    types |= {"end": "int64", "payload": "Int64", "json": "object"}
    return finish_ranges(pd.DataFrame(rows, columns=list(types)).astype(types), problems)
