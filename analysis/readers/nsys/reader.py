"""SQLite exports of Nsight Systems (`nsys export --type=sqlite`), plain or gzip-compressed, and reports.

A report (.nsys-rep) is exported by the nsys on PATH first, see nsys.report. Versions differ in tables and columns; what
one lacks is empty here. The table of the recorded environment variables (TARGET_INFO_SYSTEM_ENV) is never read. Times
are ns since the recording began.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.cupti import CALLS, by_process, read_calls, read_work
from analysis.readers.nsys.ranges import read_ranges
from analysis.readers.nsys.report import REPORT_HEADER, exported
from analysis.readers.packed import read_start
from analysis.readers.sqlite_database import SQLITE_HEADER, Database, is_of_nvprof, open_database, unpacked
from analysis.timeline import HOST_NS, LostKernels, Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_GPUS = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")
_HOST_TABLES = ("OSRT_API", "PROFILER_OVERHEAD")
# What nsys says of its own recording that matters: what it lost.
_LOST = re.compile(
    r"not all (nvtx|cuda) events might have been collected|\b(nvtx|cuda)\b.*\b(dropped|lost)\b|"
    r"no cuda events (were )?collected|cuda profiling might have not been started",
    re.IGNORECASE,
)


def recognises(head: "Head") -> bool:
    """Return whether a file is a report of nsys, or an SQLite database that is not nvprof's."""
    return head.data.startswith(REPORT_HEADER) or (head.data.startswith(SQLITE_HEADER) and not is_of_nvprof(head))


def read(path: Path) -> list[Timeline]:
    """Read an export or a report: one timeline per process with ranges, kernels or copies, by rank, then by process id.

    The rank is the payload of the range `bertbench:capture`. Tables hold more than Timeline says: see cupti.read_work
    and cupti.finish_ranges; steps have their thread. Columns of texts are categories.

    Raises:
        InputError: not an export of nsys, one that is cut short, or one that holds none of these; the message says why
            nothing was recorded, in the words of nsys.
        MissingToolError: a report, and nsys is not on PATH.
        StorageError: a report for whose export there is no space.
    """
    problems: list[str] = []
    with ExitStack() as stack:
        plain = stack.enter_context(unpacked(path))
        if read_start(plain, len(REPORT_HEADER)) == REPORT_HEADER:
            plain = stack.enter_context(exported(plain, path))
        with open_database(plain, path) as database:
            if not any(name.startswith(("CUPTI_", "TARGET_INFO_", "NVTX_")) for name in database.tables):
                raise InputError(
                    "file-format",
                    f"{path} is an SQLite database without any table of nsys: give the output of "
                    "`nsys export --type=sqlite`",
                )
            work = read_work(database, 0, problems)
            calls = read_calls(database, CALLS, problems)
            host = read_calls(database, _HOST_TABLES, problems, HOST_NS)
            durations = {time for (time,) in database.rows("ANALYSIS_DETAILS", "duration") if time}
            notes: list[str] = []
            ranges = read_ranges(database, durations, notes)
            problems += [*_about(database, work), *notes]
            source, gpus = _source(database), _gpus(database)
    timelines = by_process(work, calls, ranges, source=source, problems=problems, gpus=gpus, host=host)
    if not timelines:
        why = "; ".join(problems[:3]) or "no kernel or copy"
        raise InputError(
            "trace-without-work",
            f"{path} has no NVTX ranges, and {why}; record again with `nsys profile --trace=cuda,nvtx`",
        )
    return timelines


def _source(database: Database) -> str:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for name, value in database.rows(table, "name", "value"):
            if name == "EXPORT_PRODUCT_VERSION" and value:
                return f"nsys {value}"
    return "nsys, version not recorded"


def _about(database: Database, work: "pd.DataFrame") -> list[str]:
    """Return why there is no GPU work, which graphs are one piece, and what nsys lost."""
    texts = [str(database.strings.get(text, text)) for (text,) in database.rows("DIAGNOSTIC_EVENT", "text")]
    notes = [f"nsys says: {match[0]}" for text in texts if (match := _LOST.search(text))]
    if not len(work) and (notes or any(database.has_rows(table) for table in (*_GPUS, *CALLS))):
        notes.append(LostKernels("no kernel or copy was recorded of a GPU program: was CUDA traced (-t cuda,nvtx)?"))
    if graphs := int((work["kind"] == "graph").sum()):
        what = f"{graphs:,} launches of CUDA graphs were recorded as one piece each, so their kernels are unknown"
        notes.append(LostKernels(f"{what}: record with --cuda-graph-trace=node"))
    return notes


def _gpus(database: Database) -> Callable[[int | None, Sequence[int]], Mapping[str, Mapping[int, Any]]]:
    """Return what gives devices and sm_counts of a timeline: of what a process used, of all where it used none."""
    rows = database.rows(_GPUS[0], "id", "cuDevice", "name", "smCount")
    listed = {number: (name, size) for number, _, name, size in rows}
    by_device = {number if device is None else device: (name, size) for number, device, name, size in rows}
    # Process by process, where CUDA_VISIBLE_DEVICES renumbers them.
    mapped = database.rows(_GPUS[1], "pid", "cudaId", "gpuId")

    def of(pid: int | None, used: Sequence[int]) -> Mapping[str, Mapping[int, Any]]:
        gpus = by_device | {device: listed[gpu] for owner, device, gpu in mapped if owner == pid and gpu in listed}
        gpus = {device: gpu for device, gpu in sorted(gpus.items()) if not used or device in used}
        return {
            "devices": {device: name for device, (name, _) in gpus.items() if name},
            "sm_counts": {device: size for device, (_, size) in gpus.items() if size},
        }

    return of
