"""What readers of traces return: one timeline per rank, as tables. Times are integer nanoseconds of one clock."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's trace. Tables are in order of start; a table without rows still has its columns."""

    rank: int | None
    """Rank, None where the trace does not say."""
    steps: "pd.DataFrame"
    """step, start, end: the marked iterations."""
    operators: "pd.DataFrame"
    """name, thread, start, end, self_ns (less what it called), outermost (called by no other operator)."""
    kernels: "pd.DataFrame"
    """name, kind (kernel | memcpy | memset), device, stream, start, end: work on a GPU."""
    ranges: "pd.DataFrame"
    """name, thread, start, end: named regions of the program, such as the phases of a step."""
