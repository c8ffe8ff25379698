"""Timelines as one Chrome trace file that ui.perfetto.dev opens, with the tracks that the suite derives.

A rank has a process of derived tracks, one of its host threads, and one per GPU with a track per stream. Categories,
`args` and baseTimeNanoseconds are those of Kineto, so that tools which read its files read these.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from analysis.intervals import difference
from analysis.metrics.time.phases import PHASES, PREFIX
from analysis.metrics.time.window import NOTHING, work_sets, work_time
from analysis.timeline import Timeline
from common.atomic import atomic_path
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_ARGUMENTS = {"device": "device", "stream": "stream", "correlation_id": "correlation", "bytes": "bytes"}
_PROCESSES = 1000  # process ids of a rank: 0 derived tracks, 1 host, 10 and on the GPUs


def write_perfetto(timelines: Sequence[Timeline], path: Path) -> None:
    """Write timelines to one file, gzip-compressed if its name ends in .gz.

    Times are microseconds since the earliest event; baseTimeNanoseconds is the time of that event.

    Raises:
        InputError: no timeline has an event.
        StorageError: the file cannot be written.
    """
    names = ("steps", "operators", "kernels", "ranges", "api", "collectives")
    tables = [getattr(timeline, name) for timeline in timelines for name in names]
    starts = [int(table["start"].min()) for table in tables if len(table)]
    if not starts:
        raise InputError(
            "trace-without-work", "the trace has no events: give one with kernels, operators, calls or ranges"
        )
    header: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "baseTimeNanoseconds": min(starts)}
    if len(timelines) == 1 and timelines[0].rank is not None:
        header["distributedInfo"] = {"rank": timelines[0].rank}
    opening = f'{json.dumps(header)[:-1]}, "traceEvents": [\n'
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        file = gzip.GzipFile("", "wb", 4, raw, mtime=0) if path.name.endswith(".gz") else raw
        for number, timeline in enumerate(timelines):
            for event in _rank(timeline, number * _PROCESSES, min(starts)):
                file.write(f"{opening}{json.dumps(event)}".encode())
                opening = ",\n"
        file.write(b"\n]}\n")
        file.close()


def _rank(timeline: Timeline, pid: int, base: int) -> Iterator[dict[str, Any]]:
    import pandas as pd

    label = f"rank {'unknown' if timeline.rank is None else timeline.rank}"
    yield from _process(pid, f"{label}: analysis", _derived(timeline), base)
    tables = (timeline.ranges, "user_annotation"), (timeline.operators, "cpu_op"), (timeline.api, "cuda_runtime")
    host = pd.concat([table.assign(cat=category) for table, category in tables if len(table)] or [timeline.ranges])
    threads = [(f"thread {thread}", rows) for thread, rows in host.groupby("thread", sort=True, observed=True)]
    yield from _process(pid + 1, f"{label}: host", threads, base)
    for key, table in timeline.kernels.groupby("device", sort=True):
        device = cast(int, key)
        streams = [
            (f"stream {stream}", rows.assign(cat=rows["kind"].map(_CATEGORIES).astype(object).fillna("kernel")))
            for stream, rows in table.groupby("stream", sort=True)
        ]
        name = f"{label}: GPU {device} {timeline.devices.get(device, '')}".rstrip()
        yield from _process(pid + 10 + device, name, streams, base)


def _derived(timeline: Timeline) -> "Iterator[tuple[str, pd.DataFrame]]":
    import pandas as pd

    steps = timeline.steps
    yield "steps", steps.assign(name=[f"ProfilerStep#{step}" for step in steps["step"]], cat="user_annotation")
    phases = timeline.ranges[timeline.ranges["name"].isin([PREFIX + phase for phase in PHASES])]
    yield "phases", phases.assign(name=[str(name).removeprefix(PREFIX) for name in phases["name"]], cat="bertbench")
    sets = work_sets(timeline)
    whole = work_time(timeline)
    for title, spans in (
        ("computation", sets.compute),
        ("communication", sets.communication),
        ("exposed communication", difference(sets.communication, sets.compute)),
        ("copies", sets.memory),
        ("idle", NOTHING if whole is None else difference(whole, sets.busy)),
    ):
        yield title, pd.DataFrame({"name": title, "start": spans[:, 0], "end": spans[:, 1], "cat": "bertbench"})


def _process(pid: int, name: str, tracks: "Iterable[tuple[str, pd.DataFrame]]", base: int) -> Iterator[dict[str, Any]]:
    for tid, (title, table) in enumerate(tracks, start=1):
        if table.empty:
            continue
        about = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        yield {**about, "name": "process_name", "args": {"name": name}}
        yield {**about, "name": "thread_name", "args": {"name": title}}
        arguments = {column: argument for column, argument in _ARGUMENTS.items() if column in table.columns}
        ordered = table.sort_values(["start", "end"], ascending=[True, False], kind="stable")
        columns = (ordered[column].tolist() for column in ("cat", "name", "start", "end", *arguments))
        for category, event, start, end, *values in zip(*columns, strict=True):
            slice_ = {"ph": "X", "cat": category, "name": str(event), "pid": pid, "tid": tid}
            known = {key: int(value) for key, value in zip(arguments.values(), values, strict=True) if value >= 0}
            yield {**slice_, "ts": (start - base) / 1000, "dur": max(0, end - start) / 1000, "args": known}
