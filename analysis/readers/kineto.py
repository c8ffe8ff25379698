"""Traces of the PyTorch profiler (Kineto's Chrome trace JSON), plain or gzip-compressed."""

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.readers.packed import read_bytes
from analysis.timeline import Timeline
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Categories of 2021 (capitals) and of later versions.
_GPU_KINDS = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
_OPERATORS = ("cpu_op", "Operator", "operator")
_RANGES = ("user_annotation",)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")

_STEP_COLUMNS = {"step": "int64", "start": "int64", "end": "int64"}
_SPAN_COLUMNS = {"name": "str", "thread": "str", "start": "int64", "end": "int64"}
_OPERATOR_COLUMNS = {**_SPAN_COLUMNS, "self_ns": "int64", "outermost": "bool"}
_KERNEL_COLUMNS = {"name": "str", "kind": "str", "device": "int64", "stream": "int64", "start": "int64", "end": "int64"}

Span = dict[str, Any]


def read(path: Path) -> Timeline:
    """Read one rank's trace.

    Raises:
        InputError: the file is damaged, or no PyTorch trace; the message names it and says what it seems to be.
    """
    document = _load(path)
    base_ns = _whole(document.get("baseTimeNanoseconds"))
    steps: list[Span] = []
    operators: list[Span] = []
    kernels: list[Span] = []
    ranges: list[Span] = []
    for event in document["traceEvents"]:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = str(event.get("cat", ""))
        span = _span(event, base_ns)
        if span is None:
            continue
        if category in _GPU_KINDS:
            kernels.append({**span, **_place(event), "kind": _GPU_KINDS[category]})
        elif (match := _STEP.match(span["name"])) and category in (*_OPERATORS, *_RANGES):
            steps.append({**span, "step": int(match[1])})
        elif category in _RANGES:
            ranges.append(span)
        elif category in _OPERATORS:
            operators.append(span)
    _nest(operators)
    return Timeline(
        rank=_rank(document, path),
        steps=_frame(steps, _STEP_COLUMNS),
        operators=_frame(operators, _OPERATOR_COLUMNS),
        kernels=_frame(kernels, _KERNEL_COLUMNS),
        ranges=_frame(ranges, _SPAN_COLUMNS),
    )


def _load(path: Path) -> Mapping[str, Any]:
    raw = read_bytes(path, "trace")
    try:
        # Microseconds come with fractions that float64 cannot hold beside 1.7e15; control characters occur in names.
        document = json.loads(raw.decode("utf-8", errors="replace"), parse_float=Decimal, strict=False)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise InputError(
            f"{path} is not complete JSON ({error}): the profiler was ended early, record again"
        ) from error
    if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
        return document
    if isinstance(document, dict) and "nodes" in document:
        raise InputError(f"{path} is a PyTorch execution trace, not a profiler trace: give export_chrome_trace's file")
    raise InputError(f"{path} is JSON but no PyTorch profiler trace: it has no list `traceEvents`")


def _span(event: Mapping[str, Any], base_ns: int) -> Span | None:
    start, duration = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    if start is None or duration is None or duration < 0:
        return None
    start += base_ns
    thread = f"{event.get('pid')}/{event.get('tid')}"
    return {"name": str(event.get("name", "")), "thread": thread, "start": start, "end": start + duration}


def _nanoseconds(value: Any) -> int | None:
    """Microseconds to whole ns; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str | float):
        return None
    try:
        return int((Decimal(value) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _place(event: Mapping[str, Any]) -> dict[str, int]:
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    place = {}
    for name, fallback in (("device", event.get("pid")), ("stream", event.get("tid"))):
        try:
            place[name] = int(str(arguments.get(name, fallback)))
        except (TypeError, ValueError):
            place[name] = -1
    return place


def _rank(document: Mapping[str, Any], path: Path) -> int | None:
    for name in ("bertbench", "distributedInfo"):
        information = document.get(name)
        if isinstance(information, dict) and isinstance(information.get("rank"), int):
            return int(information["rank"])
    match = re.search(r"rank[-_]?(\d+)", path.name)
    return int(match[1]) if match else None


def _nest(operators: list[Span]) -> None:
    """Add self_ns and outermost: on one thread, a span that lies inside another was called by it."""
    operators.sort(key=lambda span: (span["thread"], span["start"], -span["end"]))
    stack: list[Span] = []
    for span in operators:
        while stack and (stack[-1]["thread"] != span["thread"] or stack[-1]["end"] <= span["start"]):
            stack.pop()
        span["self_ns"] = span["end"] - span["start"]
        span["outermost"] = not stack
        if stack:
            inside = min(span["end"], stack[-1]["end"]) - span["start"]
            stack[-1]["self_ns"] = max(0, stack[-1]["self_ns"] - inside)
        stack.append(span)


def _frame(rows: Iterable[Span], columns: Mapping[str, str]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(columns))
    types = {name: kind for name, kind in columns.items() if kind != "str"}
    return frame.astype(types).sort_values("start", kind="stable", ignore_index=True)
