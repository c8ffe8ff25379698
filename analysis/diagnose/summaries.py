"""Findings from tables of totals and logs of nccl-tests."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.counters import Summary
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding, distinct, slug
from analysis.diagnose.sentences import OF_KERNELS, number, short_name
from analysis.metrics.communication.links import alpha_beta
from analysis.names import COMMUNICATION, MOVES_MEMORY, family, has_fused_optimizer
from analysis.wording import percent, traffic

if TYPE_CHECKING:
    import pandas as pd


_NOTHING = "The table has no row with a time."
_RISING = 1.1
"""If the largest size has more than this times the bandwidth of every smaller one, the peak was not reached."""


def collective_findings(summary: Summary) -> Iterator[Finding]:
    """Yield the summary of a test by placement, and its sizes, the largest first."""
    import pandas as pd

    table = summary.table
    rows = [_row(summary, str(key), part) for key, part in table.groupby("placement", sort=False)]
    frame = pd.DataFrame(rows)
    wrong = int(frame["wrong_rows"].sum())
    advice: tuple[Advice, ...] = ()
    if wrong:
        seen, remedy = f"{wrong} rows have wrong results", "fix that first (driver, NCCL, a bad link)"
        advice = (Advice(cause="machine", seen=seen, remedy=remedy, unknown="until then no time counts"),)
    yield Finding("collective_bandwidth", f"{summary.title}: bandwidth", frame, _sentence(frame, summary), advice)
    unsaid = [name for name, value in (("root", -1), ("wrong", -1), ("redop", "")) if (table[name] == value).all()]
    sizes = table.drop(columns=unsaid).sort_values(
        ["size_bytes", "placement"], ascending=False, kind="stable", ignore_index=True
    )
    yield Finding("collective_sizes", f"{summary.title}: by size", sizes)


def _row(summary: Summary, placement: str, part: "pd.DataFrame") -> dict[str, object]:
    best = part.iloc[int(part["busbw_gb_s"].to_numpy().argmax())]
    half = part.loc[part["busbw_gb_s"] >= best["busbw_gb_s"] / 2, "size_bytes"].min() if best["busbw_gb_s"] else None
    fit = alpha_beta(part["size_bytes"].to_numpy(np.float64), part["time_us"].to_numpy(np.float64))
    return {
        "collective": best["collective"],
        "placement": placement,
        "ranks": summary.facts.get("ranks"),
        "sizes": len(part),
        "peak_busbw_gb_s": best["busbw_gb_s"],
        "peak_at_bytes": int(best["size_bytes"]),
        "half_peak_from_bytes": None if half is None else int(half),
        "shortest_us": part["time_us"].min(),
        "latency_us": None if fit is None else fit[0],
        "fitted_algbw_gb_s": None if fit is None else fit[1],
        "fit_median_error": None if fit is None else fit[2],
        "wrong_rows": int((part["wrong"] > 0).sum()),
    }


def _sentence(frame: "pd.DataFrame", summary: Summary) -> str:
    if wrong := int(frame["wrong_rows"].sum()):
        return f"{wrong} rows have wrong results: until that is fixed no time counts."
    best = frame.iloc[int(frame["peak_busbw_gb_s"].to_numpy().argmax())]
    if not best["peak_busbw_gb_s"]:
        return "Every bandwidth is 0: all messages are too small; measure up to 1 GB (-e 1G)."
    peak = f"{best['peak_busbw_gb_s']:.4g} GB/s"
    sizes = summary.table[summary.table["placement"] == best["placement"]]
    smaller = sizes.loc[sizes["size_bytes"] < sizes["size_bytes"].max(), "busbw_gb_s"].max()
    if not best["peak_busbw_gb_s"] <= _RISING * smaller:
        return f"The bandwidth still rises at the largest size, {peak}: measure up to 1 GB (-e 1G)."
    return f"The links carry up to {peak}, and half of it from {traffic(int(best['half_peak_from_bytes']))} on."


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all summaries, in their order; a name that comes again ends in _2, _3, ..."""
    return distinct([found for summary in summaries for found in _MAKERS.get(summary.what, _anything)(summary)])


