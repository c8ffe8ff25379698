"""What readers of traces return: one timeline per rank, as tables. Times are integer nanoseconds of one clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's trace. Tables are in order of start; a table without rows still has its columns.

    A reader may add columns to those named here. What it adds is said in its own docstring, and users of a timeline ask
    whether the column is there.
    """

    rank: int | None
    """Rank, None where the trace does not say."""
    steps: "pd.DataFrame"
    """step, start, end: the marked iterations that are in the trace as a whole; nsys: thread too."""
    operators: "pd.DataFrame"
    """name, thread, start, end, self_ns (less what it called), outermost (called by no other operator)."""
    kernels: "pd.DataFrame"
    """name, kind (kernel | memcpy | memset | graph), device, stream, start, end: work on a GPU. A graph is a CUDA graph
    that was recorded as one piece; nsys: correlation_id, bytes, grid and block sizes too."""
    ranges: "pd.DataFrame"
    """name, thread, start, end: named regions of the program, such as the phases of a step ("bertbench:forward":
    domain, colon, name); nsys: domain, payload, json, cut too."""
    source: str = ""
    """What wrote the trace, with its version where the trace says it."""
    process: int | None = None
    """Process id, None where the trace does not say."""
    problems: tuple[str, ...] = ()
    """What the trace should hold and does not, or what of it could not be read: one sentence each."""
    devices: Mapping[int, str] = field(default_factory=dict)
    """GPU name by device number, as far as the trace says."""
