"""Traces of the PyTorch profiler (Kineto's Chrome trace JSON), plain or gzip-compressed.

Times are exact to the nanosecond. See docs/explanation/analysis.md.
"""

import math
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.counters import IDENTITY, KernelCounters
from analysis.readers.kineto.collectives import process_groups
from analysis.readers.kineto.events import Content, Event, InexactTimesError, load, no_collection, whole
from analysis.readers.kineto.tables import Tables
from analysis.timeline import SAMPLE_COLUMNS, LostKernels, Timeline, typed
from common.errors import Code, InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

PAYS_FROM_BYTES = 4 << 20
"""Size of all files, packed ones counted _PACKED_RATIO times, from which more processes are faster."""
_PACKED_RATIO = 15
_UNITS = {".pct": "%", "bytes": "byte", "inst": "inst", "cycles": "cycle"}
# Fields of a trace, and of PyTorch's execution trace, whose message says what to give.
_FIELD = re.compile(
    rb'"(?:traceEvents|deviceProperties|schemaVersion|distributedInfo|baseTimeNanoseconds|trace_id|displayTimeUnit)"\s*:'
    rb'|"schema"\s*:\s*"[^"]*"|"nodes"\s*:\s*\['
)
_LIST_OF_EVENTS = re.compile(rb'\s*\[\s*\{(?:[^{}]|\{[^{}]*\})*"ph"\s*:')


def recognises(head: "Head") -> bool:
    """Return whether a file is a PyTorch trace, or is so like one that `read` says best what it is."""
    data = head.data.lstrip()
    if data.startswith(b"["):
        return _LIST_OF_EVENTS.match(data) is not None or data.rstrip().endswith(b"]")
    return data.startswith(b"{") and bool(_FIELD.search(data))


