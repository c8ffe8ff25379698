"""Named ranges of the program (NVTX, record_function): by name over the ranks, and those of one step as a tree.

In the tree times are relative to the step. Ranges of other threads (autograd's, a data loader's) belong to the step by
time: their outermost ones are children of the step, beside those of its own thread. A range that reaches over an end of
the step counts with the part inside; one that contains the step and more (the run, the capture) is not of the step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from analysis.spans import own_times
from analysis.timeline import Timeline
from common.errors import UsageError
from records.schema import RANGE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd


PREFIX = "bertbench:"


@dataclass(frozen=True, slots=True)
class RangeNode:
    """One range of a step."""

    name: str
    """Name, without the domain where it is bertbench's."""
    depth: int
    """0 for the step, 1 for what lies directly in it."""
    thread: str
    """Thread, as the trace names it."""
    own_thread: bool
    """Whether it ran on the thread of the step."""
    start_ms: float
    """Start, since the step's start."""
    duration_ms: float
    """Length of the part inside the step."""
    share: float
    """Length over the step's, 0 to 1."""
    children: "tuple[RangeNode, ...]" = field(default=(), repr=False)
    """What it contains, in order of start."""


def range_tree(timeline: Timeline, step: int) -> RangeNode:
    """Return the tree of one step."""
    found = timeline.steps[timeline.steps["step"] == step]
    if not len(found):
        have = ", ".join(str(number) for number in timeline.steps["step"].tolist()) or "none"
        raise UsageError("option-value", f"step {step} is not completely in the trace: give one of {have}")
    row = found.iloc[0]
    begin, end = int(row["start"]), int(row["end"])
    ranges = timeline.ranges
    starts, ends = ranges["start"], ranges["end"]
    contains = (starts <= begin) & (ends >= end) & ((starts < begin) | (ends > end))
    inside = (starts < end) & ((ends > begin) | (starts >= begin)) & ~contains
    spans = [
        _Span(str(name), str(thread), max(start, begin), min(stop, end))
        for name, thread, start, stop in zip(
            *(ranges.loc[inside, column].tolist() for column in ("name", "thread", "start", "end")), strict=True
        )
    ]
    tops = _nest(spans)
    thread = str(row["thread"]) if "thread" in timeline.steps.columns else _busiest(tops)
    root = _Span(f"step {step}", thread, begin, end, children=tops)
    return _node(root, 0, begin, end - begin, thread)


@dataclass(slots=True)
class _Span:
    name: str
    thread: str
    start: int
    end: int
    children: "list[_Span]" = field(default_factory=list)


def _nest(spans: Iterable[_Span]) -> list[_Span]:
    """Put each span into the smallest one of its thread that contains it; return those in none, in order of start."""
    tops: list[_Span] = []
    open_: dict[str, list[_Span]] = {}
    for span in sorted(spans, key=lambda item: (item.start, -item.end)):
        stack = open_.setdefault(span.thread, [])
        while stack and stack[-1].end <= span.start:
            stack.pop()
        # Start/end ranges may reach out of those in which they began.
        parent = next((outer for outer in reversed(stack) if outer.end >= span.end), None)
        (tops if parent is None else parent.children).append(span)
        stack.append(span)
    return tops


def _busiest(tops: Sequence[_Span]) -> str:
    sums: dict[str, int] = {}
    for span in tops:
        sums[span.thread] = sums.get(span.thread, 0) + span.end - span.start
    return max(sums, key=lambda thread: sums[thread]) if sums else ""


def _node(span: _Span, depth: int, begin: int, length: int, thread: str) -> RangeNode:
    return RangeNode(
        name=span.name.removeprefix(PREFIX),
        depth=depth,
        thread=span.thread,
        own_thread=span.thread == thread,
        start_ms=(span.start - begin) / 1e6,
        duration_ms=(span.end - span.start) / 1e6,
        share=(span.end - span.start) / length if length else 0.0,
        children=tuple(_node(child, depth + 1, begin, length, thread) for child in span.children),
    )


def range_rows(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per name of a range, over all ranks, the longest total first.

    Returns:
        RANGE_COLUMNS: times on the CPU. total_ms is from entering to leaving, what lies within counted too (inclusive);
        self_ms leaves out what lies within on the same thread, so that its sum is the time of threads in any range.
        Ranges are those that begin in the marked steps, or all where none is marked.
    """
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for timeline in timelines:
        ranges = timeline.ranges
        if len(ranges):
            ranges = ranges[timeline.inside(ranges["start"].to_numpy(dtype=np.int64))]
        if len(ranges):
            starts, ends = (ranges[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
            own = own_times(pd.factorize(ranges["thread"])[0].astype(np.int64), starts, ends)
            names = ranges["name"].astype(str).to_numpy()
            rows = {"name": names, "ms": (ends - starts) / 1e6, "own_ms": own / 1e6, "member": len(parts)}
            parts.append(pd.DataFrame(rows))
    if not parts:
        return pd.DataFrame({name: [] for name in RANGE_COLUMNS})
    grouped = pd.concat(parts, ignore_index=True).groupby("name", sort=False)
    found = grouped["ms"].agg(["size", "sum", "mean", "min", "max"]).reset_index()
    found.columns = ["name", "count", "total_ms", "mean_ms", "min_ms", "max_ms"]
    found.insert(1, "ranks", grouped["member"].nunique().to_numpy())
    found.insert(4, "self_ms", grouped["own_ms"].sum().to_numpy())
    return found.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
