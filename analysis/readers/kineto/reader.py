"""Traces of the PyTorch profiler (Kineto's Chrome trace JSON), plain or gzip-compressed.

A trace is unpacked and decoded in blocks of some megabytes; its size is limited by the tables that it makes, not by the
text, and reading stops before they take more memory than there is. Times are exact to the nanosecond. See
docs/explanation/analysis.md.
"""

import gc
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import IDENTITY, KernelCounters
from analysis.readers.columns import require_memory
from analysis.readers.kineto.collectives import process_groups
from analysis.readers.kineto.events import AnyEvent, loose_json, whole, whole_numbers
from analysis.readers.kineto.frames import Frames
from analysis.readers.kineto.processes import each
from analysis.readers.kineto.stream import EventStream
from analysis.readers.kineto.tables import Tables, label
from analysis.readers.packed import damage_code, unpacked_blocks
from analysis.timeline import LazyTimeline, Timeline
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

_UNITS = {".pct": "%", "bytes": "byte", "inst": "inst", "cycles": "cycle"}


def counters(
    counted: Sequence[tuple[AnyEvent, int, int]],
    *,
    process: int | None,
    device_names: dict[int, str],
    capabilities: dict[int, tuple[int, int]],
    problems: Sequence[str],
) -> KernelCounters:
    """Return one row per counted range, in order of time.

    The ranges are laid over the host's time when they were read, so that their durations are no kernel times: `cycles`
    and `duration_ns` are unknown. A range without a name is "__missing__".

    Args:
        counted: events, at least one, with their starts and durations, ns.
        process: the traced process.
        device_names: GPU names by number.
        capabilities: compute capabilities by number.
        problems: what of the trace could not be read.
    """
    import pandas as pd

    ordered = sorted(counted, key=lambda row: row[1])
    events = [event for event, _, _ in ordered]
    said = [found if isinstance(found := loose_json(event.args), dict) else {} for event in events]
    names = list(dict.fromkeys(str(name) for row in said for name in row if name not in IDENTITY))
    device = whole_numbers([event.pid for event in events], -1)
    used = Counter(device.tolist()).most_common(1)[0][0]
    table = pd.DataFrame(
        {
            "process": pd.Series([process if process is not None else -1] * len(events), dtype="int64"),
            "kernel_id": range(len(events)),
            "name": pd.Series([label(event.name) for event in events], dtype="str"),
            "device": pd.Series(device, dtype="Int64").mask(device < 0),
            "duration_ns": math.nan,
            "cycles": math.nan,
            **{name: [_number(row.get(name)) for row in said] for name in names},
        }
    )
    units = {name: next((unit for part, unit in _UNITS.items() if part in name), "") for name in names}
    return KernelCounters(table, units, device_names.get(used), capabilities.get(used), tuple(problems))


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


FORM = "timelines"

_FIELD = re.compile(
    rb'"(?:traceEvents|deviceProperties|schemaVersion|distributedInfo|baseTimeNanoseconds|trace_id|displayTimeUnit)"\s*:'
)
_EXECUTION_TRACE = re.compile(rb'"schema"\s*:\s*"[^"]*"|"nodes"\s*:\s*\[')
_LIST_OF_EVENTS = re.compile(rb'\s*\[\s*\{(?:[^{}]|\{[^{}]*\})*"ph"\s*:')
_PROCESS = re.compile(
    rb'"name"\s*:\s*"process_name"[^{}]{0,200}"args"\s*:\s*\{\s*"name"\s*:\s*"([^"]{1,200})"|'
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"([^"]{1,200})"\s*\}[^{}]{0,200}"name"\s*:\s*"process_name"'
)
_MOST_BLOCKS = 8
_MOST = 2**61


def recognises(head: "Head") -> bool:
    """Return whether a file is a PyTorch trace, or is so like one that `read` says best what it is."""
    data = head.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if data.startswith(b"["):
        return _LIST_OF_EVENTS.match(data) is not None or data.rstrip().endswith(b"]")
    return data.startswith(b"{") and bool(_FIELD.search(data) or _EXECUTION_TRACE.search(data))