def read(path: Path) -> Timeline:
    """Read one rank's trace.

    Names and threads are categories. Where the trace says them, `operators` also has precision (of
    names.PRECISIONS: the input types of a GEMM, "" unknown), inputs (JSON list of the inputs' sizes, types and
    values, of operators that names.has_roofline; "" unknown), sequence (number of autograd's node, -1 none) and
    forward_thread (autograd's number of the thread that made the node which is evaluated, -1 unknown), and `kernels`
    blocks_per_sm (blocks of the kernel per multiprocessor, NaN unknown). A file that is cut off is read up to its last
    whole event, which `problems` and `truncated` say.

    Raises:
        InputError: the file cannot be read, it is no PyTorch trace, or it is larger than the memory allows.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Timeline] | tuple[Timeline, KernelCounters]:
    with no_collection():
        content = load(path)
        about = content.about
        base = about.baseTimeNanoseconds if isinstance(about.baseTimeNanoseconds, int) else 0
        try:
            try:
                tables = Tables(about.traceEvents, base)
            except InexactTimesError:
                tables = Tables(content.exact_events(), base)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                "file-damaged", f"{path} has an event that cannot be read ({error}): record again"
            ) from error
    if tables.is_empty and not tables.unknown:
        code: Code = "file-truncated" if content.truncated else "file-empty"
        raise InputError(code, f"{path} has no events of the PyTorch profiler: record again")
    information = about.distributedInfo if isinstance(about.distributedInfo, dict) else {}
    said = [*tables.kernel_calls.values(), *(call[4] for call in tables.host_calls)]
    groups = process_groups(information, said)
    devices = {device["id"]: device for device in about.deviceProperties or () if isinstance(device.get("id"), int)}
    problems = _problems(path, content, tables)
    unmade: dict[str, Any] = {
        **{name: partial(getattr, tables, name) for name in ("steps", "operators", "ranges", "api", "host")},
        "kernels": tables.work,
        "collectives": partial(tables.collectives, groups),
        "samples": partial(_samples, tables.samples, base),
    }
    timeline = Timeline(
        rank=_rank(about, path),
        **unmade,
        source="PyTorch profiler (Kineto" + (f", schema {about.schemaVersion})" if about.schemaVersion else ")"),
        problems=problems,
        devices={number: device["name"] for number, device in devices.items() if "name" in device},
        sm_counts={number: device["numSms"] for number, device in devices.items() if device.get("numSms")},
        world_size=_positive(information.get("world_size")),
        groups=groups,
        truncated=content.truncated,
    )
    return (timeline, _counters(tables, timeline, devices)) if tables.counted else (timeline,)


def _problems(path: Path, content: Content, tables: Tables) -> tuple[str, ...]:
    about, problems = content.about, list(tables.problems)
    if content.truncated:
        problems.append(f"{path.name} is cut short: it is read up to its last whole event; copy the whole file again")
    if tables.timeless:
        problems.append(f"{tables.timeless:,} events of {path.name} have no usable time and were skipped")
    if tables.unknown:
        listed = ", ".join(f"{name[:60]}: {count:,}" for name, count in Counter(tables.unknown).most_common(5))
        problems.append(f"{path.name} has events of unknown categories, which no time includes ({listed})")
    if len(tables.work):
        if not about.deviceProperties:
            problems.append(f"{path.name} does not name its GPU (no deviceProperties)")
    elif tables.of_a_gpu or (content.truncated and about.deviceProperties):
        remedy = "copy the whole file again" if content.truncated else "record with ProfilerActivity.CUDA"
        problems.append(
            LostKernels(f"{path.name} is of a GPU, but has no kernels: the tables show only the CPU; {remedy}")
        )
    return tuple(problems)


def _positive(value: Any, least: int = 1) -> int | None:
    return value if type(value) is int and least <= value < 2**31 else None


def _rank(about: Any, path: Path) -> int | None:
    for information in (about.bertbench, about.distributedInfo):
        if isinstance(information, dict) and (rank := _positive(information.get("rank"), 0)) is not None:
            return rank
    match = re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name)
    return int(match[1]) if match else None


def _counters(tables: Tables, timeline: Timeline, devices: Mapping[int, Mapping[str, Any]]) -> KernelCounters:
    """Return one row per counted range, in order of time.

    The ranges are laid over the host's time when they were read, so that their durations are no kernel times: `cycles`
    and `duration_ns` are unknown. A range without a name is "__missing__".
    """
    import pandas as pd

    counted = sorted(tables.counted, key=lambda event: float(event.ts or 0))
    rows = [(event, msgspec.json.decode(event.args) or {}) for event in counted]
    names = list(dict.fromkeys(name for _, values in rows for name in values if name not in IDENTITY))
    device = [number if (number := whole(event.pid)) >= 0 else None for event, _ in rows]
    table = pd.DataFrame(
        {
            "process": -1,
            "kernel_id": range(len(rows)),
            "name": pd.Series([event.name for event, _ in rows], dtype="str"),
            "device": pd.array(device, dtype="Int64"),
            "duration_ns": math.nan,
            "cycles": math.nan,
            **{name: [_number(values.get(name)) for _, values in rows] for name in names},
        }
    )
    units = {name: next((unit for part, unit in _UNITS.items() if part in name), "") for name in names}
    used = Counter(device).most_common(1)[0][0]
    about = devices.get(-1 if used is None else used, {})
    major = about.get("computeMajor")
    capability = (major, about["computeMinor"]) if major else None
    return KernelCounters(table, units, about.get("name"), capability, timeline.problems)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _samples(samples: Sequence[Event], base_ns: int) -> "pd.DataFrame":
    """Return the hardware counters that CUPTI sampled, "GPU 0 Counters", as Timeline.samples."""
    rows = []
    for event in samples:
        if device := re.fullmatch(r"GPU (\d+) Counters", str(event.pid)):
            start = round(float(event.ts or 0) * 1000) + base_ns
            for name, value in msgspec.json.decode(event.args, type=dict[str, float]).items():
                named = name if "__" in name else event.name  # one counter of several, or the one of this name
                rows.append({"name": named, "device": int(device[1]), "start": start, "value": value})
    return typed(sorted(rows, key=lambda row: row["start"]), SAMPLE_COLUMNS)


def read_many(paths: Sequence[Path]) -> Iterator[tuple[Path, Timeline | KernelCounters | InputError]]:
    """Yield (file, what is in it) in the order given: a timeline, then counters if any, or why it cannot be read.

    Files are read in processes beside this one where that pays: forked, so that no other thread may hold a lock.
    """
    sizes = (path.stat().st_size * (_PACKED_RATIO if path.suffix == ".gz" else 1) for path in paths if path.exists())
    workers = min(len(paths), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if workers < 2 or threading.active_count() > 1 or sum(sizes) < PAYS_FROM_BYTES:
        for path in paths:
            yield from ((path, content) for content in _contents(path))
        return
    import multiprocessing  # 40 ms, which one small trace does not need
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for path, future in [(path, pool.submit(_contents, path)) for path in paths]:
            try:
                contents = future.result()
            except BrokenProcessPool:  # a process died, for want of memory: its file is left to this one
                contents = _contents(path)
            yield from ((path, content) for content in contents)


def _contents(path: Path) -> list[Timeline | KernelCounters | InputError]:
    try:
        return [*_read(path)]
    except InputError as error:
        return [InputError(error.code, str(error))]
