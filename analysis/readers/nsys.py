"""SQLite exports of Nsight Systems 2020 to 2026 (`nsys export --type=sqlite`), plain or gzip-compressed.

Versions differ in tables and columns; what one lacks is empty here. The table of the recorded environment variables
(TARGET_INFO_SYSTEM_ENV) is never read. Times are ns since the recording began.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.nsys_database import MISSING, Integers, NsysDatabase, distinct_rows, open_export
from analysis.readers.nsys_ranges import CAPTURE, Ranges, read_ranges, take_steps
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

_PROCESS = 1 << 24  # globalPid and globalTid hold the process above these bits, the thread in them

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_COPY_KINDS |= {10: "PtoP", 11: "HtoD (managed)", 12: "DtoH (managed)", 13: "DtoD (managed)"}
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PLACE = {
    "start": MISSING,
    "end": MISSING,
    "globalPid": -1,
    "deviceId": -1,
    "streamId": -1,
    "correlationId": -1,
    "graphNodeId": 0,
}
_NAMES = ("demangledName", "shortName", "mangledName")
_WORK = {
    "kernel": ("CUPTI_ACTIVITY_KIND_KERNEL", {**dict.fromkeys(_NAMES, -1), **dict.fromkeys(_SIZES, 0)}),
    "memcpy": ("CUPTI_ACTIVITY_KIND_MEMCPY", {"copyKind": 0, "bytes": 0}),
    "memset": ("CUPTI_ACTIVITY_KIND_MEMSET", {"bytes": 0}),
    "graph": ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {"graphId": -1}),
}
# Of what nsys says about its own recording, only this: other messages can quote the command line.
_LOST = re.compile(
    r"not all (nvtx|cuda) events might have been collected|\b(nvtx|cuda)\b.*\b(dropped|lost)\b", re.IGNORECASE
)
_UNNAMED = "(name not recorded)"


def read(path: Path) -> list[Timeline]:
    """Read an export: one timeline per process that has ranges, kernels or copies, by rank, then by process id.

    The rank is the payload of the range `bertbench:capture`. Tables hold more than Timeline says. kernels: short_name,
    correlation_id (of the launching call in its process, -1 unknown), bytes (of copies), graph_node (0: not from a
    CUDA graph), grid_x, grid_y, grid_z, block_x, block_y, block_z (0 unknown); ranges: see nsys_ranges; steps: thread.

    Raises:
        InputError: not an export of nsys, or one that is cut short; the message says what it seems to be.
    """
    with open_export(path) as database:
        work = {kind: database.integers(table, {**_PLACE, **own}) for kind, (table, own) in _WORK.items()}
        ranges = read_ranges(database, _recorded_until(database))
        names = database.strings(np.unique(np.concatenate([np.unique(work["kernel"][name]) for name in _NAMES])))
        source = _source(database)
        gpus = _Gpus(database)
        problems = [*_about(database, work), *database.problems, *ranges.problems]
    frames = [
        _work_frame(kind, work.pop(kind), names, problems)
        for kind in list(_WORK)
        if kind == "kernel" or len(work[kind]["start"])
    ]
    return _by_process(frames, ranges, source, gpus, problems)


def _by_process(
    frames: Sequence["pd.DataFrame"], ranges: Ranges, source: str, gpus: "_Gpus", problems: list[str]
) -> list[Timeline]:
    import pandas as pd

    kernels = pd.concat(frames, ignore_index=True).sort_values("start", kind="stable", ignore_index=True)
    _adopt(kernels, ranges.frame, problems)
    timelines = []
    for key in sorted({*kernels["process"].unique().tolist(), *ranges.frame["process"].unique().tolist()}):
        own = kernels[kernels["process"] == key].drop(columns="process").reset_index(drop=True)
        marked = ranges.frame[ranges.frame["process"] == key].drop(columns="process").reset_index(drop=True)
        steps, others, cut = take_steps(marked)
        said = [*problems, f"steps cut by the end of the recording were left out: {cut}"] if cut else problems
        pid = int(key) % _PROCESS if key >= 0 else None
        timelines.append(
            Timeline(
                rank=_rank(others),
                steps=steps,
                operators=_no_operators(),
                kernels=own,
                ranges=others,
                source=source,
                process=pid,
                problems=tuple(dict.fromkeys(said)),
                devices=gpus.of(pid, own["device"].unique().tolist()),
            )
        )
    timelines = _with_distinct_ranks(timelines)
    return sorted(timelines, key=lambda found: (found.rank is None, found.rank or 0, found.process or 0))


def _adopt(kernels: "pd.DataFrame", ranges: "pd.DataFrame", problems: list[str]) -> None:
    """Give work or ranges whose process was not recorded to the only process there is."""
    for frame, others in ((kernels, ranges), (ranges, kernels)):
        lost = frame["process"] < 0
        if not lost.any():
            continue
        known = set(frame["process"][~lost]) | set(others["process"][others["process"] >= 0])
        if len(known) == 1:
            frame.loc[lost, "process"] = known.pop()
        elif known:
            problems.append(f"{int(lost.sum()):,} records do not say their process: they are a timeline of their own")


def _rank(ranges: "pd.DataFrame") -> int | None:
    payloads = ranges.loc[(ranges["name"] == CAPTURE) & ranges["payload"].notna(), "payload"]
    return int(payloads.iloc[0]) if len(payloads) else None


def _with_distinct_ranks(timelines: list[Timeline]) -> list[Timeline]:
    """Ranks that two processes claim are unknown: old versions write 0 for a payload that they do not have."""
    ranks = [found.rank for found in timelines]
    checked = []
    for found in timelines:
        if found.rank is not None and ranks.count(found.rank) > 1:
            said = f"several processes say that they are rank {found.rank}: their ranks are not known"
            found = dataclasses.replace(found, rank=None, problems=(*found.problems, said))
        checked.append(found)
    return checked


def _no_operators() -> "pd.DataFrame":
    """The empty table: nsys does not record operators."""
    import pandas as pd

    types = {"name": "str", "thread": "str", "start": "int64", "end": "int64", "self_ns": "int64", "outermost": "bool"}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in types.items()})


def _work_frame(
    kind: str, columns: Mapping[str, Integers], names: Mapping[int, str], problems: list[str]
) -> "pd.DataFrame":
    import pandas as pd

    good = (columns["start"] != MISSING) & (columns["end"] >= columns["start"])
    if not good.all():
        problems.append(f"{int((~good).sum()):,} records of kind {kind} have no start or end and were left out")
        columns = {name: values[good] for name, values in columns.items()}
    rows = len(columns["start"])
    name, short = _names(kind, columns, names)
    process = columns["globalPid"]
    zeros = np.zeros(rows, dtype=np.int64)
    return pd.DataFrame(
        {
            "name": name,
            "kind": np.full(rows, kind, dtype=object),
            "device": columns["deviceId"],
            "stream": columns["streamId"],
            "start": columns["start"],
            "end": columns["end"],
            "short_name": short,
            "correlation_id": columns["correlationId"],
            "bytes": columns.get("bytes", zeros),
            "graph_node": columns["graphNodeId"],
            **{
                f"{size[:-1]}_{size[-1].lower()}": columns.get(size, zeros).clip(0, 2**31 - 1).astype(np.int32)
                for size in _SIZES
            },
            "process": np.where(process < 0, -1, process // _PROCESS),
        }
    )


def _names(kind: str, columns: Mapping[str, Integers], names: Mapping[int, str]) -> tuple[Any, Any]:
    """Full and short name of each record; equal ones share one string."""
    if kind == "kernel":
        distinct, place = distinct_rows(*(columns[name] for name in _NAMES))
        found = [[names.get(int(value)) for value in row] for row in distinct]
        full = [demangled or mangled or short or _UNNAMED for demangled, short, mangled in found]
        brief = [short or demangled or mangled or _UNNAMED for demangled, short, mangled in found]
    else:
        number = columns.get("copyKind", columns.get("graphId", columns["start"] * 0))
        distinct, place = distinct_rows(number)
        full = [_label(kind, int(value)) for (value,) in distinct]
        brief = full
    return np.array(full, dtype=object)[place], np.array(brief, dtype=object)[place]


def _label(kind: str, number: int) -> str:
    if kind == "memcpy":
        return f"Memcpy {_COPY_KINDS.get(number, f'of kind {number}')}"
    if kind == "graph":
        return "CUDA graph" if number < 0 else f"CUDA graph {number}"
    return "Memset"


def _recorded_until(database: NsysDatabase) -> set[int]:
    return {int(str(row[0])) for row in database.rows("ANALYSIS_DETAILS", ("duration",)) if row[0]}


def _source(database: NsysDatabase) -> str:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for name, value in database.rows(table, ("name", "value")):
            if name == "EXPORT_PRODUCT_VERSION" and value:
                return f"nsys {value}"
    return "nsys, version not recorded"


def _about(database: NsysDatabase, work: Mapping[str, Mapping[str, Integers]]) -> list[str]:
    """What the recording itself lacks."""
    said = []
    if not any(len(columns["start"]) for columns in work.values()):
        tables = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_DEVICE", "CUPTI_ACTIVITY_KIND_RUNTIME")
        if any(database.has_rows(table) for table in tables):
            said.append("no kernel or copy was recorded on a machine with a GPU: was CUDA traced (-t cuda,nvtx)?")
    graphs = len(work["graph"]["start"])
    if graphs:
        said.append(
            f"{graphs:,} launches of CUDA graphs were recorded as one piece each, their kernels are not known: "
            "record with --cuda-graph-trace=node"
        )
    for (text,) in database.rows("DIAGNOSTIC_EVENT", ("text",)):
        if _LOST.search(str(text)):
            said.append(f"nsys says: {str(text).splitlines()[0]}")
    return said


class _Gpus:
    """Names of GPUs, from whichever of three tables has them."""

    def __init__(self, database: NsysDatabase) -> None:
        listed = database.rows("TARGET_INFO_GPU", ("id", "cuDevice", "name"))
        older = database.rows("TARGET_INFO_CUDA_GPU", ("deviceId", "id", "cuDevice", "name"))
        self._by_gpu = {gpu: str(name) for gpu, _, name in listed if name}
        self._by_device: dict[Any, str] = {}
        for *numbers, name in [*older, *((cu, gpu, None, name) for gpu, cu, name in listed)]:
            number = next((value for value in numbers if value is not None), None)
            if name and number is not None:
                self._by_device.setdefault(number, str(name))
        # Process by process, where CUDA_VISIBLE_DEVICES renumbers them.
        self._mapped = database.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId", "name"))

    def of(self, pid: int | None, used: Sequence[int]) -> dict[int, str]:
        """Return the names of the devices that a process used, of all where it used none."""
        found: dict[Any, str] = dict(self._by_device)
        for owner, device, gpu, name in self._mapped:
            if owner in (None, 0, pid) and (known := name or self._by_gpu.get(gpu)):
                found[device] = str(known)
        return {int(device): name for device, name in found.items() if not used or device in used}
