"""Traces as Kineto writes them."""

import gzip
import json
from pathlib import Path
from typing import Any


def event(name: str, start: Any, duration: Any, category: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """Return an event with a duration, us."""
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1, **more}


def write(path: Path, events: list[Any], **document: Any) -> Path:
    """Write a trace, gzip-compressed where its name says so."""
    text = json.dumps({"traceEvents": events, **document})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
