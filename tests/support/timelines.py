"""Small timelines, given as tuples, and traces as Kineto writes them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.timeline import (
    API_COLUMNS,
    COLLECTIVE_COLUMNS,
    KERNEL_COLUMNS,
    OPERATOR_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Timeline,
)

Rows = Sequence[tuple[Any, ...]]


def table(rows: Rows, columns: dict[str, str]) -> pd.DataFrame:
    """Return rows in the order of their starts."""
    frame = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    return frame.sort_values("start", kind="stable", ignore_index=True)


def filled(rows: Rows, least: int, *defaults: Any) -> Rows:
    """Return rows of at least so many values with those that they leave out."""
    return [(*row, *defaults[len(row) - least :]) for row in rows]


def timeline(
    rank: int | None = 0,
    *,
    steps: Rows = (),
    kernels: Rows = (),
    api: Rows = (),
    ranges: Rows = (),
    operators: Rows = (),
    collectives: Rows = (),
    host: Rows = (),
    world_size: int | None = None,
) -> Timeline:
    """Build a timeline; times are ns.

    Args:
        rank: its rank.
        steps: (step, start, end).
        kernels: (name, stream, start, end[, correlation_id[, kind]]), on device 0.
        api: (name, start, end[, correlation_id[, thread]]).
        ranges: (name, start, end[, thread]).
        operators: (name, start, end[, thread[, outermost]]).
        collectives: (kind, start, end[, bytes[, correlation_id[, stream[, group[, group_size[, seq]]]]]]); of a GPU
            where there are kernels: add its kernel to `kernels` too.
        host: (name, start, end[, thread]).
        world_size: ranks of the job.
    """
    launched = {**KERNEL_COLUMNS, "correlation_id": "int64"}
    device = 0 if kernels else -1
    works, calls = filled(kernels, 4, -1, "kernel"), filled(api, 3, -1, "main")
    spans, called = filled(ranges, 3, "main"), filled(operators, 3, "main", True)
    talks = filled(collectives, 3, -1, -1, 7 if kernels else -1, "", -1, -1)
    return Timeline(
        rank=rank,
        steps=table(steps, STEP_COLUMNS),
        kernels=table([(n, kind, 0, stream, s, e, c) for n, stream, s, e, c, kind in works], launched),
        api=table([(n, thread, s, e, c) for n, s, e, c, thread in calls], API_COLUMNS),
        ranges=table([(n, thread, s, e) for n, s, e, thread in spans], SPAN_COLUMNS),
        operators=table([(n, thread, s, e, e - s, outer) for n, s, e, thread, outer in called], OPERATOR_COLUMNS),
        collectives=table(
            [
                (f"nccl:{k}", k, device, stream, s, e, size, "", group, members, seq, c)
                for k, s, e, size, c, stream, group, members, seq in talks
            ],
            COLLECTIVE_COLUMNS,
        ),
        host=table([(row[0], *(row[3:] or ("main",)), *row[1:3]) for row in host], SPAN_COLUMNS),
        world_size=world_size,
    )


def event(name: str, start: Any, duration: Any, category: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """Return an event with a duration, us."""
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1, **more}


def call(start: Any, duration: Any, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    """Return a call of the CUDA runtime: one that launches the work of this correlation, if it is not named."""
    return event(name, start, duration, "cuda_runtime", args={"correlation": correlation})


def kernel(name: str, start: Any, duration: Any, stream: int = 7, **args: Any) -> dict[str, Any]:
    """Return a kernel of GPU 0."""
    return event(name, start, duration, "kernel", args={"device": 0, "stream": stream, **args})


def write(path: Path, events: list[Any], **document: Any) -> Path:
    """Write a trace, gzip-compressed where its name says so."""
    text = json.dumps({"traceEvents": events, **document})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
