"""What the traces of a run's ranks say about communication, and what to try."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.findings import Finding
from analysis.metrics.clock_alignment import ClockOffsets, clock_offsets
from analysis.metrics.collective_matching import Matching, match_collectives, stragglers
from analysis.metrics.communication import buckets, communication_by_kind, communication_by_rank, exposed_union_ms
from analysis.metrics.what_if import SCENARIOS, Scenario, WhatIf, what_if
from analysis.timeline import Timeline, lost_kernels

if TYPE_CHECKING:
    import pandas as pd

_LITTLE = 0.05
_SMALL_BYTES = 1 << 20


def findings(timelines: Sequence[Timeline], scenarios: Sequence[Scenario] = SCENARIOS) -> list[Finding]:
    """Return what there is to say about communication; nothing where no rank communicates.

    Args:
        timelines: what readers returned, one per rank.
        scenarios: what the replay changes.

    Returns:
        all_reduce_by_rank, collectives, buckets and what_if; of several ranks stragglers and clock_offsets too.
    """
    if not any(len(timeline.collectives) for timeline in timelines):
        return []
    matching = match_collectives(timelines)
    clocks = clock_offsets(timelines, matching)
    by_rank = communication_by_rank(timelines, matching)
    late = stragglers(timelines, matching, clocks.offsets_ns)
    shown = by_rank.drop(columns="steps")
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    found = [
        Finding("all_reduce_by_rank", "Communication by rank", shown, _by_rank(by_rank, late, matching, on_gpu)),
        _collectives(timelines, matching),
    ]
    if len(timelines) > 1:
        found.append(Finding("stragglers", "Who the others wait for", late, _stragglers(late, on_gpu)))
    found.append(_buckets(timelines, matching, by_rank))
    found.append(_what_if(what_if(timelines, matching, clocks.offsets_ns, scenarios), on_gpu))
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
        reason = "no kernel is one of NCCL or RCCL; give the trace of a run on several devices"
    else:
        reason = "it has neither NCCL kernels nor spans of gloo or MPI; give the trace of a run on several ranks"
    return f"no communication in {'this trace' if len(timelines) == 1 else 'these traces'}: {reason}"


def _rank(value: object) -> str:
    text = str(value)
    return f"rank {text}" if text not in ("<NA>", "None", "nan") else "a rank of unknown number"


_CAUSES = {True: "data loading, host, clock of the GPU", False: "data loading, cores that others use too"}


def _rows(table: "pd.DataFrame") -> list[dict[Any, Any]]:
    return table.to_dict("records")


def _by_rank(table: "pd.DataFrame", late: "pd.DataFrame", matching: Matching, on_gpu: bool) -> str:
    if not len(table):
        return "Nothing ran in the window."
    worst = max(_rows(table), key=lambda row: float(row["exposed_share"]))
    share, hidden = float(worst["exposed_share"]), float(worst["overlap_share"])
    begin = (
        f"{_rank(worst['rank']).capitalize()} communicates for {worst['communication_share']:.0%} of the window, "
        f"computation hides {0.0 if hidden != hidden else hidden:.0%} of that, and {share:.1%} of the window is exposed"
    )
    missing = f" ({matching.problems[0]})" if matching.problems else ""
    if share < _LITTLE:
        return f"{begin}: faster communication has little to give here{missing}."
    wait, transfer = float(worst["exposed_wait_ms"]), float(worst["exposed_transfer_ms"])
    if wait != wait and not matching.problems and len(late) > 1:
        return (
            f"{begin}; whether that is transfer or waiting for other ranks cannot be told, as ranks may leave some of "
            "these collectives before others come (broadcast, reduce, send_recv)."
        )
    if wait != wait:
        return f"{begin}; whether that is transfer or waiting for other ranks needs the traces of all ranks{missing}."
    if wait > transfer:
        return (
            f"{begin}, {wait / (wait + transfer):.0%} of it waiting for other ranks, most of all for "
            f"{_rank(late['rank'].iloc[0])}: find out what that one does before it arrives ({_CAUSES[on_gpu]}) "
            f"before touching the network{missing}."
        )
    return (
        f"{begin}, {transfer / (wait + transfer):.0%} of it transfer: overlap more of it (smaller buckets that start "
        f"earlier, no synchronisation in the backward pass), or send less (16-bit gradients, gradient accumulation)"
        f"{missing}."
    )


def _collectives(timelines: Sequence[Timeline], matching: Matching) -> Finding:
    table = communication_by_kind(timelines, matching)
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    sentence = ""
    known = table[table["bytes"].notna()]
    if len(table) and not len(known):
        sentence = "The trace does not say how large the messages are: bandwidths are not known"
        sentence += " (the PyTorch profiler says it of gloo where it records shapes, as `bertbench profile` does)."
        if on_gpu:
            sentence = "The trace does not say how large the messages are: bandwidths are not known."
    elif len(known):
        top = _rows(known)[0]
        count, size = int(top["sized"]), int(top["bytes"])
        moving = float(top["transfer_busbw_gb_s"])
        rate = moving if moving == moving else float(top["busbw_gb_s"])
        speed = (
            f"at a bus bandwidth of {rate:.3g} GB/s{' once all ranks are there' if moving == moving else ''}"
            if rate == rate
            else ""
        )
        begin = f"{_rank(top['rank']).capitalize()}'s {top['collective']} moves {_size(size / count)} a time"
        begin += f" {speed}" if speed else ""
        if not speed:
            sentence = f"{begin}; how many ranks take part is not in the trace, so its bus bandwidth is not known."
        elif not on_gpu:
            sentence = f"{begin}; on a CPU, copies of the buffers take part of that time too."
        elif size / count < _SMALL_BYTES and count >= 20:
            sentence = f"{begin}: messages are so small that latency rules, merge them (larger bucket_cap_mb)."
        else:
            sentence = (
                f"{begin}: compare that with what nccl-tests reaches at this size; if it is far below, look at the "
                "topology and NCCL's algorithm and protocol (NCCL_DEBUG=INFO), or try larger buckets."
            )
    said = [name for name in table.columns if name in ("rank", "count") or _says(table[name])]
    kept = [name for name in said if name not in ("exposed_share", "overlap_share")]
    return Finding("collectives", "Collectives by rank and kind", table[kept], sentence)


def _says(column: "pd.Series[Any]") -> bool:
    """Whether any row has a value."""
    return bool((column.notna() & (column.astype("string") != "")).any())


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def _stragglers(table: "pd.DataFrame", on_gpu: bool) -> str:
    caused = float(table["wait_caused_ms"].sum())
    if not caused:
        return "No rank waited for another one." if int(table["matched"].sum()) else "No collective could be matched."
    first = _rows(table)[0]
    share, times, matched = float(first["wait_caused_ms"]) / caused, int(first["times_last"]), int(first["matched"])
    begin = (
        f"{_rank(first['rank']).capitalize()} arrived last in {times} of {matched} collectives and caused {share:.0%} "
        f"of the waiting ({first['wait_caused_ms']:.3g} ms per other rank)"
    )
    if share < 0.6:
        return f"{begin}: it changes who is late, which points to pauses of the hosts (CPU shared or oversubscribed)."
    return f"{begin}: find out why it is late ({_CAUSES[on_gpu]}, more work than the others)."


def _buckets(timelines: Sequence[Timeline], matching: Matching, by_rank: "pd.DataFrame") -> Finding:
    """Of the rank with the most exposed communication, its last step."""
    exposed_ms = dict(zip(by_rank["rank"].tolist(), by_rank["exposed_ms"].tolist(), strict=True))
    talking = [i for i, timeline in enumerate(timelines) if len(timeline.collectives)]
    member = max(talking, key=lambda i: float(exposed_ms.get(timelines[i].rank, 0.0)))
    table = buckets(timelines[member], matching, member)
    if len(table) and table["step"].notna().any():
        table = table[table["step"] == table["step"].max()].reset_index(drop=True)
    title = f"Collectives of one step, {_rank(timelines[member].rank)}"
    if not len(table):
        return Finding("buckets", title, table, "No collective lies in a marked step.")
    rows = _rows(table)
    last = max(rows, key=lambda row: float(row["end_ms"]))
    exposed = exposed_union_ms(timelines[member], table)
    if not exposed:
        return Finding("buckets", title, table, f"All {len(table)} collectives are hidden behind computation.")
    share = float(last["exposed_ms"]) / exposed
    if len(rows) == 1:
        sentence = (
            f"The step has one collective, {exposed:.3g} ms of it exposed: several smaller ones (smaller "
            "bucket_cap_mb) can begin while the rest is still computed."
        )
    elif share > 0.5:
        sentence = (
            f"The last collective is exposed for {last['exposed_ms']:.3g} of the step's {exposed:.3g} ms of exposed "
            "communication and begins with "
            f"{last['compute_after_start_ms']:.3g} ms of computation left to hide it: make what comes last smaller "
            "(smaller bucket_cap_mb, or a smaller bucket for the first layers)."
        )
    else:
        longest = max(rows, key=lambda row: float(row["exposed_ms"]))
        sentence = (
            f"{int((table['exposed_ms'] > 0).sum())} of {len(table)} collectives are exposed, {exposed:.3g} ms in all, "
            f"number {longest['bucket']} most ({longest['exposed_ms']:.3g} ms, "
            f"{longest['compute_after_start_ms']:.3g} ms of computation come after its start): "
            "start them earlier or let independent computation run beside them."
        )
    return Finding("buckets", title, table, sentence)


def _what_if(answers: WhatIf, on_gpu: bool) -> Finding:
    title = "What if communication were different (slowest rank)"
    if not len(answers.table):
        return Finding("what_if", title, answers.table, f"{answers.problems[0].capitalize()}.")
    table = answers.slowest().drop(columns="window_ms")  # the slowest rank need not be the same one
    told = "; ".join(f"{row['scenario']}: {_change(float(row['saved_share']))}" for row in _rows(table)[1:])
    path = answers.paths_ms.get("free") or answers.paths_ms["as traced"]
    holds = max(path, key=path.__getitem__)
    advice = {
        "host": "the host then holds it up: launch fewer, larger kernels (torch.compile, CUDA graphs, larger batch)"
        if on_gpu
        else "time between operators then holds it up: fewer, larger ones help (torch.compile, larger batch)",
        "computation": f"computation then holds it up: faster {'kernels' if on_gpu else 'operators'} help more",
        "communication": "communication holds it up",
        "unexplained gap": "gaps that the trace does not explain hold it up",
    }[holds]
    error = f"; the unchanged replay misses the trace by {answers.error:.1%}" if answers.error is not None else ""
    doubts = "".join(f"; {problem}" for problem in answers.problems)
    sentence = f"Time of the slowest rank, replayed ({told or 'as traced'}); {advice}{error}{doubts}."
    if "free:" in told and len(answers.table["rank"].unique()) > 1:
        sentence = sentence.removesuffix(".") + "; free communication still waits for ranks that are late."
    return Finding("what_if", title, table, sentence)


def _change(saved: float) -> str:
    if abs(saved) < 0.0005:
        return "no change"
    return f"{saved:.1%} less" if saved > 0 else f"{-saved:.1%} more"


def _time(us: float) -> str:
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1e3:.4g} ms"


def _clocks(clocks: ClockOffsets) -> str:
    known = clocks.table[clocks.table["offset_us"].notna()]
    if len(known) < 2:
        return (
            "The clocks could not be compared: no collective is common to the ranks, times of ranks are taken as equal."
        )
    far = max(_rows(known), key=lambda row: abs(float(row["offset_us"])))
    spread = float(known["spread_us"].max())
    offset = float(far["offset_us"])
    if abs(offset) <= max(2 * spread, 20.0):
        return f"The clocks agree within {_time(max(abs(offset), spread))}, what the ends of collectives differ anyway."
    return (
        f"{_rank(far['rank']).capitalize()}'s clock is {_time(abs(offset))} {'ahead of' if offset > 0 else 'behind'} "
        f"the first rank's (spread {_time(spread)}): take that off before comparing times between ranks, as the "
        "tables here do."
    )
