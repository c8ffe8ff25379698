"""What readers return of files that hold totals, readings or events instead of single kernels with times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Summary:
    """One table of a file."""

    what: str
    """What a row is: kernels | copies | api | ranges (totals by name), metrics (a profiler's, by kernel), sensors
    (readings over time), collectives (a benchmark of them, by size), run, evaluations and events (a log)."""
    title: str
    """Heading, such as the report's own name: "CUDA GPU Kernel Summary"."""
    table: "pd.DataFrame"
    """Columns carry their unit in the name. kernels, copies, api, ranges: name, count, total_ns, and, where the file
    has them, average_ns, median_ns, min_ns, max_ns, stddev_ns, total_bytes. Others: see the reader. In the
    order of the file."""
    source: str = ""
    """What wrote it, with its version where the file says it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the file says, by name: device, ranks, benchmark, ..."""
    problems: tuple[str, ...] = ()
    """What of it could not be read, one sentence each."""
