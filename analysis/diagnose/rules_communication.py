"""Rules about communication: each takes the tables of a run's ranks, or of nccl-tests, and returns one finding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.counters import Summary
from analysis.diagnose.advice import Advice, Context, advised
from analysis.diagnose.finding import Finding, number
from analysis.metrics.communication import exposure
from analysis.metrics.communication.collectives import alpha_beta
from analysis.metrics.communication.matching import clock_offsets, match_collectives, stragglers
from analysis.timeline import Timeline, lost_kernels
from analysis.wording import percent, short, traffic

_ONE_RANK = 0.6
"""Share of the waiting from which the one rank that caused it is the straggler."""
_RISING = 1.1
"""If the largest size has more than this times the bandwidth of every smaller one, the peak was not reached."""


def findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return all_reduce_by_rank, collectives and buckets; of several ranks stragglers and clock_offsets too;
    nothing where no rank communicates."""
    talking = [place for place, timeline in enumerate(timelines) if len(timeline.collectives)]
    if not talking:
        return []
    matching = match_collectives(timelines)
    by_rank = exposure.communication_by_rank(timelines, matching)
    by_kind = exposure.communication_by_kind(timelines, matching)
    late = stragglers(timelines, matching)
    exposed_ms = dict(zip(by_rank["rank"].tolist(), by_rank["exposed_ms"].tolist(), strict=True))
    worst = max(talking, key=lambda place: float(exposed_ms.get(timelines[place].rank, 0.0)))
    several = len(timelines) > 1
    made = [
        _exposed(by_rank, late, context or Context()),
        _collectives(by_kind),
        _stragglers(late) if several else None,
        _buckets(exposure.buckets(timelines[worst], matching, worst), timelines[worst].rank),
        _clocks(clock_offsets(timelines, matching)) if several else None,
    ]
    return [finding for finding in made if finding is not None]


def no_communication(timelines: Sequence[Timeline]) -> str:
    """Return why traces show no communication."""
    alone = {one.world_size for one in timelines} == {1}
    reason = lost_kernels(timelines) or ("the job has one rank" if alone else "give a run on several devices")
    return f"no communication in {'this trace' if len(timelines) == 1 else 'these traces'}: {reason}"


def _exposed(table: "pd.DataFrame", late: "pd.DataFrame", context: Context) -> Finding:
    """With advice about waiting where most of it is that: then less communication would not help."""
    name, title, shown = "all_reduce_by_rank", "Communication by rank", table.drop(columns="steps")
    if not len(table):
        return Finding(name, title, shown, "Nothing ran in the window.")
    window, bare, waits = (float(table[name].sum()) for name in ("window_ms", "exposed_ms", "exposed_wait_ms"))
    waiting = f", {percent(waits / bare)} of it waiting" if bare and table["exposed_wait_ms"].notna().any() else ""
    sentence = f"Communication is exposed {percent(bare / window)} of the time{waiting}."
    if waits > bare / 2:  # less communication would not shorten a wait
        caused = late["wait_caused_ms"]
        one = caused.sum() > 0 and caused.iloc[0] >= _ONE_RANK * caused.sum()
        cause, saves = "waiting", waits / window
        seen = f"ranks wait for {_rank(late['rank'].iloc[0]) if one else 'changing ranks'}"
        remedy = "find out why ranks arrive late (data, host, GPU clock), and balance the work"
    else:
        cause, saves, seen = "communication", bare / window, "communication is exposed"
        less = "16-bit gradients, gradient accumulation"
        remedy = f"overlap communication with computation, or send less ({less})"
    advice = advised(cause, f"{seen} {percent(saves)} of the time", remedy, saves)
    return Finding(name, title, shown, sentence, advice)


def _collectives(table: "pd.DataFrame") -> Finding:
    known = table[table["bytes"].notna()]
    sentence = "The trace has no message sizes, so bandwidths are unknown."
    if len(known):
        top = known.iloc[0]
        rate = top["busbw_gb_s"] if pd.isna(top["transfer_busbw_gb_s"]) else top["transfer_busbw_gb_s"]
        sentence = f"{_rank(top['rank']).capitalize()}'s {top['collective']} moves "
        sentence += f"{traffic(top['bytes'] / top['sized'])} per call"
        sentence += "." if pd.isna(rate) else f" at a bus bandwidth of {short(float(rate))} GB/s."
    said = (table.notna() & (table != "")).any()
    table = table.loc[:, said | table.columns.isin(["rank"])]
    return Finding("collectives", "Collectives by rank and kind", table, sentence)


