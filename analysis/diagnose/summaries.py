"""Findings from tables of totals (nsys stats) and of collectives (nccl-tests)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.counters import Summary
from analysis.diagnose.advice import OF_KERNELS, Context, advised
from analysis.diagnose.finding import Finding, distinct, number, short_name
from analysis.diagnose.rules_communication import bandwidth
from analysis.names import COMMUNICATION, MOVES_MEMORY, family, has_fused_optimizer
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

_FACTS = {
    "kernels": ("kernel_totals", "takes {share} of the kernels' {total} ms"),
    "copies": ("copy_totals", "is the largest kind of copy"),
    "api": ("api_totals", "takes {share} of the calls' {total} ms"),
    "ranges": ("range_totals", "is the longest range; totals include nested ranges"),
}
"""Kind of table: name of its finding, and what is said of the largest row."""


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all tables, in their order; a name that comes again ends in _2, _3, ..."""
    makers = {"collectives": bandwidth, "kernels": _kernels}
    return distinct([one for summary in summaries for one in makers.get(summary.what, _totals)(summary)])


def communication_share(summaries: Sequence[Summary]) -> list[Finding]:
    """Return kernel_families of totals of kernels, with the share of communication in the kernels' time."""
    shares = []
    for summary in summaries:
        if summary.what == "kernels" and "total_ns" in summary.table and summary.table["total_ns"].sum():
            table = _families(_by_name(summary.table))
            share = percent(float(table.loc[table["family"] == COMMUNICATION, "share"].sum()))
            sentence = f"Communication takes {share} of the kernels' time; totals do not show its overlap."
            shares.append(Finding("kernel_families", f"{summary.title}: by family", table, sentence))
    return distinct(shares)


def _totals(summary: Summary) -> list[Finding]:
    """Return the rows of a table, those of one name added up, the largest first."""
    (name, fact), frame = _FACTS[summary.what], summary.table
    if "total_ns" in frame:
        frame = _by_name(frame)
    elif "total_bytes" in frame:
        frame = frame.sort_values("total_bytes", ascending=False, ignore_index=True)
    if not frame.filter(like="total_").to_numpy().any():
        return [Finding(name, summary.title, summary.table, "The table has no row with a time.")]
    share = percent(frame["share"].iloc[0]) if "share" in frame else ""
    total = number(float(frame["total_ms"].sum())) if "total_ms" in frame else ""
    if summary.what == "ranges":  # ranges nest: their totals count time twice
        frame = frame.drop(columns=["share", "cumulative_share"])
    sentence = f"{short_name(str(frame['name'].iloc[0]))} {fact.format(share=share, total=total)}."
    return [Finding(name, summary.title, frame, sentence)]


def _kernels(summary: Summary) -> list[Finding]:
    """Return kernel_totals and kernel_families, with advice on what only moves memory."""
    (finding,) = _totals(summary)
    if "share" not in finding.table:
        return [finding]
    finding.table.insert(1, "family", finding.table["name"].map(family))
    families = _families(finding.table)
    moving = float(families.loc[families["family"].isin(MOVES_MEMORY), "share"].sum())
    remedy = f"fuse it {Context().fusing(has_fused_optimizer(finding.table['name']))}"
    seen = f"work that only moves memory takes {percent(moving)} of the kernels' time"
    sentence = f"{families['family'].iloc[0]} kernels take {percent(families['share'].iloc[0])} of the kernels' time."
    advice = advised("fusion", seen, remedy, moving, OF_KERNELS)
    return [finding, Finding("kernel_families", f"{summary.title}: by family", families, sentence, advice)]


def _by_name(table: "pd.DataFrame") -> "pd.DataFrame":
    """Rows of one name added up, largest first: name, count, total_ms, average_us, share, cumulative_share."""
    import pandas as pd

    sums = table.groupby("name", sort=False, observed=True)[["count", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    frame = pd.DataFrame({"name": sums["name"].astype(str), "count": sums["count"], "total_ms": sums["total_ns"] / 1e6})
    frame["average_us"] = (sums["total_ns"] / 1e3 / sums["count"]).where(sums["count"] > 0)
    whole = float(frame["total_ms"].sum())
    frame["share"] = frame["total_ms"] / whole if whole else float("nan")
    frame["cumulative_share"] = frame["share"].cumsum()
    return frame


def _families(table: "pd.DataFrame") -> "pd.DataFrame":
    groups = table.groupby(table["name"].map(family).rename("family"), sort=False)
    sums = {"kernels": ("name", "count"), "count": ("count", "sum"), "total_ms": ("total_ms", "sum")}
    families = groups.agg(**sums, share=("share", "sum"))
    return families.sort_values("total_ms", ascending=False, kind="stable").reset_index()
