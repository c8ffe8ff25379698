"""Recordings of a GPU whose work is known by construction: it computes, talks, does both, or rests."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.profiles import sqlite_with

GEMM, ALL_REDUCE = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"
BLOCKS, SMS = 33, 132
"""Of every kernel that computes, of the GPU: one of them alone fills a quarter."""

Span = tuple[str, int, int, int]  # kernel name, stream, start, end in ns


@dataclass
class KnownTrace:
    """Spans of one GPU, and what they come to."""

    spans: list[Span] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    nanoseconds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("compute", "both", "talk", "idle"), 0))
    """Length of all stretches of each kind."""

    @property
    def filled(self) -> float:
        """Integral over time of the share of the GPU that the grids fill, ns: never more than three kernels at once."""
        return BLOCKS / SMS * sum(end - start for _, _, start, end in self.spans)

    @property
    def window(self) -> int:
        """From the first step's start to the last one's end, ns."""
        return sum(self.nanoseconds.values())


def make(seed: int, steps: int = 20, stretches: int = 40) -> KnownTrace:
    """Return steps of so many stretches each, of 5 to 400 us; whole microseconds, which every format keeps."""
    choose, found, now = random.Random(seed), KnownTrace(), 1_000_000
    for _ in range(steps):
        begin = now
        kind = "idle"
        for _ in range(stretches):
            # No two alike in a row.
            kind = choose.choice([other for other in found.nanoseconds if other != kind])
            length = 1000 * choose.randint(5, 400)
            found.nanoseconds[kind] += length
            if kind in ("compute", "both"):
                found.spans += _kernels(choose, now, now + length)
            if kind in ("talk", "both"):
                found.spans.append((ALL_REDUCE, 20, now, now + length))
            now += length
        found.steps.append((begin, now))
    return found


def _kernels(choose: random.Random, begin: int, end: int) -> Iterator[Span]:
    """Cover a stretch with two kernels one after another, and a third one over both on a stream of its own."""
    middle = begin + 1000 * choose.randint(1, (end - begin) // 1000 - 1)
    yield GEMM, 7, begin, middle
    yield GEMM, 7, middle, end
    first = begin + 1000 * choose.randint(0, (middle - begin) // 1000 - 1)
    yield GEMM, 13, first, end - 1000 * choose.randint(0, (end - middle) // 1000 - 1)


def write_kineto(trace: KnownTrace, path: Path) -> Path:
    """Write it as the PyTorch profiler does; times in microseconds."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
         "ts": begin / 1000, "dur": (end - begin) / 1000}
        for number, (begin, end) in enumerate(trace.steps)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream,
         "ts": start / 1000, "dur": (end - start) / 1000,
         "args": {"device": 0, "stream": stream, "correlation": number, "grid": [BLOCKS, 1, 1], "block": [128, 1, 1]}}
        for number, (name, stream, start, end) in enumerate(trace.spans)
    ]  # fmt: skip
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": SMS}]}
    about["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 2}  # type: ignore[assignment]
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def write_nsys(trace: KnownTrace, path: Path) -> Path:
    """Write it as an export of Nsight Systems to SQLite."""
    process = 40 << 24
    place = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
    names = {name: number for number, name in enumerate(dict.fromkeys(span[0] for span in trace.spans), start=1)}
    kernels = [
        (start, end, 0, stream, number, process, names[name], names[name], BLOCKS, 1, 1)
        for number, (name, stream, start, end) in enumerate(trace.spans)
    ]
    ranges = [(begin, end, 59, process | 40, f"step {number}", 1) for number, (begin, end) in enumerate(trace.steps)]
    domain = [(0, None, 75, process | 40, "bertbench", 1)]
    tables: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "StringIds": ("id INTEGER, value TEXT", [(number, name) for name, number in names.items()]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            f"{place}, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER",
            list(kernels),
        ),
        "NVTX_EVENTS": (
            "start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, domainId INTEGER",
            [*domain, *ranges],
        ),
        "TARGET_INFO_GPU": ("id INTEGER, name TEXT, smCount INTEGER", [(0, "NVIDIA H100", SMS)]),
    }
    sqlite_with(tables)(path)
    return path


WRITERS: dict[str, tuple[str, Callable[[KnownTrace, Path], Path]]] = {
    "kineto": ("trace-rank0.json", write_kineto),
    "nsys": ("export.sqlite", write_nsys),
}