def _stragglers(table: "pd.DataFrame") -> Finding:
    caused, first = float(table["wait_caused_ms"].sum()), table.iloc[0]
    sentence = "No rank is known to have waited for another."
    if caused:
        sentence = (
            f"{_rank(first['rank']).capitalize()} was last in {int(first['times_last'])} of {int(first['matched'])} "
        )
        sentence += f"collectives and caused {percent(float(first['wait_caused_ms']) / caused)} of the waiting."
    return Finding("stragglers", "Who the others wait for", table, sentence)


def _buckets(table: "pd.DataFrame", rank: int | None) -> Finding:
    """Of one rank, the last step that has as many collectives as most have."""
    what = "the trace"
    if table["step"].notna().any():
        counts = table["step"].value_counts()
        chosen = counts.index[counts >= counts.median()].max()
        table, what = table[table["step"] == chosen].reset_index(drop=True), f"step {chosen}"
    sentence = "No collective was launched in a marked step."
    if len(table):
        longest, bare = table.nlargest(1, "exposed_ms").iloc[0], int((table["exposed_ms"] > 0).sum())
        sentence = f"On {_rank(rank)}, {bare} of {len(table)} collectives of {what} are exposed, "
        sentence += f"number {longest['bucket']} most: {number(float(longest['exposed_ms']))} ms."
    return Finding("buckets", f"Collectives of {what}, {_rank(rank)}", table, sentence)


def _clocks(table: "pd.DataFrame") -> Finding:
    known = table["offset_us"].dropna()
    sentence = "The ranks have no collective in common: their clocks are assumed equal."
    if len(known) > 1:
        sentence = f"Clocks differ from the first rank's by up to {number(float(known.abs().max()))} µs."
    return Finding("clock_offsets", "Clocks of the ranks", table, sentence)


def bandwidth(summary: Summary) -> list[Finding]:
    """Return collective_bandwidth, a row per placement, and collective_sizes, the largest first, of nccl-tests."""
    table = summary.table
    rows = [_placement(str(key), part) for key, part in table.groupby("placement", sort=False)]
    best, wrong = max(rows, key=lambda row: float(row["peak_busbw_gb_s"])), sum(int(row["wrong_rows"]) for row in rows)
    sizes = table[table["placement"] == best["placement"]]
    smaller = sizes.loc[sizes["size_bytes"] < sizes["size_bytes"].max(), "busbw_gb_s"].max()
    sentence = f"The links carry up to {best['peak_busbw_gb_s']:.4g} GB/s."
    advice: tuple[Advice, ...] = ()
    if wrong:
        sentence, remedy = f"{wrong} rows have wrong results", "fix that first (driver, NCCL, a bad link)"
        advice = (Advice(cause="machine", seen=sentence, remedy=remedy, unknown="until then no time counts"),)
        sentence += ": until that is fixed no time counts."
    elif not 0 < best["peak_busbw_gb_s"] <= _RISING * smaller:
        sentence = f"{sentence[:-1]}, and more at larger sizes: measure up to 1 GB (-e 1G)."
    by_size = table.sort_values(["size_bytes", "placement"], ascending=False, kind="stable", ignore_index=True)
    by_size = by_size.loc[:, ~by_size.isin([-1, ""]).all()]
    frame = pd.DataFrame(rows).assign(ranks=summary.facts.get("ranks"))
    return [
        Finding("collective_bandwidth", f"{summary.title}: bandwidth", frame, sentence, advice),
        Finding("collective_sizes", f"{summary.title}: by size", by_size),
    ]


def _placement(placement: str, part: "pd.DataFrame") -> dict[str, Any]:
    fit = alpha_beta(part["size_bytes"].to_numpy(np.float64), part["time_us"].to_numpy(np.float64))
    row = {
        "collective": part["collective"].iloc[0],
        "placement": placement,
        "peak_busbw_gb_s": part["busbw_gb_s"].max(),
    }
    row |= dict(zip(("latency_us", "fitted_algbw_gb_s"), fit or (None, None), strict=False))
    return {**row, "wrong_rows": int((part["wrong"] > 0).sum())}


def _rank(value: object) -> str:
    return "a rank" if pd.isna(value) else f"rank {int(value)}"  # type: ignore[call-overload]
