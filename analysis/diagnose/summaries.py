"""Findings from tables of totals (nsys stats) and of collectives (nccl-tests)."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.counters import Summary
from analysis.diagnose.advice import OF_KERNELS, Context, advised
from analysis.diagnose.finding import Finding, distinct, short_name
from analysis.diagnose.rules_communication import bandwidth
from analysis.names import COMMUNICATION, MOVES_MEMORY, family, has_fused_optimizer
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

_NAMES = {"kernels": "kernel_totals", "copies": "copy_totals", "api": "api_totals", "ranges": "range_totals"}


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all tables, in their order; a name that comes again ends in _2, _3, ..."""
    made = [bandwidth(one) if one.what == "collectives" else _totals(one) for one in summaries]
    return distinct([finding for each in made for finding in each])


def communication_share(summaries: Sequence[Summary]) -> list[Finding]:
    """Return kernel_families of totals of kernels, with the share of communication, without advice."""
    families = [one for one in findings(summaries) if one.name.startswith("kernel_families")]
    return [dataclasses.replace(one, advice=()) for one in families]


def _totals(summary: Summary) -> list[Finding]:
    """Return the sums by name, the largest first; of kernels those by family too."""
    name, title, table = _NAMES[summary.what], summary.title, summary.table
    if not table.filter(like="total_").to_numpy().any():
        return [Finding(name, title, table, "The table has no row with a time.")]
    table = table.groupby("name", sort=False, observed=True).sum(numeric_only=True).reset_index()
    if "total_ns" in table:
        table["total_ms"] = table.pop("total_ns") / 1e6
        table["average_us"] = table["total_ms"] * 1e3 / table["count"]
    total = "total_ms" if "total_ms" in table else "total_bytes"
    table = table.sort_values(total, ascending=False, kind="stable", ignore_index=True)
    longest = short_name(str(table["name"].iloc[0]))
    if summary.what == "ranges":  # they nest: their totals count time twice
        return [Finding(name, title, table, f"{longest} is the longest range; totals include nested ranges.")]
    table["share"] = table[total] / table[total].sum()
    sentence = f"{percent(table['share'].iloc[0])} of the total is {longest}."
    if summary.what != "kernels":
        return [Finding(name, title, table, sentence)]
    table.insert(1, "family", table["name"].astype(str).map(family))
    return [Finding(name, title, table, sentence), _families(title, table)]


def _families(title: str, kernels: "pd.DataFrame") -> Finding:
    columns = {"kernels": ("name", "count"), **{one: (one, "sum") for one in ("count", "total_ms", "share")}}
    table = kernels.groupby("family", sort=False).agg(**columns)
    share = table.sort_values("total_ms", ascending=False, kind="stable")["share"]
    moving, talking = (float(share[share.index.isin(kinds)].sum()) for kinds in (MOVES_MEMORY, [COMMUNICATION]))
    sentence = f"{percent(share.iloc[0])} of the kernels' time is {share.index[0]}, "
    sentence += f"{percent(talking)} communication, overlapped or not."
    seen = f"work that only moves memory takes {percent(moving)} of the kernels' time"
    remedy = f"fuse it {Context().fusing(has_fused_optimizer(kernels['name']))}"
    advice = advised("fusion", seen, remedy, moving, OF_KERNELS)
    table = table.loc[share.index].reset_index()
    return Finding("kernel_families", f"{title}: by family", table, sentence, advice)
