"""Named ranges of the program (NVTX, record_function): by name over the ranks, and those of one step as a tree.

In the tree times are relative to the step. Ranges of other threads (autograd's, a data loader's) belong to the step by
time: their outermost ones are children of the step, beside those of its own thread. A range that reaches over an end of
the step counts with the part inside; one that contains the step and more (the run, the capture) is not of the step.
"""

from collections import Counter
from collections.abc import Sequence
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


@dataclass(slots=True)
class RangeNode:
    """One range of a step."""

    name: str
    """Name, without the domain where it is bertbench's."""
    depth: int
    """0 for the step, 1 for what lies directly in it."""
    thread: str
    own_thread: bool
    """Whether it ran on the thread of the step."""
    start_ms: float
    """Start, since the step's start."""
    duration_ms: float
    """Length of the part inside the step."""
    share: float
    """Length over the step's, 0 to 1."""
    children: "list[RangeNode]" = field(default_factory=list, repr=False)
    """What it contains, in order of start."""


def range_tree(timeline: Timeline, step: int) -> RangeNode:
    """Return the tree of one step."""
    import pandas as pd

    marked = timeline.steps[timeline.steps["step"] == step]
    if not len(marked):
        have = ", ".join(str(number) for number in timeline.steps["step"].tolist()) or "none"
        raise UsageError("option-value", f"step {step} is not completely in the trace: give one of {have}")
    begin, end = int(marked["start"].iloc[0]), int(marked["end"].iloc[0])
    ranges = timeline.ranges
    starts, ends = ranges["start"], ranges["end"]
    contains = (starts <= begin) & (ends >= end) & ((starts < begin) | (ends > end))
    inside = ranges[(starts < end) & ((ends > begin) | (starts >= begin)) & ~contains]
    spans = pd.DataFrame({"name": inside["name"].astype(str), "thread": inside["thread"].astype(str)})
    spans["start"], spans["end"] = inside["start"].clip(lower=begin), inside["end"].clip(upper=end)
    spans = spans.sort_values(["start", "end"], ascending=[True, False], kind="stable")
    root = RangeNode(f"step {step}", 0, "", True, 0.0, (end - begin) / 1e6, 1.0)
    open_: dict[str, list[tuple[int, RangeNode]]] = {}
    for name, thread, start, stop in spans.itertuples(index=False):
        stack = open_.setdefault(thread, [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        # Start/end ranges may reach out of those in which they began.
        parent = next((node for last, node in reversed(stack) if last >= stop), root)
        length = stop - start
        share = length / (end - begin) if end > begin else 0.0
        node = RangeNode(
            name.removeprefix(PREFIX), parent.depth + 1, thread, True, (start - begin) / 1e6, length / 1e6, share
        )
        parent.children.append(node)
        stack.append((stop, node))
    times = Counter[str]()
    for child in root.children:
        times[child.thread] += round(child.duration_ms * 1e6)
    busiest = times.most_common(1)[0][0] if times else ""
    root.thread = str(marked["thread"].iloc[0]) if "thread" in marked.columns else busiest
    _mark(root, root.thread)
    return root


def _mark(node: RangeNode, thread: str) -> None:
    node.own_thread = node.thread == thread
    for child in node.children:
        _mark(child, thread)


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
            self_ns = own_times(pd.factorize(ranges["thread"])[0].astype(np.int64), starts, ends)
            names = ranges["name"].astype(str).to_numpy()
            rows = {"name": names, "ms": (ends - starts) / 1e6, "self_ms": self_ns / 1e6, "member": len(parts)}
            parts.append(pd.DataFrame(rows))
    if not parts:
        return pd.DataFrame({name: [] for name in RANGE_COLUMNS})
    grouped = pd.concat(parts, ignore_index=True).groupby("name", sort=False)
    table = grouped["ms"].agg(["size", "sum", "mean", "min", "max"]).reset_index()
    table.columns = ["name", "count", "total_ms", "mean_ms", "min_ms", "max_ms"]
    table.insert(1, "ranks", grouped["member"].nunique().to_numpy())
    table.insert(4, "self_ms", grouped["self_ms"].sum().to_numpy())
    return table.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
