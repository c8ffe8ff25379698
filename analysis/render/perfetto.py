"""Timelines as one Chrome trace file that ui.perfetto.dev opens, with tracks that the profiler's own file lacks.

Each rank has a process of tracks for what the suite derives (steps, phases, computation, communication, exposed
communication, copies, idle), one for its host threads and one per GPU with a track per stream. The format is "Trace
Event Format" (Google, JSON object form) in the PyTorch profiler's dialect: categories, `args` and baseTimeNanoseconds
are Kineto's, so tools that read its files also read these. Nothing else is copied from the source.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from analysis.metrics.time.phases import PHASES
from analysis.metrics.time.ranges import PREFIX
from analysis.metrics.time.temporal import work_sets, work_window
from analysis.spans import Intervals, clipped, difference, merged
from analysis.timeline import Timeline
from common.atomic import atomic_path
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def derived_tracks(timeline: Timeline) -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Yield (title, table) of each track that has a slice; tables have name, start, end, ns.

    "communication" has a slice per collective, with bytes and group. The others are unions of intervals as
    time.temporal defines them. Exposed communication is communication less computation, idle the window of the steps
    (of the work where no step is marked) less all work.
    """
    phases = timeline.ranges[timeline.ranges["name"].isin([PREFIX + phase for phase in PHASES])]
    if len(phases):
        yield "phases", phases.assign(name=[str(name).removeprefix(PREFIX) for name in phases["name"]])
    sets = work_sets(timeline)
    yield from _track("computation", sets.compute)
    if len(timeline.collectives):
        yield "communication", timeline.collectives.assign(name=timeline.collectives["collective"])
    else:
        yield from _track("communication", sets.communication)
    yield from _track("exposed communication", difference(sets.communication, sets.compute))
    yield from _track("copies", sets.memory)
    window = work_window(timeline, sets)
    if window is not None:
        yield from _track("idle", difference(merged([window[0]], [window[1]]), clipped(sets.busy, *window)))


def _track(title: str, intervals: Intervals) -> Iterator[tuple[str, "pd.DataFrame"]]:
    import pandas as pd

    if len(intervals):
        yield title, pd.DataFrame({"name": title, "start": intervals[:, 0], "end": intervals[:, 1]})


_CATEGORIES = {"kernel": "kernel", "graph": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_ROWS_AT_ONCE = 65536
_MOST_LANES = 64
_PROCESSES = 1000  # process ids per rank: 0 derived tracks, 1 host, 10 and on the GPUs


def write_perfetto(timelines: Sequence[Timeline], path: Path) -> int:
    """Write timelines to one file atomically, gzip-compressed if its name ends in .gz.

    Returns the number of slices in it: kernels, operators, calls, ranges, steps and those of the derived tracks.

    Times are microseconds since the earliest event, with all nanoseconds as decimals; baseTimeNanoseconds is the time
    of that event. Slices of one track that overlap without nesting go to further tracks of the same name.

    Raises:
        InputError: there is no timeline, or none has an event.
        StorageError: the file cannot be written.
    """
    starts = [int(table["start"].min()) for timeline in timelines for table in _tables(timeline) if len(table)]
    if not starts:
        raise InputError(
            "trace-without-work", "the trace has no events: give one with kernels, operators, calls or ranges"
        )
    base = min(starts)
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        # No file name or time is stored, so equal timelines make equal files.
        packed = gzip.GzipFile("", "wb", 4, raw, mtime=0) if path.name.endswith(".gz") else None
        file = cast(BinaryIO, packed) if packed else raw
        writer = _Writer(file, base)
        file.write((json.dumps(_about(timelines, base))[:-1] + ', "traceEvents": [\n').encode())
        for number, timeline in enumerate(timelines):
            _write_rank(writer, timeline, number)
        writer.flush()
        file.write(b"\n]}\n")
        if packed:
            packed.close()
    return writer.slices


def _tables(timeline: Timeline) -> tuple["pd.DataFrame", ...]:
    return (timeline.steps, timeline.operators, timeline.kernels, timeline.ranges, timeline.api, timeline.collectives)


def _about(timelines: Sequence[Timeline], base: int) -> dict[str, Any]:
    about: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "baseTimeNanoseconds": base}
    if len(timelines) == 1 and timelines[0].rank is not None:
        about["distributedInfo"] = {"rank": timelines[0].rank}
        if timelines[0].world_size is not None:
            about["distributedInfo"]["world_size"] = timelines[0].world_size
    devices: dict[int, dict[str, Any]] = {}
    for timeline in timelines:
        for device, name in timeline.devices.items():
            devices.setdefault(device, {"id": device, "name": name})
        for device, count in timeline.sm_counts.items():
            devices.setdefault(device, {"id": device}).setdefault("numSms", count)
    about["deviceProperties"] = [devices[device] for device in sorted(devices)]
    return about


