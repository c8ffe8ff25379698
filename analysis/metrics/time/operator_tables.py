"""Operators of the CPU by the time that is their own: less what they called, added up over threads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.names import family
from analysis.timeline import Timeline, empty

if TYPE_CHECKING:
    import pandas as pd

OPERATOR_ROW_COLUMNS = {
    "name": "str",
    "family": "str",
    "calls": "int64",
    "self_ns": "int64",
}


def operator_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per operator of a rank's marked steps, or of the whole trace where none is marked.

    Returns:
        OPERATOR_ROW_COLUMNS, in order of first appearance: self_ns is the sum over calls, ns.
    """
    table = timeline.operators
    if len(table) and len(timeline.steps):
        starts = table["start"]
        table = table[(starts >= timeline.steps["start"].min()) & (starts < timeline.steps["end"].max())]
    if not len(table):
        return empty(OPERATOR_ROW_COLUMNS)
    sums = table.groupby("name", sort=False, observed=True)["self_ns"].agg(["size", "sum"]).reset_index()
    sums.columns = ["name", "calls", "self_ns"]
    sums["name"] = sums["name"].astype(str)
    sums.insert(1, "family", [family(name) for name in sums["name"]])
    return sums


def operators_over_ranks(timelines: Sequence[Timeline], by: str = "name") -> "pd.DataFrame":
    """Return the operators of all ranks together, those that take most first.

    Args:
        timelines: one per rank.
        by: "name" or "family".

    Returns:
        name (with by="name"), family, calls, self_ms (own time of all ranks), mean_us (of a call), self_time_share.
    """
    import pandas as pd

    keys = ["name", "family"] if by == "name" else ["family"]
    parts = [rows for timeline in timelines if len(rows := operator_rows(timeline))]
    if not parts:
        return pd.DataFrame({name: [] for name in [*keys, "calls", "self_ms", "mean_us", "self_time_share"]})
    sums = pd.concat(parts).groupby(keys, sort=False)[["calls", "self_ns"]].sum().reset_index()
    sums = sums.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    total = int(sums["self_ns"].sum())
    found = sums[[*keys, "calls"]].copy()
    found["self_ms"] = sums["self_ns"] / 1e6
    found["mean_us"] = sums["self_ns"] / sums["calls"] / 1e3
    found["self_time_share"] = sums["self_ns"] / total if total else float("nan")
    return found
