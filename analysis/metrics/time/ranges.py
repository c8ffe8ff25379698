"""Named ranges of the program (NVTX, record_function), by name over the ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.spans import own_times
from analysis.timeline import Timeline
from records.schema import RANGE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "bertbench:"


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
