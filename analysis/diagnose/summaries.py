"""Findings from tables of totals and logs of nccl-tests."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.counters import Summary
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import OF_KERNELS, Finding, distinct, number, short_name, slug
from analysis.metrics.communication.collectives import alpha_beta
from analysis.names import COMMUNICATION, MOVES_MEMORY, family, has_fused_optimizer
from analysis.wording import percent, traffic

if TYPE_CHECKING:
    import pandas as pd

_NOTHING = "The table has no row with a time."
_RISING = 1.1
"""If the largest size has more than this times the bandwidth of every smaller one, the peak was not reached."""


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all summaries, in their order; a name that comes again ends in _2, _3, ..."""
    makers = {"kernels": _kernels, "collectives": _collectives, **dict.fromkeys(_FACTS, _totals)}
    return distinct([one for summary in summaries for one in makers.get(summary.what, _anything)(summary)])


def communication_share(summaries: Sequence[Summary]) -> list[Finding]:
    """Return kernel_families of summaries of kernels, with the share of communication in the kernels' time.

    Totals do not say what of it overlaps with computation.
    """
    shares = []
    for one in findings([summary for summary in summaries if summary.what == "kernels"]):
        if one.name.startswith("kernel_families"):
            share = float(one.table.loc[one.table["family"] == COMMUNICATION, "share"].sum())
            sentence = f"Communication takes {percent(share)} of the kernels' time; totals do not show its overlap."
            shares.append(dataclasses.replace(one, sentence=sentence, advice=()))
    return shares


