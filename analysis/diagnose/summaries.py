"""Findings from tables of totals and logs, each with its meaning and what to try."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding, distinct
from analysis.diagnose.sentences import number
from analysis.metrics.communication.links import alpha_beta
from analysis.names import COMMUNICATION, MOVES_MEMORY, family, has_fused_optimizer
from analysis.wording import percent, short, traffic

if TYPE_CHECKING:
    import pandas as pd


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
    sentence = (
        "algbw is size / time; busbw is the rate per link, which compares with the link's rate for any number of ranks."
    )
    yield Finding("collective_sizes", f"{summary.title}: by size", sizes, sentence)


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
    wrong = int(frame["wrong_rows"].sum())
    if wrong:
        return f"{wrong} rows have wrong results: fix that first (driver, NCCL, a bad link); until then no time counts."
    best = frame.iloc[int(frame["peak_busbw_gb_s"].to_numpy().argmax())]
    if not best["peak_busbw_gb_s"]:
        return "Every bandwidth is 0: all messages are too small; measure up to 1 GB (-e 1G)."
    half = int(best["half_peak_from_bytes"])
    ranks = summary.facts.get("ranks")
    between = f" between {ranks} ranks" if ranks else ""
    own = summary.table[summary.table["placement"] == best["placement"]]
    largest = int(own["size_bytes"].max())
    if not best["peak_busbw_gb_s"] <= _RISING * own.loc[own["size_bytes"] < largest, "busbw_gb_s"].max():
        return (
            f"The largest size, {traffic(largest)}, has by far the highest bandwidth, "
            f"{best['peak_busbw_gb_s']:.4g} GB/s{between}, so the links' rate is unknown: measure up to 1 GB (-e 1G). "
            f"The smallest messages take {short(best['shortest_us'])} µs."
        )
    return (
        f"The links carry up to {best['peak_busbw_gb_s']:.4g} GB/s{between} and half of it from {traffic(half)} on, "
        f"and the smallest messages take {short(best['shortest_us'])} µs: use gradient buckets well above "
        f"{traffic(half)}; latency dominates smaller ones."
    )


_ADVICE = {
    COMMUNICATION: "check with a trace how much of it is exposed (`bertbench allreduce`)",
    "GEMM": "check whether they use the tensor cores (`bertbench core-util`)",
    "attention": "compare fused attention (SDPA, FlashAttention) on the same shapes",
    "optimizer": "use a fused optimizer, which reads every parameter once",
    "elementwise": "fuse them with adjacent kernels (torch.compile, fused GELU and dropout)",
    "norm": "use a fused layer normalization",
    "copy": "look for casts, and for copies from the host that pinned memory would overlap",
}


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all summaries, in their order; a name that comes again ends in _2, _3, ..."""
    return distinct([found for summary in summaries for found in _MAKERS.get(summary.what, _anything)(summary)])


def _kernels(summary: Summary) -> Iterator[Finding]:
    table = _by_name(summary.table, "family")
    total = table["total_ms"].sum()
    if not len(table) or not total:
        yield _anything_empty(summary, "kernel_totals")
        return
    first = table.iloc[0]
    sentence = (
        f"{_short(first['name'])} takes {percent(first['share'])} of the kernels' {number(total)} ms; "
        f"{int((table['cumulative_share'] < 0.9).sum()) + 1} of {len(table)} kernels make up 90 %: start with these."
    )
    yield Finding("kernel_totals", summary.title, table, sentence)
    families = table.groupby("family", sort=False).agg(
        kernels=("name", "count"), count=("count", "sum"), total_ms=("total_ms", "sum"), share=("share", "sum")
    )
    families = families.sort_values("total_ms", ascending=False, kind="stable").reset_index()
    top = families.iloc[0]
    family = str(top["family"])
    fused = has_fused_optimizer(table["name"])
    advice = _ADVICE.get(family, "start with the largest of them")
    if family == "optimizer" and fused:
        advice = "accumulate gradients, so that it runs less often"
    sentence = f"{family[:1].upper()}{family[1:]} kernels take {percent(top['share'])} of the kernel time: {advice}."
    yield Finding("kernel_families", f"{summary.title}: by family", families, sentence, tuple(_fusing(families, fused)))


def _fusing(families: "pd.DataFrame", fused_optimizer: bool) -> Iterator[Advice]:
    """Yield what fusing could save: at most the time of the kernels that only move memory."""
    small = families[families["family"].isin(MOVES_MEMORY)]
    saves = float(small["share"].sum())
    if saves >= LEAST:
        seen = f"kernels that only move memory take {percent(saves)} of the kernels' time"
        remedy = f"fuse them {Context().fusing(fused_optimizer)}"
        yield Advice(cause="fusion", seen=seen, remedy=remedy, saves=saves, of="kernels' time")


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
    table = summary.table
    if "total_ns" in table:
        frame = _by_name(table)
        if "total_bytes" in table:
            sizes = table.groupby("name", sort=False, observed=True)["total_bytes"].sum(min_count=1)
            frame["total_bytes"] = frame["name"].map(sizes)
            frame["gb_per_second"] = (frame["total_bytes"] / frame["total_ms"] / 1e6).where(frame["total_ms"] > 0)
    else:
        frame = (
            table.sort_values("total_bytes", ascending=False, ignore_index=True) if "total_bytes" in table else table
        )
    if not len(frame):
        yield _anything_empty(summary, "copy_totals")
        return
    sentence = (
        f"{_short(frame['name'].iloc[0])} is the largest of {len(frame)} kinds of copies: copy between host and GPU "
        "from pinned memory, overlapped with computation."
    )
    yield Finding("copy_totals", summary.title, frame, sentence)


def _api(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table)
    if not len(frame):
        yield _anything_empty(summary, "api_totals")
        return
    name, share = str(frame["name"].iloc[0]), frame["share"].iloc[0]
    waits = "synchronize" in name.lower() or "memcpy" in name.lower()
    means = "the host waits for the GPU or for copies" if waits else "the host spends its time there"
    advice = "look for .item(), .cpu() and prints in the loop" if waits else "check whether the GPU is idle meanwhile"
    yield Finding(
        "api_totals",
        summary.title,
        frame,
        f"{_short(name)} takes {percent(share)} of the calls' time: {means}; {advice}.",
    )


def _ranges(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table)
    if not len(frame):
        yield _anything_empty(summary, "range_totals")
        return
    sentence = (
        f"{_short(frame['name'].iloc[0])} is the longest of {len(frame)} ranges; totals include nested ranges, so "
        "they do not add up, and a launch may return before its kernels end."
    )
    yield Finding("range_totals", summary.title, frame.drop(columns=["share", "cumulative_share"]), sentence)


def _anything(summary: Summary) -> Iterator[Finding]:
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in summary.what.lower())
    yield Finding(name.strip("_") or "table", summary.title, summary.table)


def _anything_empty(summary: Summary, name: str) -> Finding:
    sentence = "The table has no row with a time: nothing of this kind was recorded."
    return Finding(name, summary.title, summary.table, sentence)


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= 60 else f"{text[:57]}..."


_MAKERS: dict[str, Callable[[Summary], Iterator[Finding]]] = {
    "kernels": _kernels,
    "copies": _copies,
    "api": _api,
    "ranges": _ranges,
    "collectives": collective_findings,
}
