"""Traces that `rocprofv3 --output-format json` wrote: GPU work, calls of HIP or HSA, ROCTX ranges and calls of RCCL.

Source of the names: ROCm/rocprofiler-sdk, source/lib/output/generateJSON.cpp and
source/include/rocprofiler-sdk/cxx/serialization.hpp. The command line and configuration in the file are never read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from analysis.readers.assembly import assembled
from analysis.readers.columns import require_memory
from analysis.readers.kineto.events import loose_json
from analysis.readers.packed import unpacked_stream
from analysis.timeline import API_COLUMNS, KERNEL_COLUMNS, SPAN_COLUMNS, Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

FORM = "timelines"

SOURCE = "rocprofv3"
MOST_BYTES = 4 << 30
"""Unpacked size of a file that is read: it is held in memory as a whole."""
_BLOCK_BYTES = 1 << 24
_RECORDS = 2  # bytes of memory that records take per byte of JSON, measured
_TOOL = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_RANK = re.compile(r"rank[-_]?(\d{1,9})(?!\d)")
_GPU = 2
_MOST = 2**62
_DIRECTIONS = {"HOST": "H", "DEVICE": "D"}
_RANGE = re.compile(r"roctx\w*Range|^roctxMark", re.IGNORECASE)
WORK_COLUMNS = {**KERNEL_COLUMNS, "correlation_id": "int64", "bytes": "int64"}
"""Columns of `kernels`, besides the sizes of grid and block."""
_SIDES = [f"{side}_{axis}" for side in ("grid", "block") for axis in "xyz"]


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = -1


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = -1


class _Extent(msgspec.Struct, frozen=True, gc=False):
    x: int = 0
    y: int = 0
    z: int = 0


class _Record(msgspec.Struct, kw_only=True, gc=False):
    start_timestamp: int = _MOST
    end_timestamp: int = -1
    kind: int | str = -1
    operation: int | str = -1
    thread_id: int = -1
    correlation_id: _Correlation = _Correlation()


class _Dispatch(msgspec.Struct, frozen=True, gc=False):
    kernel_id: int = -1
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    workgroup_size: _Extent = _Extent()
    grid_size: _Extent = _Extent()


class _Work(_Record, kw_only=True, gc=False):
    stream_id: _Handle | None = None


class _Kernel(_Work, kw_only=True, gc=False):
    dispatch_info: _Dispatch = _Dispatch()


class _Copy(_Work, kw_only=True, gc=False):
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    bytes: int = 0


class _Agent(msgspec.Struct, gc=False):
    id: _Handle = _Handle()
    type: int = 0
    node_id: int = -1
    logical_node_type_id: int = -1
    name: str = ""
    product_name: str = ""
    cu_count: int = 0


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Names(msgspec.Struct, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct, gc=False):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct, frozen=True, gc=False):
    buffer_records: list[_Names] = []
    marker_api: list[_Message] = []


class _Records(msgspec.Struct, frozen=True, gc=False):
    kernel_dispatch: list[_Kernel] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Record] = []
    hsa_api: list[_Record] = []
    marker_api: list[_Record] = []
    rccl_api: list[_Record] = []


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    pid: int | None = None


class _Process(msgspec.Struct, gc=False):
    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = _Records()


class _Document(msgspec.Struct, rename={"processes": "rocprofiler-sdk-tool"}):
    processes: list[_Process]


def recognises(head: "Head") -> bool:
    """Return whether a file is JSON of rocprofv3."""
    return _TOOL.match(head.data) is not None


def read(path: Path) -> list[Timeline]:
    """Read a file: one Timeline per process. kernels hold correlation_id, bytes and sizes of grid and block too.

    A stream is that of HIP where the file has it, else the hardware queue. ranges are those of ROCTX and the calls of
    RCCL.

    Raises:
        InputError: the file cannot be read, is damaged, larger than the limit, or holds no trace.
    """
    data = bytearray()
    stream = unpacked_stream(path, "trace of rocprofv3", most_bytes=MOST_BYTES, remedy="record fewer steps")
    while block := stream.read(_BLOCK_BYTES):
        data += block
        require_memory(path, _RECORDS * len(data))
    try:
        found = msgspec.json.decode(data, type=_Document).processes
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        whole = isinstance(loose_json(data), dict)
        what = "is JSON of rocprofv3 in a form that is not known" if whole else "is damaged or truncated"
        raise InputError(
            "trace-unsupported" if whole else "file-damaged",
            f"{path} {what} ({str(error)[:200]}); "
            + ("record with rocprofv3 of ROCm 6.2 or newer" if whole else "copy it again, or record again"),
        ) from error
    timelines = [timeline for one in found if (timeline := _timeline(one, path)) is not None]
    if not timelines:
        raise InputError(
            "trace-without-work",
            f"{path} has no kernel, copy, call or range: record again with `rocprofv3 --runtime-trace "
            "--output-format json -- PROGRAM`",
        )
    return timelines


def _timeline(process: _Process, path: Path) -> Timeline | None:
    records, names, problems = process.buffer_records, _Operations(process.strings.buffer_records), []
    gpus = _numbered(process.agents)
    work = _work(process, gpus, names)
    calls = records.hip_api or records.hsa_api  # HSA's are those that HIP makes
    api = _spans([(names.of(call), call) for call in calls], correlated=True)
    ranges = _ranges(process, names)
    frames = {"pieces of GPU work": work, "calls": api, "ranges": ranges}
    for what, frame in frames.items():
        usable = (frame["end"] >= frame["start"]) & (frame["start"] >= 0) & (frame["end"] < _MOST)
        if not usable.all():
            problems.append(f"{int((~usable).sum()):,} {what} without start or end were skipped")
        frames[what] = frame[usable].sort_values("start", kind="stable", ignore_index=True)
    kernels, api, ranges = frames.values()
    if not (len(kernels) or len(api) or len(ranges)):
        return None
    if not len(kernels):
        problems.append(f"{path.name} has no kernels: record with --kernel-trace")
    match = _RANK.search(path.name)
    return assembled(
        kernels,
        api,
        ranges,
        source=SOURCE,
        problems=problems,
        rank=int(match[1]) if match else None,
        process=process.metadata.pid,
        devices={number: agent.product_name or agent.name for number, agent in gpus.values()},
        sm_counts={number: agent.cu_count for number, agent in gpus.values() if agent.cu_count > 0},
    )


class _Operations:
    """Names of operations by the numbers of their kind and of themselves."""

    def __init__(self, listed: Sequence[_Names]) -> None:
        self._listed = listed

    def of(self, record: _Record) -> str:
        kind, operation = record.kind, record.operation
        if isinstance(operation, str) or isinstance(kind, str):
            return str(operation)
        if 0 <= kind < len(self._listed) and 0 <= operation < len(self._listed[kind].operations):
            return self._listed[kind].operations[operation]
        return f"operation {operation} of kind {kind}"


def _numbered(agents: Iterable[_Agent]) -> dict[int, tuple[int, _Agent]]:
    """GPUs with their numbers, as HIP counts them, by handle."""
    gpus = sorted((agent for agent in agents if agent.type == _GPU), key=lambda agent: agent.node_id)
    return {
        agent.id.handle: (agent.logical_node_type_id if agent.logical_node_type_id >= 0 else place, agent)
        for place, agent in enumerate(gpus)
    }


def _work(process: _Process, gpus: Mapping[int, tuple[int, _Agent]], names: _Operations) -> "pd.DataFrame":
    dispatches, copies = process.buffer_records.kernel_dispatch, process.buffer_records.memory_copy
    named = {
        one.kernel_id: (one.formatted_kernel_name or one.demangled_kernel_name or one.kernel_name).removesuffix(".kd")
        for one in process.kernel_symbols
    }
    everything: list[_Work] = [*dispatches, *copies]
    by_stream = all(one.stream_id is not None for one in everything)

    def number(handle: _Handle) -> int:
        return gpus[handle.handle][0] if handle.handle in gpus else -1

    rows: list[tuple[Any, ...]] = []
    for one in dispatches:
        info = one.dispatch_info
        stream = one.stream_id if by_stream and one.stream_id is not None else info.queue_id
        block, threads = info.workgroup_size, info.grid_size  # AMD's grids count threads, not blocks
        sizes = (block.x, block.y, block.z)
        grid = (-(-count // size) if size > 0 else 0 for count, size in zip(_axes(threads), sizes, strict=True))
        name = named.get(info.kernel_id) or f"kernel {info.kernel_id}"
        rows.append((name, "kernel", number(info.agent_id), stream.handle, one.start_timestamp, one.end_timestamp,
                     one.correlation_id.internal, 0, *grid, *sizes))  # fmt: skip
    for copy in copies:
        device = number(copy.dst_agent_id) if copy.dst_agent_id.handle in gpus else number(copy.src_agent_id)
        stream = copy.stream_id if by_stream and copy.stream_id is not None else _Handle()
        rows.append((_copy_name(names.of(copy)), "memcpy", device, stream.handle, copy.start_timestamp,
                     copy.end_timestamp, copy.correlation_id.internal, copy.bytes, *(0,) * 6))  # fmt: skip
    return _frame(rows, WORK_COLUMNS | dict.fromkeys(_SIDES, "int64"))


def _frame(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> "pd.DataFrame":
    """A table of these columns and types; what does not fit into 64 bits is -1."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(columns), dtype=object)
    for name, kind in columns.items():
        if kind == "int64":
            values = [value if -_MOST <= value <= _MOST else -1 for value in frame[name].tolist()]
            frame[name] = np.array(values, dtype=np.int64)
    return frame.astype(columns)


