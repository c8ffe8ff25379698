"""Traces of the PyTorch profiler (Kineto's Chrome trace JSON), plain or gzip-compressed.

Times are exact to the nanosecond. See docs/explanation/analysis.md.
"""

import gc
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import IDENTITY, KernelCounters
from analysis.readers.kineto.collectives import process_groups
from analysis.readers.kineto.events import Content, CounterEvent, InexactTimesError, load, whole
from analysis.readers.kineto.tables import COUNTED, SAMPLED, Tables
from analysis.timeline import SAMPLE_COLUMNS, LostKernels, Timeline, typed
from common.errors import Code, InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.registry import Head

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
    return read_contents(path)[0]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage among millions of objects of which none is garbage: that takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def read_contents(path: Path) -> tuple[Timeline] | tuple[Timeline, KernelCounters]:
    """Read a trace like `read`, and the counters of the range profiler where it has some."""
    content = load(path)
    about = content.about
    base = about.baseTimeNanoseconds if isinstance(about.baseTimeNanoseconds, int) else 0
    try:
        tables = Tables(about.traceEvents, base, content.truncated)
    except InexactTimesError:
        tables = Tables(content.exact_events(), base, content.truncated)
    about.traceEvents = None
    if not (tables.filled or tables.unknown):
        code: Code = "file-truncated" if content.truncated else "file-empty"
        raise InputError(code, f"{path} has no events of the PyTorch profiler: record again")
    information = about.distributedInfo if isinstance(about.distributedInfo, dict) else {}
    groups = process_groups(information, [*tables.kernel_calls.values(), *(call[4] for call in tables.host_calls)])
    devices = {device["id"]: device for device in about.deviceProperties or ()}
    made_later: dict[str, Any] = {name: partial(tables.frame, name) for name in ("operators", "ranges", "api", "host")}
    made_later |= {"steps": tables.steps, "kernels": tables.work, "collectives": partial(tables.collectives, groups)}
    if SAMPLED in tables.filled:
        made_later["samples"] = partial(_samples, content.counter_events(SAMPLED), base)
    timeline = Timeline(
        rank=_rank(about, path),
        **made_later,
        source="PyTorch profiler (Kineto" + (f", schema {about.schemaVersion})" if about.schemaVersion else ")"),
        problems=_problems(path, content, tables),
        devices={number: device["name"] for number, device in devices.items() if "name" in device},
        sm_counts={number: device["numSms"] for number, device in devices.items() if device.get("numSms")},
        world_size=information.get("world_size"),
        groups=groups,
        truncated=content.truncated,
    )
    if COUNTED not in tables.filled:
        return (timeline,)
    return timeline, _counters(content.counter_events(COUNTED), timeline, devices)


def _problems(path: Path, content: Content, tables: Tables) -> tuple[str, ...]:
    about, problems = content.about, list(tables.problems)
    if content.truncated:
        problems.append(f"{path.name} is cut short: it is read up to its last whole event; copy the whole file again")
    if tables.timeless:
        problems.append(f"{tables.timeless:,} events of {path.name} have no usable time and were skipped")
    if tables.unknown:
        listed = ", ".join(f"{name[:60]}: {count:,}" for name, count in tables.unknown.most_common(5))
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


def _rank(about: Any, path: Path) -> int | None:
    for information in (about.bertbench, about.distributedInfo):
        if isinstance(information, dict) and isinstance(rank := information.get("rank"), int):
            return rank
    match = re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name)
    return int(match[1]) if match else None


def _counters(
    counted: Sequence[CounterEvent], timeline: Timeline, devices: Mapping[int, Mapping[str, Any]]
) -> KernelCounters:
    """Return one row per counted range, in order of time.

    The ranges are laid over the host's time when they were read, so that their durations are no kernel times: `cycles`
    and `duration_ns` are unknown. A range without a name is "__missing__".
    """
    import pandas as pd

    names = list(dict.fromkeys(name for event in counted for name in event.args or () if name not in IDENTITY))
    device = [number if (number := whole(event.pid)) >= 0 else None for event in counted]
    table = pd.DataFrame(
        {
            "process": -1,
            "kernel_id": range(len(counted)),
            "name": pd.Series([event.name for event in counted], dtype="str"),
            "device": pd.array(device, dtype="Int64"),
            "duration_ns": math.nan,
            "cycles": math.nan,
            **{name: [_number((event.args or {}).get(name)) for event in counted] for name in names},
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


def _samples(samples: Sequence[CounterEvent], base_ns: int) -> "pd.DataFrame":
    """Return the hardware counters that CUPTI sampled, "GPU 0 Counters", as Timeline.samples."""
    rows = []
    for event in samples:
        if (device := re.fullmatch(r"GPU (\d+) Counters", str(event.pid))) and isinstance(event.args, dict):
            start = round(float(event.ts or 0) * 1000) + base_ns
            for name, value in event.args.items():
                counter = name if "__" in name else event.name  # of several in one event, or the one of this name
                rows.append({"name": counter, "device": int(device[1]), "start": start, "value": _number(value)})
    return typed(rows, SAMPLE_COLUMNS)
