"""Named ranges of the program (NVTX, record_function) by name: how often, how long."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "ranks", "count", "total_ms", "mean_ms", "min_ms", "max_ms")


def range_rows(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per name of a range, over all ranks, the longest total first.

    Returns:
        COLUMNS: times on the CPU, from entering to leaving; a range within another counts in both. Ranges are those
        that begin in the marked steps, or all where none is marked.
    """
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for timeline in timelines:
        ranges = timeline.ranges
        if len(ranges) and len(timeline.steps):
            begins, first, last = ranges["start"], timeline.steps["start"].min(), timeline.steps["end"].max()
            ranges = ranges[(begins >= first) & (begins < last)]
        if len(ranges):
            length = (ranges["end"] - ranges["start"]).to_numpy() / 1e6
            names = ranges["name"].astype(str).to_numpy()
            parts.append(pd.DataFrame({"name": names, "ms": length, "member": len(parts)}))
    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    grouped = pd.concat(parts, ignore_index=True).groupby("name", sort=False)
    found = grouped["ms"].agg(["size", "sum", "mean", "min", "max"]).reset_index()
    found.columns = ["name", "count", "total_ms", "mean_ms", "min_ms", "max_ms"]
    found.insert(1, "ranks", grouped["member"].nunique().to_numpy())
    return found.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
