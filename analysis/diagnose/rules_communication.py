"""Rules about communication: each takes the tables of a run's ranks and returns at most one finding."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding, number
from analysis.metrics.communication import exposure
from analysis.metrics.communication.matching import clock_offsets, match_collectives, stragglers
from analysis.metrics.kernels.devices import LinkRates
from analysis.timeline import Timeline, lost_kernels
from analysis.wording import percent, short, traffic

_LONGEST_LABEL = 60
_ONE_RANK = 0.6
"""Share of the waiting from which the one rank that caused it is the straggler."""


def findings(
    timelines: Sequence[Timeline], context: Context | None = None, links: LinkRates | None = None
) -> list[Finding]:
    """Return all_reduce_by_rank, collectives and buckets; of several ranks stragglers and clock_offsets too; where the
    trace describes or has several process groups process_groups; nothing where no rank communicates."""
    talking = [place for place, timeline in enumerate(timelines) if len(timeline.collectives)]
    if not talking:
        return []
    matching = match_collectives(timelines)
    by_rank = exposure.communication_by_rank(timelines, matching)
    by_kind = exposure.communication_by_kind(timelines, matching, links)
    groups, late = exposure.communication_by_group(timelines, matching), stragglers(timelines, matching)
    exposed_ms = dict(zip(by_rank["rank"].tolist(), by_rank["exposed_ms"].tolist(), strict=True))
    worst = max(talking, key=lambda place: float(exposed_ms.get(timelines[place].rank, 0.0)))
    several = len(timelines) > 1
    made = [
        exposed(by_rank, late, context or Context()),
        collectives(by_kind),
        process_groups(groups) if len(groups) > 1 or (by_kind["description"] != "").any() else None,
        who_is_late(late) if several else None,
        one_step(exposure.buckets(timelines[worst], matching, worst), timelines[worst].rank),
        rank_clocks(clock_offsets(timelines, matching)) if several else None,
    ]
    return [finding for finding in made if finding is not None]


def no_communication(timelines: Sequence[Timeline]) -> str:
    """Return why traces show no communication."""
    alone = {one.world_size for one in timelines} == {1}
    reason = lost_kernels(timelines) or ("the job has one rank" if alone else "give a run on several devices")
    return f"no communication in {'this trace' if len(timelines) == 1 else 'these traces'}: {reason}"


def exposed(table: "pd.DataFrame", late: "pd.DataFrame", context: Context) -> Finding:
    """Return all_reduce_by_rank, with advice: of the rank with most exposed communication, an upper bound.

    Advice is about waiting where most of it is that: then less communication would not help.
    """
    title, shown = "Communication by rank", table.drop(columns="steps")
    if not len(table):
        return Finding("all_reduce_by_rank", title, shown, "Nothing ran in the window.")
    worst = _first(table.nlargest(1, "exposed_share"))
    share, known = float(worst["exposed_share"]), not pd.isna(worst["exposed_wait_ms"])
    wait = float(worst["exposed_wait_ms"] / worst["exposed_ms"]) if known and worst["exposed_ms"] else 0.0
    rank = _rank(worst["rank"])
    sentence = f"Without {number(float(worst['exposed_ms']))} ms of exposed communication {rank} takes at most "
    sentence += f"{percent(share)} less time; "
    sentence += f"{percent(wait)} is waiting." if known else "all ranks' traces separate waiting."
    if wait > 0.5:  # less communication would not shorten a wait
        caused = late["wait_caused_ms"]
        last = _rank(late["rank"].iloc[0])
        one = caused.sum() > 0 and caused.iloc[0] >= _ONE_RANK * caused.sum() and last != rank
        cause, saves = "waiting", share * wait
        seen = f"{rank} waits for {last if one else 'changing ranks'} {percent(saves)} of its time"
        remedy = "find out why ranks arrive late (data, host, GPU clock), and balance the work"
    else:
        cause, saves, seen = "communication", share, f"{rank}'s communication is exposed {percent(share)} of its time"
        less = "gradient accumulation" if context.has("bf16-gradients") else "16-bit gradients, gradient accumulation"
        remedy = f"overlap communication with computation, or send less ({less})"
    of = f"time of {rank}" if len(table) > 1 else ""
    advice = (Advice(cause=cause, seen=seen, remedy=remedy, saves=saves, of=of),) if share >= LEAST else ()
    return Finding("all_reduce_by_rank", title, shown, sentence, advice)


def collectives(table: "pd.DataFrame") -> Finding:
    """Return collectives: bytes and bandwidths by rank and kind."""
    known = table[table["bytes"].notna()]
    sentence = "The trace has no message sizes, so bandwidths are unknown."
    if len(known):
        top = _first(known)
        rate = top["busbw_gb_s"] if pd.isna(top["transfer_busbw_gb_s"]) else top["transfer_busbw_gb_s"]
        sentence = f"{_rank(top['rank']).capitalize()}'s {top['collective']} moves "
        sentence += f"{traffic(top['bytes'] / top['sized'])} per call"
        sentence += "" if pd.isna(rate) else f" at a bus bandwidth of {short(float(rate))} GB/s"
        sentence += "." if pd.isna(top["link_share"]) else f", {percent(float(top['link_share']))} of the link."
    return Finding("collectives", "Collectives by rank and kind", _shown(table), sentence)


def process_groups(groups: "pd.DataFrame") -> Finding:
    """Return process_groups."""
    first = _first(groups)
    most = number(float(first["exposed_ms"]))
    sentence = f"Group {first['group'][:_LONGEST_LABEL]} has most exposed communication, {most} ms per rank."
    return Finding("process_groups", "Process groups (means over ranks)", _shown(groups), sentence)


def who_is_late(table: "pd.DataFrame") -> Finding:
    """Return stragglers."""
    caused, first = float(table["wait_caused_ms"].sum()), _first(table)
    sentence = "No rank waited for another one."
    if not table["matched"].sum():
        sentence = "No collective matches between ranks."
    elif caused:
        sentence = f"{_rank(first['rank']).capitalize()} was last in {first['times_last']} of {first['matched']} "
        sentence += f"collectives and caused {percent(float(first['wait_caused_ms']) / caused)} of the waiting."
    return Finding("stragglers", "Who the others wait for", table, sentence)


def one_step(table: "pd.DataFrame", rank: int | None) -> Finding:
    """Return buckets: of one rank, the last step that has as many collectives as most have."""
    what = "the trace"
    if table["step"].notna().any():
        counts = table["step"].value_counts()
        chosen = counts.index[counts >= counts.median()].max()
        table, what = table[table["step"] == chosen].reset_index(drop=True), f"step {chosen}"
    sentence = "No collective was launched in a marked step."
    if len(table):
        longest, bare = _first(table.nlargest(1, "exposed_ms")), int((table["exposed_ms"] > 0).sum())
        sentence = f"On {_rank(rank)}, {bare} of {len(table)} collectives of {what} are exposed, "
        sentence += f"number {longest['bucket']} most: {number(float(longest['exposed_ms']))} ms."
    return Finding("buckets", f"Collectives of {what}, {_rank(rank)}", table, sentence)


def rank_clocks(table: "pd.DataFrame") -> Finding:
    """Return clock_offsets."""
    known = table["offset_us"].dropna()
    sentence = "The ranks have no collective in common: their clocks are assumed equal."
    if len(known) > 1:
        sentence = f"Clocks differ from the first rank's by up to {number(float(known.abs().max()))} µs."
    return Finding("clock_offsets", "Clocks of the ranks", table, sentence)


def _shown(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the columns that have a value."""
    filled = (table.notna() & (table.astype(str) != "")).any() | table.columns.isin(["rank", "count"])
    return table.loc[:, filled]


def _first(table: "pd.DataFrame") -> dict[Any, Any]:
    """Return the first row, each value of its own type."""
    return table.head(1).to_dict("records")[0]


def _rank(value: object) -> str:
    return "a rank" if pd.isna(value) else f"rank {int(value)}"  # type: ignore[call-overload]