def read(path: Path) -> Timeline:
    """Read one rank's trace.

    Names and threads are categories. Where the trace says them, `operators` also has precision (of
    names.PRECISIONS: the input types of a GEMM, "" unknown), inputs (JSON list of the inputs' sizes, types and
    values, of operators that names.has_roofline; "" unknown), sequence (number of autograd's node, -1 none) and
    forward_thread (autograd's number of the thread that made the node which is evaluated, -1 unknown), and `kernels`
    blocks_per_sm (blocks of the kernel per multiprocessor, NaN unknown). What is malformed or cut off is left out and
    stated in `problems`.

    Raises:
        InputError: nothing of the file can be read, it is no PyTorch trace or one of an accelerator that is not
            understood, or it is larger than the limits; the message names it and says what it seems to be.
    """
    return _read(path).timeline


@dataclass(frozen=True, slots=True)
class Content:
    """All that is in one trace."""

    timeline: Timeline
    counters: KernelCounters | None
    """Its counters, if any."""


def _read(path: Path) -> Content:
    stream = EventStream(path)
    tables = Tables()
    with _no_collection():
        for piece in stream.pieces():
            tables.add(piece)
            del piece
            require_memory(path, tables.bytes)
    return _content(path, stream, tables)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Events hold no cycles: looking for some costs as much as the decoding."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _content(path: Path, stream: EventStream, tables: Tables) -> Content:
    about = stream.about
    foreign = tables.unknown.nameless and not tables.has_work
    if foreign and (active := tables.unknown.accelerator(_process_names(path))):
        raise InputError("trace-unsupported", _not_understood(path, active))
    if stream.damage and not tables.events and not tables.unknown.counts:
        raise InputError(damage_code(stream.damage[0]), _nothing(path, stream))
    if not (stream.damage or stream.lost or tables.events or tables.timeless or tables.unknown.counts):
        if tables.damaged:
            raise InputError(
                "file-damaged",
                f"{path} has no readable event: ts or dur of {tables.damaged:,} is no usable time; record again",
            )
        if count := tables.unknown.nameless:
            raise InputError(
                "trace-unsupported",
                f"{path} is not a trace of the PyTorch profiler: its events ({count:,}) have no category; give "
                "the file of export_chrome_trace",
            )
        raise InputError("file-empty", f"{path} has no events, so nothing was recorded: record again")
    information = about.get("distributedInfo")
    information = information if isinstance(information, dict) else {}
    groups = process_groups(information, tables.naming_groups())
    frames = Frames(tables, _base(about), groups)
    if not len(frames.work()) and (active := tables.unknown.accelerator()):
        raise InputError("trace-unsupported", _not_understood(path, active))
    devices = _Devices(about)
    problems = _problems(path, stream, tables, about, frames)
    timeline = LazyTimeline.of(
        frames,
        rank=_rank(about, path),
        source=_source(about),
        process=tables.process(),
        problems=problems,
        devices=devices.names,
        sm_counts=devices.sm_counts,
        world_size=_positive(information.get("world_size")),
        groups=groups,
        truncated=stream.truncated,
    )
    if not tables.counted:
        return Content(timeline, None)
    own = counters(
        tables.counted, process=tables.process(), device_names=devices.names,
        capabilities=devices.capabilities, problems=problems,
    )  # fmt: skip
    return Content(timeline, own)


def _nothing(path: Path, stream: EventStream) -> str:
    return (
        f"cannot read {path}: {stream.damage[0]} before the end of its first event, so it is not complete JSON; the "
        "file is damaged or truncated: copy it again, or record again"
    )


def _process_names(path: Path) -> list[str]:
    found: list[str] = []
    for block in islice(unpacked_blocks(path, "trace", lambda _: None), _MOST_BLOCKS):
        found += [(match[1] or match[2]).decode(errors="replace") for match in _PROCESS.finditer(block)]
    return found


def _not_understood(path: Path, active: str) -> str:
    return (
        f"{path} contains {active}, which is not supported, and no GPU work of the PyTorch profiler: its times would "
        "cover only the host. Supported are traces of CUDA, ROCm and XPU devices (categories kernel, gpu_memcpy, "
        "gpu_memset) and of runs on a CPU; use the tools of that accelerator's vendor"
    )


