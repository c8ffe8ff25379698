"""SQLite exports of Nsight Systems (`nsys export --type=sqlite`), plain or gzip-compressed, and reports.

A report (.nsys-rep) is exported by the nsys on PATH first, see nsys.report. Versions differ in tables and columns; what
one lacks is empty here. The table of the recorded environment variables (TARGET_INFO_SYSTEM_ENV) is never read. Times
are ns since the recording began.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.cupti import CALLS, WORK, by_process, read_calls, read_work
from analysis.readers.nsys.ranges import read_ranges
from analysis.readers.nsys.report import REPORT_HEADER, exported, is_report
from analysis.readers.sqlite_database import SQLITE_HEADER, Database, is_of_nvprof, open_database, unpacked
from analysis.timeline import HOST_NS, LostKernels, Timeline
from common.errors import InputError
from common.redact import redact_text

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_GPUS = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")
_HOST_TABLES = ("OSRT_API", "PROFILER_OVERHEAD")
# What nsys says about its own recording: what it lost, and why there is no GPU work.
_LOST = re.compile(
    r"not all (nvtx|cuda) events might have been collected|\b(nvtx|cuda)\b.*\b(dropped|lost)\b", re.IGNORECASE
)
_OF_GPU = re.compile(r"\b(cuda|cupti|gpus?|drivers?|nvml)\b", re.IGNORECASE)
# These quote the command line or the environment of the program.
_QUOTES = re.compile(r"\b(launch\w*|command|arguments?|argv|environment|env)\b", re.IGNORECASE)
_SEVERITIES = {3: "error", 2: "warning"}  # of ENUM_DIAGNOSTIC_SEVERITY_LEVEL


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
        StorageError: a report whose export cannot be kept.
    """
    problems: list[str] = []
    with unpacked(path) as plain:
        plain = exported(plain, path) if is_report(plain) else plain
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
            source, gpus = _source(database), _Gpus(database)
    timelines = by_process(work, calls, ranges, source=source, problems=problems, gpus=gpus.of, host=host)
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
    messages = []
    for severity, text in database.rows("DIAGNOSTIC_EVENT", "severity", "text"):
        first, *_ = str(database.strings.get(text, text) or "").strip().splitlines() or [""]
        messages.append((severity, first))
    notes = []
    if not any(database.has_rows(table) for table in WORK):
        has_gpu = any(database.has_rows(table) for table in (*_GPUS, *CALLS))
        reasons = [
            f"{name}: {redact_text(text).removesuffix('.')}"
            for severity, name in _SEVERITIES.items()
            for number, text in messages
            if number == severity and _OF_GPU.search(text) and not _QUOTES.search(text)
        ]
        if reasons:
            where = " on a machine with a GPU" if has_gpu else ""
            notes.append(LostKernels(f"no kernel or copy was recorded{where}: nsys says: {reasons[0][:200]}"))
        elif has_gpu:
            what = "no kernel or copy was recorded on a machine with a GPU: was CUDA traced (-t cuda,nvtx)?"
            notes.append(LostKernels(what))
    if graphs := int((work["kind"] == "graph").sum()):
        what = f"{graphs:,} launches of CUDA graphs were recorded as one piece each, so their kernels are unknown"
        notes.append(LostKernels(f"{what}: record with --cuda-graph-trace=node"))
    return notes + [f"nsys says: {text}" for _, text in messages if _LOST.search(text)]


class _Gpus:
    """Names and sizes of GPUs by CUDA's device number."""

    def __init__(self, database: Database) -> None:
        rows = database.rows(_GPUS[0], "id", "cuDevice", "name", "smCount")
        self._listed = {number: (name, size) for number, _, name, size in rows}
        self._by_device = {number if device is None else device: (name, size) for number, device, name, size in rows}
        # Process by process, where CUDA_VISIBLE_DEVICES renumbers them.
        self._mapped = database.rows(_GPUS[1], "pid", "cudaId", "gpuId")

    def of(self, pid: int | None, used: Sequence[int]) -> Mapping[str, Mapping[int, Any]]:
        """Return devices and sm_counts of a timeline: of what a process used, of all where it used none."""
        gpus = dict(self._by_device)
        gpus |= {
            device: self._listed[gpu] for owner, device, gpu in self._mapped if owner == pid and gpu in self._listed
        }
        gpus = {device: gpu for device, gpu in sorted(gpus.items()) if not used or device in used}
        return {
            "devices": {device: name for device, (name, _) in gpus.items() if name},
            "sm_counts": {device: size for device, (_, size) in gpus.items() if size},
        }
