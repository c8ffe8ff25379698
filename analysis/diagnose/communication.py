"""What the traces of a run's ranks say about communication, and what to try."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding, slug
from analysis.diagnose.sentences import number
from analysis.metrics.communication.exposure import (
    buckets,
    communication_by_group,
    communication_by_kind,
    communication_by_rank,
    exposed_union_ms,
)
from analysis.metrics.communication.matching import ClockOffsets, Matching, clock_offsets, match_collectives, stragglers
from analysis.metrics.kernels.devices import LinkRates
from analysis.metrics.time.temporal import work_sets
from analysis.timeline import Timeline, lost_kernels
from analysis.wording import percent, short

if TYPE_CHECKING:
    import pandas as pd

_LITTLE = 0.05
_SMALL_BYTES = 1 << 20
_NEAR_THE_LINK = 0.8
_LONGEST_LABEL = 60
_MOST_GROUPS = 12
# What carries gradients or parameters, in pieces of a size that can be chosen.
_IN_BUCKETS = {"all_reduce", "reduce_scatter", "all_gather"}


def findings(
    timelines: Sequence[Timeline], context: Context | None = None, links: LinkRates | None = None
) -> list[Finding]:
    """Return what there is to say about communication; nothing where no rank communicates.

    Args:
        timelines: what readers returned, one per rank.
        context: the recorded trial, where it is known.
        links: measured rates of the links; None: published ones only.

    Returns:
        all_reduce_by_rank, collectives and buckets; of several ranks stragglers and clock_offsets too; where the trace
        describes or has several process groups process_groups, and of several process_group_<label> of those with most
        exposed time.
    """
    if not any(len(timeline.collectives) for timeline in timelines):
        return []
    matching = match_collectives(timelines)
    clocks = clock_offsets(timelines, matching)
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    by_rank = communication_by_rank(timelines, matching)
    late = stragglers(timelines, matching, clocks.offsets_ns)
    shown = by_rank.drop(columns="steps")
    by_kind = communication_by_kind(timelines, matching, links)
    sentence = _by_rank(by_rank, late, matching, on_gpu)
    advice = tuple(_advice(by_rank, on_gpu, context or Context()))
    found = [
        Finding("all_reduce_by_rank", "Communication by rank", shown, sentence, advice),
        _collectives(by_kind, matching, on_gpu),
        *_process_groups(timelines, matching, by_kind),
    ]
    if len(timelines) > 1:
        found.append(Finding("stragglers", "Who the others wait for", late, _stragglers(late, on_gpu)))
    found.append(_buckets(timelines, matching, by_rank))
    if len(timelines) > 1:
        found.append(Finding("clock_offsets", "Clocks of the ranks", clocks.table, _clocks(clocks)))
    return found


def no_communication(timelines: Sequence[Timeline]) -> str:
    """Return why traces show no communication."""
    sizes = {timeline.world_size for timeline in timelines if timeline.world_size}
    lost = lost_kernels(timelines)
    if lost:
        reason = lost
    elif sizes == {1}:
        reason = "the job has one rank"
    elif any(len(timeline.kernels) for timeline in timelines):
        libraries = "NCCL, RCCL, NVSHMEM, DeepEP or another library that is known"
        reason = f"no kernel is one of {libraries}; give the trace of a run on several devices"
    else:
        reason = "it has neither NCCL kernels nor spans of gloo or MPI; give the trace of a run on several ranks"
    return f"no communication in {'this trace' if len(timelines) == 1 else 'these traces'}: {reason}"


def _rank(value: object) -> str:
    text = str(value)
    return f"rank {text}" if text not in ("<NA>", "None", "nan") else "a rank of unknown number"


_CAUSES = {True: "data loading, host, GPU clock", False: "data loading, shared cores"}


def _rows(table: "pd.DataFrame") -> list[dict[Any, Any]]:
    return table.to_dict("records")


def _advice(table: "pd.DataFrame", on_gpu: bool, context: Context) -> Iterator[Advice]:
    """Yield what communication could save at most: the largest exposed share of a rank's window.

    Args:
        table: of `communication_by_rank`.
        on_gpu: whether the ranks compute on GPUs.
        context: the recorded trial, where it is known.
    """
    waiting = table["exposed_wait_ms"]
    transfer_share = float((table["exposed_transfer_ms"].fillna(table["exposed_ms"]) / table["window_ms"]).max())
    wait_share = float((waiting.fillna(0.0) / table["window_ms"]).max())
    if wait_share >= LEAST:
        remedy = f"find out why they are late ({_CAUSES[on_gpu]}), and balance the work"
        yield Advice(cause="waiting", seen="ranks wait for late ranks", remedy=remedy, saves=wait_share)
    if transfer_share >= LEAST:
        included = " (waiting for other ranks included)" if waiting.isna().any() else ""
        less = "gradient accumulation" if context.has("bf16-gradients") else "16-bit gradients, gradient accumulation"
        remedy = f"overlap more of it (smaller buckets), or send less ({less})"
        seen = f"communication{included} is exposed"
        yield Advice(cause="communication", seen=seen, remedy=remedy, saves=transfer_share)


def _by_rank(table: "pd.DataFrame", late: "pd.DataFrame", matching: Matching, on_gpu: bool) -> str:
    if not len(table):
        return "Nothing ran in the window."
    worst = max(_rows(table), key=lambda row: float(row["exposed_share"]))
    share, hidden = float(worst["exposed_share"]), float(worst["overlap_share"])
    begin = (
        f"{_rank(worst['rank']).capitalize()} communicates for {percent(worst['communication_share'])} of the window, "
        f"{percent(0.0 if hidden != hidden else hidden)} of that overlaps with computation, and {percent(share)} of "
        "the window is exposed"
    )
    missing = f" ({matching.problems[0]})" if matching.problems else ""
    if share < _LITTLE:
        return f"{begin}: faster communication gains little here{missing}."
    wait, transfer = float(worst["exposed_wait_ms"]), float(worst["exposed_transfer_ms"])
    if wait != wait and not matching.problems and len(late) > 1:
        return (
            f"{begin}; how much of that is transfer and how much is waiting is unknown, as ranks may leave some of "
            "these collectives before others arrive (broadcast, reduce, send_recv, dispatch, combine)."
        )
    if wait != wait:
        return f"{begin}; to separate transfer from waiting, read the traces of all ranks{missing}."
    if wait > transfer:
        begin += f", {percent(wait / (wait + transfer))} of it waiting for other ranks"
        if _late_varies(late):
            return f"{begin}. The late rank varies: look for host-side stalls before you tune the network{missing}."
        return (
            f"{begin}, mostly for {_rank(late['rank'].iloc[0])}: find out why that rank is late "
            f"({_CAUSES[on_gpu]}) before you tune the network{missing}."
        )
    begin += f", {percent(transfer / (wait + transfer))} of it transfer"
    return (
        f"{begin}: overlap more of it (smaller buckets that start earlier, no synchronization in the backward pass), "
        "or send less (16-bit gradients, gradient accumulation)"
        f"{missing}."
    )


def _collectives(table: "pd.DataFrame", matching: Matching, on_gpu: bool) -> Finding:
    sentence = ""
    known = table[table["bytes"].notna()]
    if len(table) and not len(known):
        sentence = "The trace does not contain message sizes, so bandwidths are unknown"
        sentence += " (the PyTorch profiler records them for gloo along with shapes, as `bertbench profile` does)."
        if on_gpu:
            sentence = "The trace does not contain message sizes, so bandwidths are unknown."
    elif len(known):
        top = _rows(known)[0]
        count, size = int(top["sized"]), int(top["bytes"])
        moving = float(top["transfer_busbw_gb_s"])
        alone = moving != moving or bool(matching.absent)
        rate = moving if moving == moving else float(top["busbw_gb_s"])
        speed = (
            f"at a bus bandwidth of {short(rate)} GB/s"
            f"{', waiting for other ranks included' if alone else ' once all ranks have arrived'}"
            if rate == rate
            else ""
        )
        begin = f"{_rank(top['rank']).capitalize()}'s {top['collective']} moves {_size(size / count)} per call"
        begin += f" {speed}" if speed else ""
        if not speed:
            sentence = f"{begin}; the trace does not contain the number of ranks, so the bus bandwidth is unknown."
        elif not on_gpu:
            sentence = f"{begin}; on a CPU that time includes copies of the buffers."
        elif float(top["link_share"]) >= _NEAR_THE_LINK:
            sentence = f"{begin}, {_of_link(top)}: the links are used well; send less, or overlap more of it."
        elif size / count < _SMALL_BYTES and count >= 20:
            sentence = f"{begin}: latency dominates messages this small; merge them (larger bucket_cap_mb)."
        else:
            check = "check the topology and NCCL's algorithm and protocol (NCCL_DEBUG=INFO), or try larger buckets"
            measured = str(top["link_source"]).startswith("measured")
            compare = f"if nccl-tests at this size is much faster, {check}"
            known_link = float(top["link_share"]) == float(top["link_share"])
            sentence = f"{begin}, {_of_link(top)}" if known_link else begin
            if matching.absent:
                sentence += f": {matching.absent}."
            else:
                sentence += f": {check if measured else compare}."
    return Finding("collectives", "Collectives by rank and kind", _shown(table), sentence)


def _of_link(row: dict[Any, Any]) -> str:
    return f"{percent(float(row['link_share']))} of the {number(float(row['link_gb_s']))} GB/s {row['link_source']}"


def _shown(table: "pd.DataFrame") -> "pd.DataFrame":
    said = [name for name in table.columns if name in ("rank", "count") or _says(table[name])]
    return table[[name for name in said if name not in ("exposed_share", "overlap_share")]]


_GROUP_REMEDIES = {
    "tensor": "keep its ranks on the fast links of one node, and overlap it with GEMMs (async tensor parallelism)",
    "data": "overlap it with the backward pass (bucket size), or send less (16-bit gradients, gradient accumulation)",
    "pipeline": "use more micro-batches, so that stages wait less for each other",
    "expert": "overlap dispatch and combine with other computation, and balance the experts",
    "context": "overlap it with the attention of the previous block",
}


_SAID_BY_TITLE = ["description", "parallelism", "group", "sized", "overlapped_ms"]  # or by the table of all kinds


def _process_groups(timelines: Sequence[Timeline], matching: Matching, by_kind: "pd.DataFrame") -> Iterator[Finding]:
    """Yield the groups, then of several the first ones with their collectives; nothing for one without a description.

    Args: by_kind: of `communication_by_kind`.
    """
    groups = communication_by_group(timelines, matching)
    if len(groups) < 2 and not (by_kind["description"] != "").any():
        return
    yield Finding("process_groups", "Process groups (means over ranks)", _shown(groups), _most_exposed(groups))
    labels = by_kind["description"].where(by_kind["description"] != "", by_kind["group"])
    for row in _rows(groups)[:_MOST_GROUPS] if len(groups) > 1 else []:
        label, what = str(row["group"]), str(row["parallelism"])
        own = by_kind[labels == label].drop(columns=_SAID_BY_TITLE).reset_index(drop=True)
        title = f"Process group {label[:_LONGEST_LABEL]}{f' ({what} parallel)' if what else ''}"
        yield Finding(f"process_group_{slug(label)}", title, _shown(own))


def _most_exposed(groups: "pd.DataFrame") -> str:
    first = _rows(groups)[0]
    share, kinds = float(first["exposed_share"]), str(first["parallelism"])
    label = str(first["group"])[:_LONGEST_LABEL]
    named = f"{kinds} parallel group {label}" if kinds else f"process group {label}"
    seen = f"The {named} has {number(float(first['exposed_ms']))} ms of exposed communication per rank"
    seen += f" ({percent(share)} of the window)"
    if len(groups) > 1:
        seen += ", the most of all groups"
    remedy = next((_GROUP_REMEDIES[kind] for kind in kinds.split("+") if kind in _GROUP_REMEDIES), "")
    return f"{seen}: {remedy}." if remedy and share >= _LITTLE else f"{seen}."


def _says(column: "pd.Series[Any]") -> bool:
    return bool((column.notna() & (column.astype("string") != "")).any())


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{short(count / factor)} {unit}"
    return f"{count:.0f} bytes"


def _late_varies(table: "pd.DataFrame") -> bool:
    """Whether no rank causes most of the waiting. Args: table: of `stragglers`."""
    caused = float(table["wait_caused_ms"].sum())
    return caused > 0 and float(table["wait_caused_ms"].iloc[0]) < 0.6 * caused


def _stragglers(table: "pd.DataFrame", on_gpu: bool) -> str:
    caused = float(table["wait_caused_ms"].sum())
    if not caused:
        return (
            "No rank waited for another one." if int(table["matched"].sum()) else "No collective matches between ranks."
        )
    first = _rows(table)[0]
    share, times, matched = float(first["wait_caused_ms"]) / caused, int(first["times_last"]), int(first["matched"])
    begin = (
        f"{_rank(first['rank']).capitalize()} arrived last in {times} of {matched} collectives of the whole recording "
        f"and caused {percent(share)} of the waiting ({number(float(first['wait_caused_ms']))} ms per other rank)"
    )
    if _late_varies(table):
        return f"{begin}. The late rank varies, which suggests host-side stalls (shared or oversubscribed CPUs)."
    return f"{begin}: find out why it is late ({_CAUSES[on_gpu]}, more work than other ranks)."


def _buckets(timelines: Sequence[Timeline], matching: Matching, by_rank: "pd.DataFrame") -> Finding:
    """Of the rank with the most exposed communication, the last step that has as many collectives as most have."""
    exposed_ms = dict(zip(by_rank["rank"].tolist(), by_rank["exposed_ms"].tolist(), strict=True))
    talking = [i for i, timeline in enumerate(timelines) if len(timeline.collectives)]
    member = max(talking, key=lambda i: float(exposed_ms.get(timelines[i].rank, 0.0)))
    table = buckets(timelines[member], matching, member)
    what = "The trace"
    if len(table) and table["step"].notna().any():
        counts = table["step"].value_counts()
        chosen = counts.index[counts >= counts.median()].max()
        table = table[table["step"] == chosen].reset_index(drop=True)
        what = f"Step {chosen}"
    of = f"of {what[0].lower()}{what[1:]}"
    title = f"Collectives {of}, {_rank(timelines[member].rank)}"
    if not len(table):
        return Finding("buckets", title, table, "No collective lies in a marked step.")
    rows = _rows(table)
    last = max(rows, key=lambda row: float(row["end_ms"]))
    exposed = exposed_union_ms(timelines[member], table)
    if not exposed:
        return Finding("buckets", title, table, f"All {len(table)} collectives {of} overlap with computation.")
    moving = (table["duration_ms"] - table["wait_ms"].fillna(0)).clip(lower=0)
    transfer = exposed_union_ms(timelines[member], table.assign(start_ms=table["end_ms"] - moving))
    count = f"{len(table)} collective{'s' if len(table) > 1 else ''}"
    if transfer < 0.5 * exposed:  # the wait comes first: what is cut or begins earlier waits as long
        sentence = (
            f"Of {number(exposed)} ms of exposed communication in {count} {of}, {number(exposed - transfer)} ms are "
            "spent waiting for late ranks: find out why they are late."
        )
        return Finding("buckets", title, table, sentence)
    if not len(work_sets(timelines[member]).compute):
        sentence = (
            f"{count[0].upper()}{count[1:]} {of}, {number(exposed)} ms: the trace has no computation to overlap with."
        )
        return Finding("buckets", title, table, sentence)
    share = float(last["exposed_ms"]) / exposed
    cut = set(table["collective"]) <= _IN_BUCKETS
    if len(rows) == 1 and cut:
        seen = f"{what} has one collective, {number(exposed)} ms of it exposed"
        remedy = "split it (smaller bucket_cap_mb) so that parts start while the rest is still computed"
    elif share > 0.5 and cut:
        seen = (
            f"The last of {len(rows)} collectives {of} accounts for {number(float(last['exposed_ms']))} of "
            f"{number(exposed)} ms of exposed communication; when it starts, "
            f"{number(float(last['compute_after_start_ms']))} ms of computation are left to overlap with"
        )
        remedy = "make the last bucket smaller (smaller bucket_cap_mb, or a smaller one for the first layers)"
    else:
        longest = max(rows, key=lambda row: float(row["exposed_ms"]))
        seen = (
            f"{int((table['exposed_ms'] > 0).sum())} of {len(table)} collectives {of} are exposed, {number(exposed)} "
            f"ms in total, number {longest['bucket']} most ({number(float(longest['exposed_ms']))} ms; "
            f"{number(float(longest['compute_after_start_ms']))} ms of computation follow its start)"
        )
        remedy = "start them earlier or overlap independent computation with them"
    return Finding("buckets", title, table, f"{seen}: {remedy}.")


def _time(us: float) -> str:
    return f"{short(us)} µs" if us < 1000 else f"{number(us / 1e3)} ms"


def _clocks(clocks: ClockOffsets) -> str:
    known = clocks.table[clocks.table["offset_us"].notna()]
    if len(known) < 2:
        return "The ranks have no collective in common, so their clocks cannot be compared and are assumed equal."
    far = max(_rows(known), key=lambda row: abs(float(row["offset_us"])))
    spread = float(known["spread_us"].max())
    offset = float(far["offset_us"])
    if abs(offset) <= max(2 * spread, 20.0):
        return (
            f"Rank clocks agree to {_time(max(abs(offset), spread))}, within the normal spread of collective end times."
        )
    return (
        f"{_rank(far['rank']).capitalize()}'s clock is {_time(abs(offset))} {'ahead of' if offset > 0 else 'behind'} "
        f"the first rank's (spread {_time(spread)}); subtract that before you compare times between ranks, as the "
        "tables here do."
    )