def communication_share(summaries: Sequence[Summary]) -> list[Finding]:
    """Return kernel_families of summaries of kernels, with the share of communication in the kernels' time.

    Totals do not say what of it overlaps with computation.
    """
    found = []
    for families in findings([summary for summary in summaries if summary.what == "kernels"]):
        if "family" not in families.table or "kernels" not in families.table:
            continue
        share = float(families.table.loc[families.table["family"] == COMMUNICATION, "share"].sum())
        sentence = f"Communication takes {percent(share)} of the kernels' time; totals do not show its overlap."
        found.append(dataclasses.replace(families, sentence=sentence, advice=()))
    return found


def _kernels(summary: Summary) -> Iterator[Finding]:
    table = _by_name(summary.table, "family")
    total = table["total_ms"].sum()
    if not total:
        yield Finding("kernel_totals", summary.title, summary.table, _NOTHING)
        return
    first = table.iloc[0]
    sentence = f"{short_name(first['name'])} takes {percent(first['share'])} of the kernels' {number(total)} ms."
    yield Finding("kernel_totals", summary.title, table, sentence)
    families = table.groupby("family", sort=False).agg(
        kernels=("name", "count"), count=("count", "sum"), total_ms=("total_ms", "sum"), share=("share", "sum")
    )
    families = families.sort_values("total_ms", ascending=False, kind="stable").reset_index()
    top = families.iloc[0]
    sentence = f"{top['family']} kernels take {percent(top['share'])} of the kernels' time."
    moving = float(families.loc[families["family"].isin(MOVES_MEMORY), "share"].sum())
    advice: tuple[Advice, ...] = ()
    if moving >= LEAST:
        seen = f"kernels that only move memory take {percent(moving)} of the kernels' time"
        remedy = f"fuse them {Context().fusing(has_fused_optimizer(table['name']))}"
        advice = (Advice(cause="fusion", seen=seen, remedy=remedy, saves=moving, of=OF_KERNELS),)
    yield Finding("kernel_families", f"{summary.title}: by family", families, sentence, advice)


def _by_name(table: "pd.DataFrame", label: str = "") -> "pd.DataFrame":
    """Rows of one name added up, largest first: name, [label,] count, total_ms, average_us, share, cumulative_share."""
    import pandas as pd

    if "total_ns" not in table:
        return pd.DataFrame(columns=["name", "count", "total_ms"]).astype({"total_ms": "float64"})
    sums = table.groupby("name", sort=False, observed=True)[["count", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    frame = pd.DataFrame({"name": sums["name"].astype(str)})
    if label:
        frame[label] = [family(name) for name in frame["name"]]
    frame["count"] = sums["count"]
    frame["total_ms"] = sums["total_ns"] / 1e6
    frame["average_us"] = (sums["total_ns"] / 1e3 / sums["count"]).where(sums["count"] > 0)
    whole = float(frame["total_ms"].sum())
    frame["share"] = frame["total_ms"] / whole if whole else float("nan")
    frame["cumulative_share"] = frame["share"].cumsum()
    return frame


def _copies(summary: Summary) -> Iterator[Finding]:
    table, frame = summary.table, summary.table
    if "total_ns" in table:
        frame = _by_name(table)
        if "total_bytes" in table:
            sizes = table.groupby("name", sort=False, observed=True)["total_bytes"].sum(min_count=1)
            frame["total_bytes"] = frame["name"].map(sizes)
            frame["gb_per_second"] = (frame["total_bytes"] / frame["total_ms"] / 1e6).where(frame["total_ms"] > 0)
    elif "total_bytes" in table:
        frame = table.sort_values("total_bytes", ascending=False, ignore_index=True)
    yield _totals("copy_totals", summary, frame, "is the largest kind of copy")


def _api(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table)
    share = f"takes {percent(frame['share'].iloc[0])} of the calls' time" if len(frame) else ""
    yield _totals("api_totals", summary, frame, share)


def _ranges(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table).drop(columns=["share", "cumulative_share"], errors="ignore")
    yield _totals("range_totals", summary, frame, "is the longest range; totals include nested ranges")


def _totals(name: str, summary: Summary, frame: "pd.DataFrame", fact: str) -> Finding:
    if not len(frame):
        return Finding(name, summary.title, summary.table, _NOTHING)
    return Finding(name, summary.title, frame, f"{short_name(str(frame['name'].iloc[0]))} {fact}.")


def _anything(summary: Summary) -> Iterator[Finding]:
    yield Finding(slug(summary.what), summary.title, summary.table)


_MAKERS: dict[str, Callable[[Summary], Iterator[Finding]]] = {
    "kernels": _kernels,
    "copies": _copies,
    "api": _api,
    "ranges": _ranges,
    "collectives": collective_findings,
}
