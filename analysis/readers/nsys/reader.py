"""SQLite exports of Nsight Systems 2020 to 2026 (`nsys export --type=sqlite`), plain or gzip-compressed, and reports.

A report (.nsys-rep) is exported by the nsys on PATH first, see nsys.report.

Versions differ in tables and columns; what one lacks is empty here. The table of the recorded environment variables
(TARGET_INFO_SYSTEM_ENV) is never read. Times are ns since the recording began.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.assembly import assembled
from analysis.readers.cupti import PROCESS, UNNAMED, Ids, of_process, read_api, read_work
from analysis.readers.nsys.ranges import Ranges, read_ranges
from analysis.readers.nsys.report import exported, is_report
from analysis.readers.sqlite_database import (
    REPORT_HEADER,
    SQLITE_HEADER,
    Database,
    check_header,
    is_of_nvprof,
    open_database,
    unpacked,
)
from analysis.timeline import HOST_NS, Timeline
from common.errors import InputError
from common.redact import redact_text

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

# Of nsys' ENUM_CUDA_MEM_KIND; the last is of an unknown kind.
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "")
_OWN_TABLES = ("NVTX_EVENTS", "OSRT_API", "ANALYSIS_DETAILS", "META_DATA_EXPORT", "EXPORT_META_DATA")


@contextmanager
def open_export(path: Path) -> Iterator[Database]:
    """Open an export, plain or gzip-compressed, for reading alone; a report is exported first."""
    with unpacked(path) as plain:
        if is_report(plain):
            plain = exported(plain, path)
        else:
            check_header(path, plain, "`nsys export --type=sqlite`")
        with open_database(plain, path) as database:
            _check_tables(path, database)
            yield database


def _check_tables(path: Path, database: Database) -> None:
    if "StringTable" in database.tables and "StringIds" not in database.tables:
        raise InputError("file-format", f"{path} is an nvprof database, not an nsys export: use the reader nvvp")
    known = [name for name in database.tables if name in _OWN_TABLES or name.startswith(("CUPTI_", "TARGET_INFO_"))]
    if not known:
        raise InputError(
            "file-format",
            f"{path} is an SQLite database without any table of nsys (NVTX_EVENTS, CUPTI_ACTIVITY_KIND_...): "
            "give the output of `nsys export --type=sqlite`",
        )


FORM = "timelines"

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_WORK_TABLES = {
    f"{_PREFIX}KERNEL": "kernel",
    f"{_PREFIX}MEMCPY": "memcpy",
    f"{_PREFIX}MEMSET": "memset",
    f"{_PREFIX}GRAPH_TRACE": "graph",
}
_KERNEL_NAMES = ("demangledName", "mangledName", "shortName")
_API_TABLES = (f"{_PREFIX}RUNTIME", f"{_PREFIX}DRIVER")
_OVERHEAD = "PROFILER_OVERHEAD"
_HOST_TABLES = ("OSRT_API", _OVERHEAD)
_API_VERSION = re.compile(r"_v\d{4,}$")

# Of what nsys says about its own recording, only this where it has GPU work.
_LOST = re.compile(
    r"not all (nvtx|cuda) events might have been collected|\b(nvtx|cuda)\b.*\b(dropped|lost)\b", re.IGNORECASE
)
_OF_GPU = re.compile(r"\b(cuda|cupti|gpus?|drivers?|nvml|permissions?|privileges?|administrators?)\b", re.IGNORECASE)
# These quote the command line or the environment of the program.
_QUOTES = re.compile(r"\b(launch\w*|command|arguments?|argv|environment|env)\b", re.IGNORECASE)
# ENUM_DIAGNOSTIC_SEVERITY_LEVEL, the same in every version so far: 1 info, 2 warning, 3 error, 4 verbose.
_SEVERITIES = {3: "error", 2: "warning"}
_LONGEST_MESSAGE = 200
_SM_COLUMNS = ("smCount", "numMultiprocessors", "multiprocessorCount")


def recognises(head: "Head") -> bool:
    """Return whether a file is a report of nsys, or an SQLite database, nvprof's apart.

    `read` says what is wrong with a database of others.
    """
    return head.data.startswith(REPORT_HEADER) or (head.data.startswith(SQLITE_HEADER) and not is_of_nvprof(head))


def read(path: Path) -> list[Timeline]:
    """Read an export or a report: one timeline per process with ranges, kernels or copies, by rank, then by process id.

    The rank is the payload of the range `bertbench:capture`. Tables hold more than Timeline says. kernels:
    correlation_id (of the launching call in its process, -1 unknown), bytes (of copies), graph_node (0: not from a
    CUDA graph), grid_x, grid_y, grid_z, block_x, block_y, block_z (0 unknown); ranges: see nsys.ranges; steps: thread.
    Columns of texts are categories.

    Raises:
        InputError: not an export of nsys, one that is cut short, or one that holds none of these; the message says what
            it seems to be, or why nothing was recorded, in the words of nsys.
        MissingToolError: a report, and nsys is not on PATH.
        StorageError: a report whose export cannot be kept.
    """
    problems: list[str] = []
    with open_export(path) as database:
        ranges = read_ranges(database, _recorded_until(database))
        work = read_work(
            database, _WORK_TABLES, _KERNEL_NAMES, lambda ids: _kernel_names(database, ids), _MEMORY_KINDS, problems
        )
        told_by = ("globalTid", "nameId")
        api = read_api(database, _API_TABLES, told_by, lambda table, ids: _callers(database, table, ids), problems)
        host = read_api(
            database, _HOST_TABLES, told_by, lambda table, ids: _callers(database, table, ids), problems, HOST_NS
        )
        source = _source(database)
        gpus = _Gpus(database)
        problems += [*_about(database, work), *ranges.problems]
    timelines = _by_process(work, api, host, ranges, source, gpus, problems)
    if not timelines:
        why = "; ".join(problems[:3]) or "no kernel or copy"
        raise InputError(
            "trace-without-work",
            f"{path} has no NVTX ranges, and {why}; record again with `nsys profile --trace=cuda,nvtx`",
        )
    return timelines


def _kernel_names(database: Database, ids: Ids) -> list[str]:
    names = database.strings()
    rows = zip(*ids, strict=True)
    return [next((name for number in row if (name := names.get(number))), UNNAMED) for row in rows]


def _callers(database: Database, table: str, ids: Ids) -> tuple[list[str], list[str], list[int]]:
    """Name (without nsys's suffix _v7000), thread and process of each call, by the numbers of thread and name."""
    threads, numbers = ids
    names = database.strings()
    texts = [_API_VERSION.sub("", names.get(number, UNNAMED)) for number in numbers]
    if table == _OVERHEAD:
        texts = [text if text.startswith("dlopen") else f"profiler: {text}" for text in texts]
    labels = [f"{number // PROCESS % PROCESS}/{number % PROCESS}" if number >= 0 else "" for number in threads]
    return texts, labels, [number // PROCESS if number >= 0 else -1 for number in threads]


def _by_process(
    work: "pd.DataFrame",
    api: "pd.DataFrame",
    host: "pd.DataFrame",
    ranges: Ranges,
    source: str,
    gpus: "_Gpus",
    problems: list[str],
) -> list[Timeline]:
    import pandas as pd

    marks = ranges.frame["process"].to_numpy(dtype=np.int64)
    work["process"], marks, api["process"] = _adopt([work["process"], marks, api["process"]], problems)
    timelines = []
    for key in sorted({*work["process"].unique().tolist(), *pd.unique(marks).tolist()}):
        kernels, calls = of_process(work, key), of_process(api, key)
        marked = ranges.frame[marks == key].drop(columns="process").reset_index(drop=True)
        pid = int(key) % PROCESS if key >= 0 else None
        used = kernels["device"].unique().tolist()
        timelines.append(
            assembled(
                kernels,
                calls,
                marked,
                source=source,
                problems=problems,
                host=of_process(host, key).drop(columns="correlation_id"),
                process=pid,
                devices={device: str(name) for device, name in gpus.of(pid, used, "name").items()},
                sm_counts={device: int(count) for device, count in gpus.of(pid, used, "sm_count").items()},
            )
        )
    timelines = _with_distinct_ranks(timelines)
    return sorted(timelines, key=lambda found: (found.rank is None, found.rank or 0, found.process or 0))


def _adopt(processes: Sequence[Any], problems: list[str]) -> list[Any]:
    import pandas as pd

    everyone = {owner for process in processes for owner in pd.unique(process).tolist() if owner >= 0}
    lost = sum(int((process < 0).sum()) for process in processes)
    if not lost or not everyone:
        return list(processes)
    if len(everyone) > 1:
        problems.append(f"{lost:,} records do not name their process: they form a separate timeline")
        return list(processes)
    (only,) = everyone
    return [np.full(len(process), only, dtype=np.int64) for process in processes]


def _with_distinct_ranks(timelines: list[Timeline]) -> list[Timeline]:
    """Ranks that two processes claim are unknown: old versions write 0 for a payload that they do not have."""
    ranks = [found.rank for found in timelines]
    checked = []
    for found in timelines:
        if found.rank is not None and ranks.count(found.rank) > 1:
            said = f"several processes claim rank {found.rank}: their ranks are unknown"
            found = dataclasses.replace(found, rank=None, problems=(*found.problems, said))
        checked.append(found)
    return checked


def _recorded_until(database: Database) -> set[int]:
    durations = (row[0] for row in database.rows("ANALYSIS_DETAILS", ("duration",)))
    return {value for value in durations if isinstance(value, int) and value}


def _source(database: Database) -> str:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for name, value in database.rows(table, ("name", "value")):
            if name == "EXPORT_PRODUCT_VERSION" and value:
                return f"nsys {str(value)[:80]}"
    return "nsys, version not recorded"


def _about(database: Database, work: "pd.DataFrame") -> list[str]:
    notes = []
    messages = _messages(database)
    if not any(database.has_rows(table) for table in _WORK_TABLES):
        tables = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_DEVICE", *_API_TABLES)
        has_gpu = any(database.has_rows(table) for table in tables)
        if said := _first_message(messages, of_gpu_alone=not has_gpu):
            notes.append(f"no kernel or copy was recorded{' on a machine with a GPU' * has_gpu}: nsys says: {said}")
        elif has_gpu:
            notes.append("no kernel or copy was recorded on a machine with a GPU: was CUDA traced (-t cuda,nvtx)?")
    graphs = int((work["kind"] == "graph").sum())
    if graphs:
        notes.append(
            f"{graphs:,} launches of CUDA graphs were recorded as one piece each, so their kernels are unknown: "
            "record with --cuda-graph-trace=node"
        )
    return notes + [f"nsys says: {text}" for _, text in messages if _LOST.search(text)]


def _first_message(messages: Sequence[tuple[int, str]], *, of_gpu_alone: bool) -> str:
    """Return why an export holds no GPU work, in nsys's own words: its most severe message about the GPU; "" for none.

    Messages that quote a command line or the environment are left out.

    Args:
        messages: severity and text of each.
        of_gpu_alone: skip messages that do not mention the GPU; otherwise one is returned if none does.
    """
    order = list(_SEVERITIES)
    known = [(severity, text) for severity, text in messages if severity in order and not _QUOTES.search(text)]
    known.sort(key=lambda message: order.index(message[0]))
    named = [message for message in known if _OF_GPU.search(message[1])] or ([] if of_gpu_alone else known)
    return (
        f"{_SEVERITIES[named[0][0]]}: {redact_text(named[0][1])[:_LONGEST_MESSAGE].removesuffix('.')}" if named else ""
    )


def _messages(database: Database) -> list[tuple[int, str]]:
    """Severity (-1: not recorded) and first line of each message; the text may be the number of one in StringIds."""
    rows = database.rows("DIAGNOSTIC_EVENT", ("severity", "text", "textId"))
    names = database.strings()
    found = []
    for severity, *values in rows:
        texts = (names.get(value, "") if isinstance(value, int) else value for value in values)
        text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
        if text:
            found.append((severity if isinstance(severity, int) else -1, text[:1000].strip().splitlines()[0]))
    return found


class _Gpus:
    """Names and sizes of GPUs, from whichever of three tables has them."""

    def __init__(self, database: Database) -> None:
        listed = [_Gpu(*row) for row in _gpu_rows(database, "TARGET_INFO_GPU", ("id", "cuDevice"))]
        older = [_Gpu(*row) for row in _gpu_rows(database, "TARGET_INFO_CUDA_GPU", ("deviceId", "id", "cuDevice"))]
        self._by_gpu = {gpu.numbers[0]: gpu for gpu in listed}
        self._by_device: dict[int, _Gpu] = {}
        for gpu in [*older, *(dataclasses.replace(gpu, numbers=gpu.numbers[::-1]) for gpu in listed)]:
            number = next((value for value in gpu.numbers if isinstance(value, int)), None)
            if number is not None and gpu.name:
                self._by_device.setdefault(number, gpu)
        # Process by process, where CUDA_VISIBLE_DEVICES renumbers them.
        self._mapped = database.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId", "name"))

    def of(self, pid: int | None, used: Sequence[int], what: str) -> dict[int, Any]:
        """Return name or sm_count of the devices that a process used, of all where it used none."""
        found = {device: getattr(gpu, what) for device, gpu in self._by_device.items()}
        for owner, device, number, name in self._mapped:
            if owner in (None, 0, pid) and isinstance(device, int):
                gpu = self._by_gpu.get(number)
                known = (name if what == "name" else None) or (getattr(gpu, what) if gpu else None)
                if known:
                    found[device] = known
        return {device: value for device, value in found.items() if value and (not used or device in used)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Gpu:
    numbers: tuple[Any, ...]
    name: Any
    sm_count: int | None


def _gpu_rows(database: Database, table: str, ids: tuple[str, ...]) -> list[tuple[tuple[Any, ...], Any, int | None]]:
    rows = database.rows(table, (*ids, "name", *_SM_COLUMNS))
    found = []
    for row in rows:
        counts = [value for value in row[len(ids) + 1 :] if isinstance(value, int) and 0 < value < 2**20]
        found.append((row[: len(ids)], row[len(ids)], counts[0] if counts else None))
    return found