def _write_rank(writer: "_Writer", timeline: Timeline, number: int) -> None:
    pid = number * _PROCESSES
    label = f"rank {timeline.rank}" if timeline.rank is not None else "rank unknown"
    writer.process(pid, f"{label}: analysis")
    if len(timeline.steps):
        names = [f"ProfilerStep#{step}" for step in timeline.steps["step"]]
        writer.track(pid, "steps", timeline.steps.assign(name=names, cat="user_annotation"))
    for title, table in derived_tracks(timeline):
        writer.track(pid, title, table.assign(cat="bertbench"), _arguments(table, ("bytes", "group")))
    for thread, table in _host(timeline):
        writer.process(pid + 1, f"{label}: host")
        arguments = _arguments(table, ("correlation_id",))
        writer.track(pid + 1, f"thread {thread}", table, arguments)
    for key, table in timeline.kernels.groupby(["device", "stream"], sort=True):
        device, stream = cast(tuple[int, int], key)
        own = pid + 10 + max(-1, min(device, _PROCESSES - 20))
        writer.process(own, f"{label}: GPU {device} {timeline.devices.get(device, '')}".rstrip())
        table = table.assign(cat=table["kind"].map(_CATEGORIES).astype(object).fillna("kernel"))
        arguments = _arguments(table, ("device", "stream", "correlation_id", "bytes", "grid", "block"))
        writer.track(own, f"stream {stream}", table, arguments)


def _host(timeline: Timeline) -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Yield (thread, its ranges, operators and calls), one thread at a time."""
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {}
    for table, category in (
        (timeline.ranges, "user_annotation"),
        (timeline.operators, "cpu_op"),
        (timeline.api, "cuda_runtime"),
    ):
        columns = [name for name in ("name", "start", "end", "correlation_id") if name in table.columns]
        for thread, rows in table.groupby("thread", observed=True).indices.items():
            parts.setdefault(str(thread), []).append(table[columns].iloc[rows].assign(cat=category))
    for thread in sorted(parts):
        joined = pd.concat([part.astype({"name": object}) for part in parts.pop(thread)], ignore_index=True)
        if "correlation_id" in joined:
            joined["correlation_id"] = joined["correlation_id"].fillna(-1).astype("int64")
        yield thread, joined


def _arguments(table: "pd.DataFrame", wanted: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that makes the args of a row from the columns of the table, under Kineto's names."""
    plain = [name for name in wanted if name in table.columns]
    shapes = [name for name in ("grid", "block") if name in wanted and f"{name}_x" in table.columns]

    def make(row: dict[str, Any]) -> dict[str, Any]:
        found = {name.removesuffix("_id"): row[name] for name in plain if row[name] not in (-1, "")}
        for name in shapes:
            if row[f"{name}_x"] > 0:
                found[name] = [row[f"{name}_{axis}"] for axis in "xyz"]
        return found

    return make


class _Writer:
    """Writes events as they arrive; keeps only tracks in memory."""

    def __init__(self, file: BinaryIO, base: int) -> None:
        self._file = file
        self._base = base
        self._lines: list[str] = []
        self._first = True
        self._tracks: dict[tuple[int, str], list[tuple[int, list[int]]]] = {}
        self._threads: dict[int, int] = {}
        self._texts: dict[str, str] = {}
        self.slices = 0

    def process(self, pid: int, name: str) -> None:
        if pid not in self._threads:
            self._threads[pid] = 0
            self._metadata("process_name", pid, 0, {"name": name})
            self._metadata("process_sort_index", pid, 0, {"sort_index": pid})

    def track(
        self,
        pid: int,
        name: str,
        table: "pd.DataFrame",
        arguments: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: {},
    ) -> None:
        """Write one slice per row."""
        for row in _rows(table):
            start, length = row["start"], max(0, row["end"] - row["start"])
            tid = self._lane(pid, name, start, start + length)
            time = _microseconds(start - self._base)
            own = arguments(row)
            args = f', "args": {json.dumps(own)}' if own else ""
            self._event(
                f'{{"ph": "X", "cat": "{row["cat"]}", "name": {self._text(str(row["name"]))}, '
                f'"pid": {pid}, "tid": {tid}, "ts": {time}, "dur": {_microseconds(length)}{args}}}'
            )
            self.slices += 1

    def flush(self) -> None:
        if self._lines:
            self._file.write((("" if self._first else ",\n") + ",\n".join(self._lines)).encode())
            self._first, self._lines = False, []

    def _lane(self, pid: int, name: str, start: int, end: int) -> int:
        """Return the thread of the first lane in which the slice follows the others or nests in them."""
        lanes = self._tracks.setdefault((pid, name), [])
        for tid, stack in lanes:
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or stack[-1] >= end or (len(lanes) == _MOST_LANES and tid == lanes[-1][0]):
                stack.append(end)
                return tid
        tid = self._threads[pid] = self._threads.get(pid, 0) + 1
        lanes.append((tid, [end]))
        self._metadata("thread_name", pid, tid, {"name": name})
        self._metadata("thread_sort_index", pid, tid, {"sort_index": tid})
        return tid

    def _metadata(self, what: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._event(f'{{"ph": "M", "name": "{what}", "pid": {pid}, "tid": {tid}, "ts": 0, "args": {json.dumps(args)}}}')

    def _text(self, name: str) -> str:
        found = self._texts.get(name)
        if found is None:
            if len(self._texts) > 100_000:
                self._texts.clear()
            found = self._texts[name] = json.dumps(name)
        return found

    def _event(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= 4096:
            self.flush()


def _rows(table: "pd.DataFrame") -> Iterator[dict[str, Any]]:
    order = np.lexsort((-table["end"].to_numpy(), table["start"].to_numpy()))
    for begin in range(0, len(table), _ROWS_AT_ONCE):
        part = table.iloc[order[begin : begin + _ROWS_AT_ONCE]]
        columns = [str(name) for name in part.columns]
        for values in zip(*(part[name].tolist() for name in columns), strict=True):
            yield dict(zip(columns, values, strict=True))


def _microseconds(ns: int) -> str:
    """Return exact decimal text; float64 would lose nanoseconds."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}" if ns % 1000 else f"{sign}{ns // 1000}"