def _axes(extent: _Extent) -> tuple[int, int, int]:
    return extent.x, extent.y, extent.z


def _copy_name(operation: str) -> str:
    """MEMORY_COPY_HOST_TO_DEVICE as "Memcpy HtoD"."""
    match = re.search(r"(HOST|DEVICE)_TO_(HOST|DEVICE)", operation.upper())
    return f"Memcpy {_DIRECTIONS[match[1]]}to{_DIRECTIONS[match[2]]}" if match else "Memcpy"


def _ranges(process: _Process, names: _Operations) -> "pd.DataFrame":
    """ROCTX ranges by their message, "domain: text" as it is, and calls of RCCL."""
    records = process.buffer_records
    said = {one.key: one.value for one in process.strings.marker_api}
    marked = [(names.of(one), one) for one in records.marker_api]
    spans = [(said.get(one.correlation_id.internal) or name, one) for name, one in marked if _is_range(name, one)]
    spans += [(names.of(one), one) for one in records.rccl_api]
    found = _spans(spans, correlated=False)
    domain = found["name"].str.extract(r"^(\w+):\w", expand=False).fillna("")
    return found.assign(domain=domain, payload=np.nan, json="", cut=False).astype({"payload": "Int64", "domain": "str"})


def _is_range(name: str, record: _Record) -> bool:
    return record.end_timestamp > record.start_timestamp and (_RANGE.search(name) is not None or not name)


def _spans(named: Sequence[tuple[str, _Record]], *, correlated: bool) -> "pd.DataFrame":
    rows = [
        (name, str(one.thread_id), one.start_timestamp, one.end_timestamp, one.correlation_id.internal)
        for name, one in named
    ]
    found = _frame(rows, API_COLUMNS)
    return found if correlated else found[list(SPAN_COLUMNS)]
