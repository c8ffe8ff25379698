"""Traces as Kineto writes them."""

import gzip
import json
from pathlib import Path
from typing import Any


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