def _problems(
    path: Path, stream: EventStream, tables: Tables, about: Mapping[str, Any], frames: Frames
) -> tuple[str, ...]:
    said = [f"{path.name} is damaged: {clause}; only its readable part is used" for clause in stream.damage]
    said += [f"{path.name}: {left_out}" for left_out in frames.problems]
    if stream.lost:
        said.append(f"{path.name} is malformed in {stream.lost:,} places: the events there were skipped")
    if tables.timeless:
        said.append(f"{tables.timeless:,} events of {path.name} have no usable time and were skipped")
    if tables.unknown.counts:
        said.append(
            f"{path.name} has events of unknown categories ({tables.unknown.listed()}): they were "
            "skipped, and no time includes them"
        )
    if len(frames.work()):
        if not about.get("deviceProperties"):
            said.append(f"{path.name} does not name its GPU (no deviceProperties)")
    elif (ran := frames.launches() or frames.calls_nccl()) or (stream.damage and about.get("deviceProperties")):
        what = "is of a program on a GPU" if ran else "names a GPU"
        why, remedy = "", "copy the whole file again"
        if not stream.damage:
            why, remedy = ", because GPU work was not recorded", "record with ProfilerActivity.CUDA, and read its log"
        said.append(f"{path.name} {what}, but has no kernels{why}: the tables show only what the CPU did; {remedy}")
    return tuple(said)


def _source(about: Mapping[str, Any]) -> str:
    version = about.get("schemaVersion")
    return "PyTorch profiler (Kineto" + (f", schema {version})" if type(version) is int else ")")


def _base(about: Mapping[str, Any]) -> int:
    base = about.get("baseTimeNanoseconds")
    return base if type(base) is int and abs(base) < _MOST else 0


def _positive(value: Any, least: int = 1) -> int | None:
    return value if type(value) is int and least <= value < 2**31 else None


def _rank(about: Mapping[str, Any], path: Path) -> int | None:
    for name in ("bertbench", "distributedInfo"):
        information = about.get(name)
        if isinstance(information, dict) and (rank := _positive(information.get("rank"), 0)) is not None:
            return rank
    match = re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name)
    return int(match[1]) if match else None


class _Devices:
    """What deviceProperties says."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.names: dict[int, str] = {}
        self.sm_counts: dict[int, int] = {}
        self.capabilities: dict[int, tuple[int, int]] = {}
        listed = about.get("deviceProperties")
        for device in listed if isinstance(listed, list) else []:
            number = _positive(device.get("id"), 0) if isinstance(device, dict) else None
            if number is None:
                continue
            if isinstance(device.get("name"), str):
                self.names[number] = device["name"]
            count = _positive(device.get("numSms"))
            if count is not None:
                self.sm_counts[number] = count
            major, minor = whole(device.get("computeMajor")), whole(device.get("computeMinor"))
            if 0 < major < 100 and 0 <= minor < 100:
                self.capabilities[number] = (major, minor)


def read_ranks(paths: Sequence[Path], problems: list[str] | None = None) -> list[Timeline]:
    """Read the traces of several ranks, in parallel processes where that is faster; return them by rank.

    Args:
        paths: the files.
        problems: takes the message of each file that cannot be read; None: the first one ends the reading.

    Raises:
        InputError: a file cannot be read, and `problems` is None.
    """
    found: list[Timeline] = []
    for _, content in read_many(paths):
        if isinstance(content, Timeline):
            found.append(content)
        elif isinstance(content, InputError):
            if problems is None:
                raise content
            problems.append(str(content))
    return sorted(found, key=lambda timeline: (timeline.rank is None, timeline.rank or 0))


def read_many(paths: Sequence[Path]) -> Iterator[tuple[Path, Timeline | KernelCounters | InputError]]:
    """Yield (file, what is in it) in the order given: a timeline, then counters if any, or why it cannot be read."""
    for path, content in each(_read, paths):
        if isinstance(content, InputError):
            yield path, content
            continue
        yield path, content.timeline
        if content.counters is not None:
            yield path, content.counters
