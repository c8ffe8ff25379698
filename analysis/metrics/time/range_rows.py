"""Named ranges of the program (NVTX, record_function) by name: how often, how long."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.nesting import own_times
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "ranks", "count", "total_ms", "self_ms", "mean_ms", "min_ms", "max_ms")


def range_rows(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per name of a range, over all ranks, the longest total first.

    Returns:
        COLUMNS: times on the CPU. total_ms is from entering to leaving, what lies within counted too (inclusive);
        self_ms leaves out what lies within on the same thread, so that its sum is the time of threads in any range.
        Ranges are those that begin in the marked steps, or all where none is marked.
    """
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for timeline in timelines:
        ranges = timeline.ranges
        if len(ranges) and len(timeline.steps):
            begins, first, last = ranges["start"], timeline.steps["start"].min(), timeline.steps["end"].max()
            ranges = ranges[(begins >= first) & (begins < last)]
        if len(ranges):
            starts, ends = (ranges[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
            own = own_times(pd.factorize(ranges["thread"])[0].astype(np.int64), starts, ends)
            names = ranges["name"].astype(str).to_numpy()
            rows = {"name": names, "ms": (ends - starts) / 1e6, "own_ms": own / 1e6, "member": len(parts)}
            parts.append(pd.DataFrame(rows))
    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    grouped = pd.concat(parts, ignore_index=True).groupby("name", sort=False)
    found = grouped["ms"].agg(["size", "sum", "mean", "min", "max"]).reset_index()
    found.columns = ["name", "count", "total_ms", "mean_ms", "min_ms", "max_ms"]
    found.insert(1, "ranks", grouped["member"].nunique().to_numpy())
    found.insert(4, "self_ms", grouped["own_ms"].sum().to_numpy())
    return found.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