def _by_name(table: "pd.DataFrame") -> "pd.DataFrame":
    """Rows of one name added up, largest first: name, count, total_ms, average_us, share, cumulative_share."""
    import pandas as pd

    if "total_ns" not in table:
        return pd.DataFrame(columns=["name", "count", "total_ms"]).astype({"total_ms": "float64"})
    sums = table.groupby("name", sort=False, observed=True)[["count", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    frame = pd.DataFrame({"name": sums["name"].astype(str), "count": sums["count"], "total_ms": sums["total_ns"] / 1e6})
    frame["average_us"] = (sums["total_ns"] / 1e3 / sums["count"]).where(sums["count"] > 0)
    whole = float(frame["total_ms"].sum())
    frame["share"] = frame["total_ms"] / whole if whole else float("nan")
    frame["cumulative_share"] = frame["share"].cumsum()
    return frame


def _kernels(summary: Summary) -> Iterator[Finding]:
    table = _by_name(summary.table)
    if not (total := table["total_ms"].sum()):
        yield Finding("kernel_totals", summary.title, summary.table, _NOTHING)
        return
    table.insert(1, "family", table["name"].map(family))
    first = table.iloc[0]
    sentence = f"{short_name(first['name'])} takes {percent(first['share'])} of the kernels' {number(total)} ms."
    yield Finding("kernel_totals", summary.title, table, sentence)
    families = table.groupby("family", sort=False).agg(
        kernels=("name", "count"), count=("count", "sum"), total_ms=("total_ms", "sum"), share=("share", "sum")
    )
    families = families.sort_values("total_ms", ascending=False, kind="stable").reset_index()
    top, moving = families.iloc[0], float(families.loc[families["family"].isin(MOVES_MEMORY), "share"].sum())
    advice: tuple[Advice, ...] = ()
    if moving >= LEAST:
        seen = f"kernels that only move memory take {percent(moving)} of the kernels' time"
        remedy = f"fuse them {Context().fusing(has_fused_optimizer(table['name']))}"
        advice = (Advice(cause="fusion", seen=seen, remedy=remedy, saves=moving, of=OF_KERNELS),)
    sentence = f"{top['family']} kernels take {percent(top['share'])} of the kernels' time."
    yield Finding("kernel_families", f"{summary.title}: by family", families, sentence, advice)


_FACTS = {
    "copies": ("copy_totals", "is the largest kind of copy"),
    "api": ("api_totals", "takes {share} of the calls' time"),
    "ranges": ("range_totals", "is the longest range; totals include nested ranges"),
}
"""Kind of summary: name of its finding, and what is said of the largest row."""


def _totals(summary: Summary) -> Iterator[Finding]:
    table, (name, fact) = summary.table, _FACTS[summary.what]
    frame = _by_name(table)
    if summary.what == "ranges":  # ranges nest: their totals count time twice
        frame = frame.drop(columns=["share", "cumulative_share"], errors="ignore")
    if summary.what == "copies" and "total_bytes" in table and "total_ns" in table:
        sizes = table.groupby("name", sort=False, observed=True)["total_bytes"].sum(min_count=1)
        frame["total_bytes"] = frame["name"].map(sizes)
        frame["gb_per_second"] = (frame["total_bytes"] / frame["total_ms"] / 1e6).where(frame["total_ms"] > 0)
    elif summary.what == "copies" and "total_bytes" in table:
        frame = table.sort_values("total_bytes", ascending=False, ignore_index=True)
    if not len(frame):
        yield Finding(name, summary.title, table, _NOTHING)
        return
    first = frame.iloc[0]
    sentence = f"{short_name(str(first['name']))} {fact.format(share=percent(first.get('share')))}."
    yield Finding(name, summary.title, frame, sentence)


def _anything(summary: Summary) -> Iterator[Finding]:
    yield Finding(slug(summary.what), summary.title, summary.table)


def _collectives(summary: Summary) -> Iterator[Finding]:
    """Yield the summary of a test by placement, and its sizes, the largest first."""
    import pandas as pd

    table = summary.table
    frame = pd.DataFrame([_placement(summary, str(key), part) for key, part in table.groupby("placement", sort=False)])
    best, wrong = frame.iloc[int(frame["peak_busbw_gb_s"].to_numpy().argmax())], int(frame["wrong_rows"].sum())
    sizes = table[table["placement"] == best["placement"]]
    smaller = sizes.loc[sizes["size_bytes"] < sizes["size_bytes"].max(), "busbw_gb_s"].max()
    peak = f"{best['peak_busbw_gb_s']:.4g} GB/s"
    advice: tuple[Advice, ...] = ()
    if wrong:
        sentence, remedy = f"{wrong} rows have wrong results", "fix that first (driver, NCCL, a bad link)"
        advice = (Advice(cause="machine", seen=sentence, remedy=remedy, unknown="until then no time counts"),)
        sentence += ": until that is fixed no time counts."
    elif not best["peak_busbw_gb_s"]:
        sentence = "Every bandwidth is 0: all messages are too small; measure up to 1 GB (-e 1G)."
    elif not best["peak_busbw_gb_s"] <= _RISING * smaller:
        sentence = f"The bandwidth still rises at the largest size, {peak}: measure up to 1 GB (-e 1G)."
    else:
        sentence = f"The links carry up to {peak}, and half of it from {traffic(int(best['half_peak_from_bytes']))} on."
    yield Finding("collective_bandwidth", f"{summary.title}: bandwidth", frame, sentence, advice)
    unsaid = [name for name, value in (("root", -1), ("wrong", -1), ("redop", "")) if (table[name] == value).all()]
    by_size = table.drop(columns=unsaid).sort_values(
        ["size_bytes", "placement"], ascending=False, kind="stable", ignore_index=True
    )
    yield Finding("collective_sizes", f"{summary.title}: by size", by_size)


def _placement(summary: Summary, placement: str, part: "pd.DataFrame") -> dict[str, object]:
    best = part.iloc[int(part["busbw_gb_s"].to_numpy().argmax())]
    half = part.loc[part["busbw_gb_s"] >= best["busbw_gb_s"] / 2, "size_bytes"].min() if best["busbw_gb_s"] else None
    fit = alpha_beta(part["size_bytes"].to_numpy(np.float64), part["time_us"].to_numpy(np.float64))
    row = {"collective": best["collective"], "placement": placement, "ranks": summary.facts.get("ranks")}
    row |= {"sizes": len(part), "peak_busbw_gb_s": best["busbw_gb_s"], "peak_at_bytes": int(best["size_bytes"])}
    row |= {"half_peak_from_bytes": None if half is None else int(half), "shortest_us": part["time_us"].min()}
    row |= dict(zip(("latency_us", "fitted_algbw_gb_s", "fit_median_error"), fit or (None,) * 3, strict=True))
    return {**row, "wrong_rows": int((part["wrong"] > 0).sum())}
