"""SQLite exports of Nsight Systems (`nsys export --type=sqlite`), plain or gzip-compressed, and reports.

A report (.nsys-rep) is exported by the nsys on PATH first, see common.nsys. Versions differ in tables and columns; what
one lacks is empty here. The table of the recorded environment variables (TARGET_INFO_SYSTEM_ENV) is never read. Times
are ns since the recording began.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.cupti import CALLS, by_process, finish_ranges, labels, owners, read_calls, read_work
from analysis.readers.packed import read_start
from analysis.readers.sqlite_database import SQLITE_HEADER, Database, is_of_nvprof, open_database, unpacked
from analysis.readers.steps import CAPTURE, DOMAIN
from analysis.timeline import HOST_NS, MISSING, LostKernels, Timeline
from common.errors import InputError
from common.nsys import REPORT_HEADER, exported

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

_GPUS = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")
_HOST_TABLES = ("OSRT_API", "PROFILER_OVERHEAD")
# What nsys says of its own recording that matters: what it lost.
_LOST = re.compile(
    r"not all (nvtx|cuda) events might have been collected|\b(nvtx|cuda)\b.*\b(dropped|lost)\b", re.IGNORECASE
)
# Why it has no work of a GPU; of a recording that has some, this is about other processes.
_NO_WORK = re.compile(
    r"no cuda events (were )?collected|cuda profiling might have not been started( correctly)?|"
    r"\b(gpu|cuda)\b[^:\n]*: insufficient privilege",
    re.IGNORECASE,
)
_NVTX = "NVTX_EVENTS"
_RANGE_TYPES = (59, 60, 70, 71)  # push/pop, start/end; the same two from NVTXT files
_DOMAIN_TYPE = 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_JSON_NUMBER = r"""^(?:\[|\{"[^"]*": ?)?(-?\d{1,15})[\]}]?$"""  # 7, [7], {"any name": 7}
_COLUMNS = {
    **{name: (name, MISSING) for name in ("start", "end", *_PAYLOADS)},
    **{name: (name, -1) for name in ("globalTid", "textId", "jsonTextId")},
    "eventType": ("eventType", 59),  # a table without the column holds ranges alone
    "domainId": ("domainId", 0),
}


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
            work = read_work(database, 0, problems)
            calls = read_calls(database, CALLS, problems)
            host = read_calls(database, _HOST_TABLES, problems, HOST_NS)
            durations = {time for (time,) in database.rows("ANALYSIS_DETAILS", "duration") if time}
            notes: list[str] = []
            ranges = _ranges(database, durations, notes)
            problems += [*_about(database, work, calls), *notes]
            gpus, tables = _gpus(database), ("META_DATA_EXPORT", "EXPORT_META_DATA")
            facts = dict(row for table in tables for row in database.rows(table, "name", "value"))
    source = f"nsys {facts.get('EXPORT_PRODUCT_VERSION', 'of an unknown version')}"
    timelines = by_process(work, calls, host, ranges, source=source, problems=problems, gpus=gpus)
    if not timelines:
        why = "; ".join(problems[:3]) or "no kernel or copy"
        raise InputError(
            "trace-without-work",
            f"{path} has no NVTX ranges, and {why}; record again with `nsys profile --trace=cuda,nvtx`",
        )
    return timelines


def _about(database: Database, work: "pd.DataFrame", calls: "pd.DataFrame") -> list[str]:
    """Return why there is no GPU work, which graphs are one piece, and what nsys lost."""
    texts = [str(database.strings.get(text, text)) for (text,) in database.rows("DIAGNOSTIC_EVENT", "text")]
    notes = _quoted(texts, _LOST)
    reasons = [] if len(work) else _quoted(texts, _NO_WORK)
    if reasons or (not len(work) and any((len(calls), *(database.rows(table, "id") for table in _GPUS)))):
        what = "no kernel or copy was recorded: was CUDA traced (-t cuda,nvtx)?"
        notes += [*reasons, LostKernels(what)]
    if graphs := int((work["kind"] == "graph").sum()):
        what = f"{graphs:,} launches of CUDA graphs were recorded as one piece each, so their kernels are unknown"
        notes.append(LostKernels(f"{what}: record with --cuda-graph-trace=node"))
    return notes


def _quoted(texts: Sequence[str], wanted: re.Pattern[str]) -> list[str]:
    return list(dict.fromkeys(f"nsys says: {match[0]}" for text in texts if (match := wanted.search(text))))


def _gpus(database: Database) -> Callable[[int | None, Sequence[int]], Mapping[str, Any]]:
    """Return what gives devices and sm_counts of a timeline: of what a process used, of all where it used none."""
    rows = database.rows(_GPUS[0], "id", "cuDevice", "name", "smCount")
    listed = {number: (name, size) for number, _, name, size in rows}
    by_device = {number if device is None else device: (name, size) for number, device, name, size in rows}
    # Process by process, where CUDA_VISIBLE_DEVICES renumbers them.
    mapped = database.rows(_GPUS[1], "pid", "cudaId", "gpuId")

    def of(pid: int | None, used: Sequence[int]) -> Mapping[str, Any]:
        gpus = by_device | {device: listed[gpu] for owner, device, gpu in mapped if owner == pid and gpu in listed}
        gpus = {device: gpu for device, gpu in sorted(gpus.items()) if not used or device in used}
        return {
            "devices": {device: name for device, (name, _) in gpus.items() if name},
            "sm_counts": {device: size for device, (_, size) in gpus.items() if size},
        }

    return of


def _ranges(database: Database, recorded_until: set[int], problems: list[str]) -> "pd.DataFrame":
    """Read the ranges of all processes, see finish_ranges."""
    import pandas as pd

    rows = pd.DataFrame(database.integers(_NVTX, _COLUMNS))
    for column, inline in (("text", "text"), ("json", "jsonText")):
        # Texts are in the table, or in the table of texts.
        numbered = pd.Series(labels(lambda number: database.strings.get(number, ""), rows[f"{inline}Id"]), dtype=object)
        written = pd.Series(database.texts(_NVTX, inline), dtype=object)
        rows[column] = written.where(written != "", numbered) if len(written) else numbered
    rows["process"], rows["thread_id"] = owners(rows["globalTid"].to_numpy())
    domains = _domains(rows)
    rows = rows[rows["eventType"].isin(_RANGE_TYPES)]
    keys = rows["process"], rows["domainId"]
    if unnamed := {key for key in zip(*keys, strict=True) if key[1] > 0 and key not in domains}:
        problems.append(f"{len(unnamed)} NVTX domains have no name in the export: their ranges are shown without one")
    domain = labels(lambda *key: domains.get(key, ""), *keys).astype(object)
    return finish_ranges(rows.assign(domain=domain, payload=_payloads(rows)), problems, recorded_until)


def _domains(rows: "pd.DataFrame") -> dict[tuple[int, int], str]:
    """Return names by process and id; ours is known by `bertbench:capture` where its creation was not recorded."""
    keys = ["process", "domainId"]
    created = rows[(rows["eventType"] == _DOMAIN_TYPE) & (rows["text"] != "")].drop_duplicates(keys)
    captured = rows.loc[rows["text"] == CAPTURE, keys].itertuples(index=False, name=None)
    names = zip(created["process"], created["domainId"], created["text"], strict=True)
    return dict.fromkeys(captured, DOMAIN) | {(process, number): text for process, number, text in names}


def _payloads(rows: "pd.DataFrame") -> "pd.Series[int]":
    import pandas as pd

    # One of the columns is set; old versions write 0 into the others.
    values = rows[list(_PAYLOADS)].max(axis=1)
    payloads = values.astype("Int64").mask(values == MISSING)
    extended = rows["json"][payloads.isna() & (rows["json"] != "")]
    return payloads.fillna(pd.to_numeric(extended.str.extract(_JSON_NUMBER, expand=False)).astype("Int64"))
