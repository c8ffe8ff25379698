"""Rules about time: each takes the traces of a run, one per rank, and returns at most one finding.

A finding is a table, one sentence with its number, and at most one piece of advice: a remedy, and the share of the time
that it could save. A sentence names the rank whose time it states, or is over all ranks. What is unknown is left out.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.diagnose.advice import LEAST, Advice, Context, faster_gemms
from analysis.diagnose.finding import Finding, joined, number
from analysis.intervals import total_ns
from analysis.metrics.kernels import tables as kernel_tables
from analysis.metrics.kernels.operator_roofline import fp32_share, gemm_time_by_precision
from analysis.metrics.time import idle, phases, temporal
from analysis.metrics.time.temporal import compute_utilization
from analysis.metrics.time.window import analysis_time, origin_ns
from analysis.names import MOVES_MEMORY, family, has_fused_optimizer
from analysis.timeline import Timeline, columns, lost_kernels, typed
from analysis.wording import percent
from records.schema import COMPUTE_COLUMNS

Times = Sequence[temporal.Temporal]
Gaps = Sequence[tuple[Timeline, pd.DataFrame]]
"""Ranks with work, each with its gaps (`idle.idle_gaps`)."""
_TOP = 30
_HALF = 0.5
# Of the columns of a wide table, those that a narrow terminal still shows.
_FIRST = (
    "rank", "steps", "span_ms", "compute_share", "exposed_communication_share", "exposed_memory_share", "idle_share",
    "overlap_share",
)  # fmt: skip
_WINDOW_COLUMNS = columns("rank window first_step last_step steps start_ms span_ms")
_WAITS = {
    "start_up": "before the first kernel",
    "tear_down": "after the last kernel",
    "data_wait": "waiting for data",
    "communication": "waiting in communication",
    "synchronization": "after a synchronization",
    "allocator": "while the CPU allocates memory",
    "launch_bound": "launch-bound",
    "unknown": "of unknown cause",
}


def window(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return window: rank, window ("steps" | "work" | what was asked for), first_step, last_step, steps, start_ms (on
    the clock of --window), span_ms; nothing without events."""
    rows = []
    for timeline in timelines:
        if (whole := analysis_time(timeline)) is not None:
            steps = timeline.steps["step"]
            kind = "steps" if len(steps) else "work"
            row: dict[str, Any] = {"rank": timeline.rank, "window": timeline.window.label if timeline.window else kind}
            row |= {"first_step": steps.iloc[0], "last_step": steps.iloc[-1]} if len(steps) else {}
            row |= {"steps": len(steps), "start_ms": (int(whole[0, 0]) - origin_ns(timeline)) / 1e6}
            rows.append({**row, "span_ms": total_ns(whole) / 1e6})
    if not rows:
        return []
    table = typed(rows, _WINDOW_COLUMNS)
    first = table.iloc[0]
    what = str(first["window"])
    if what == "steps":
        what = f"step {first['first_step']}" + (f" to {first['last_step']}" if first["steps"] > 1 else "")
    span = " to ".join(dict.fromkeys(map(number, (table["span_ms"].min(), table["span_ms"].max()))))
    sentence = f"All tables cover {what}, {span} ms; counts are of work launched in it."
    return [Finding("window", "Window of the tables below", table, sentence)]


def findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return what the traces say about time.

    Names: temporal_breakdown, compute_utilization, idle_causes, idle_gaps, kernel_families, top_kernels, phases,
    memory_copies, launch_queue, iterations, steps.
    """
    context = context or Context()
    times = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    gaps = [(one, table) for one in timelines if (table := idle.idle_gaps(one)) is not None]
    span = sum(row.span_ns for row in times)
    made = [
        where_time_goes(timelines, times) if times else None,
        utilization(timelines) if timelines else None,
        idle_causes(gaps, span, context),
        largest_gaps(gaps),
        kernel_families(timelines, span, context),
        top_kernels(timelines),
        time_by_phase(timelines),
        memory_copies(timelines, times, span),
        queue(timelines),
        *steps(timelines),
    ]
    return [finding for finding in made if finding is not None]


def where_time_goes(timelines: Sequence[Timeline], times: Times) -> Finding:
    """Return temporal_breakdown, without advice: that is with the parts of the time."""
    span = sum(row.span_ns for row in times)
    compute, exposed, waiting = (
        percent(sum(getattr(row, name) for row in times) / span)
        for name in ("compute_ns", "exposed_communication_ns", "idle_ns")
    )
    table = temporal.temporal_frame(times)
    launched = {timeline.rank: temporal.launched_compute_ns(timeline) for timeline in timelines}
    if any(value is not None for value in launched.values()):
        table["launched_compute_ms"] = [(launched[row.rank] or float("nan")) / 1e6 for row in times]
    table = table[[*_FIRST, *(name for name in table.columns if name not in _FIRST)]]
    if not any(row.on_gpu for row in times):  # a CPU has no copies apart from computation
        table = table.drop(columns=["devices", *(name for name in table.columns if "memory" in name)])
    slowest = number(max(row.span_ns / max(row.steps or 1, 1) for row in times) / 1e6)
    what = "step" if all(len(timeline.steps) for timeline in timelines) else "recording"
    what = "part" if any(timeline.is_part for timeline in timelines) else what
    several = f"The slowest rank's {what} takes {slowest} ms; over all ranks"
    whose = several if len(times) > 1 else f"{'The' if what == 'recording' else 'A'} {what} takes {slowest} ms:"
    sentence = f"{whose} {compute} computation, {exposed} exposed communication, {waiting} idle."
    if not times[0].on_gpu and lost_kernels(timelines):
        sentence = f"The trace lacks its GPU kernels; the CPU computes {compute} of the {what}'s {slowest} ms."
    return Finding("temporal_breakdown", "Where the time goes", table, sentence)


def utilization(timelines: Sequence[Timeline]) -> Finding:
    """Return compute_utilization."""
    rows = map(compute_utilization, timelines)
    table = pd.DataFrame([{name: getattr(row, name) for name in COMPUTE_COLUMNS} for row in rows])
    table["rank"] = table["rank"].astype("Int64")
    runs, weighted = (
        table[name].dropna().astype(float).mean() for name in ("compute_utilization", "sm_weighted_utilization")
    )
    sentence = "Compute utilization is unknown; the table gives the reason."
    if pd.notna(runs) and table["devices"].isna().all():
        table = table.drop(columns=["sm_weighted_utilization", "devices"])
        sentence = _over(timelines, f"the CPU runs an operator {percent(runs)} of the time.")
    elif pd.notna(runs):
        filled = "" if pd.isna(weighted) else f"; weighted by the multiprocessors it fills, {percent(weighted)}"
        sentence = _over(timelines, f"a kernel runs {percent(runs)} of the time{filled}.")
    return Finding("compute_utilization", "Compute utilization", table, sentence)


def idle_causes(gaps: Gaps, span_ns: int, context: Context) -> Finding | None:
    """Return idle_causes, with advice on the cause that could save most of the ranks' time."""
    timelines = [timeline for timeline, _ in gaps]
    table = joined([idle.idle_causes(*pair) for pair in gaps])
    if table is None:
        return None
    shares = table.groupby("cause", sort=False)[["idle_ms", "repeating_ms", "long_ms"]].sum() / (span_ns / 1e6)
    whole, largest = percent(float(shares["idle_ms"].sum())), shares["idle_ms"].idxmax()
    mostly = f"mostly {_WAITS[str(largest)]} ({percent(float(shares['idle_ms'].max()))})."
    if not any(len(timeline.work) for timeline in timelines):
        sentence = _over(timelines, f"the CPU does not compute {whole} of the time, {mostly}")
        return Finding("idle_causes", "Why the CPU does not compute", table, sentence)
    sentence = _over(timelines, f"the GPU is idle {whole} of the time, {mostly}")
    return Finding("idle_causes", "Why the GPU is idle", table, sentence, _idle_advice(shares, context))


def _idle_advice(shares: "pd.DataFrame", context: Context) -> tuple[Advice, ...]:
    """Return the largest gain: what launching saves repeats in short gaps; a pause of the CPU is a long one."""
    by_cause = shares.reindex([*_WAITS], fill_value=0.0).to_dict("index")
    repeating = {str(cause): float(row["repeating_ms"]) for cause, row in by_cause.items()}
    pauses, data = float(by_cause["launch_bound"]["long_ms"]), float(by_cause["data_wait"]["idle_ms"])
    launch = f"try {context.fewer_launches}"
    if pauses > repeating["launch_bound"]:
        launch = "find out what the CPU does in the largest idle gaps"
    blocking = "remove .item(), .cpu() and prints from the loop"
    allocation = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use equal shapes"
    saves, cause, what, remedy = max(
        (max(repeating["launch_bound"], pauses), "host", "work", launch),
        (data, "data", "data", "use more loader workers, prefetching, or prepared inputs"),
        (repeating["synchronization"], "synchronization", "the CPU, which synchronizes,", blocking),
        (repeating["allocator"], "allocator", "memory to be allocated", allocation),
    )
    return _advised(cause, f"the GPU waits for {what} {percent(saves)} of the time", remedy, saves)


def _advised(cause: str, seen: str, remedy: str, saves: float) -> tuple[Advice, ...]:
    return (Advice(cause=cause, seen=seen, remedy=remedy, saves=saves),) if saves >= LEAST else ()


def largest_gaps(gaps: Gaps) -> Finding | None:
    """Return idle_gaps: the longest idle times of each rank, where they are and what the CPU did."""
    table = joined([idle.largest_gaps(*pair) for pair in gaps])
    if table is None:
        return None
    longest = table.nlargest(1, "length_ms").iloc[0]
    sentence = f"The longest idle gap{_of_rank(longest['rank'], gaps)} takes {number(float(longest['length_ms']))} ms"
    sentence += f", with the CPU in {longest['call'][:80]}." if longest["call"] else "."
    on_gpu = any(len(timeline.work) for timeline, _ in gaps)
    return Finding("idle_gaps", f"Largest {'idle gaps' if on_gpu else 'times without computation'}", table, sentence)


def kernel_families(timelines: Sequence[Timeline], span_ns: int, context: Context) -> Finding | None:
    """Return kernel_families, with advice on the kernels that could save most."""
    table = kernel_tables.over_ranks([kernel_tables.kernel_rows(one, copies=False) for one in timelines], "family")
    if not len(table) or not float(table["mean_ms"].sum()):
        return None
    name, share = str(table["family"].iloc[0]), percent(float(table["kernel_time_share"].iloc[0]))
    sentence = _over(timelines, f"{name} takes {share} of the kernels' time{_gemms(timelines)}.")

    def running(*families: str) -> float:
        running_ns = (temporal.running_ns(one, lambda name: family(name) in families) for one in timelines)
        return sum(running_ns) / span_ns if span_ns else 0.0

    devices = [name for timeline in timelines for name in timeline.devices.values()]
    remedy = "" if context.narrow or fp32_share(timelines) <= _HALF else faster_gemms(devices)
    narrow = running("GEMM") * fp32_share(timelines) if remedy else 0.0
    advice = _kernel_advice(timelines, context, narrow, remedy, running(*MOVES_MEMORY))
    return Finding("kernel_families", "Kernels by family", table, sentence, advice)


def _gemms(timelines: Sequence[Timeline]) -> str:
    """Return "; GEMMs run in bf16 (98.0 %)" and the like; "" where names tell nothing."""
    times = gemm_time_by_precision(timelines)
    total = sum(times.values())
    label, time = max(times.items(), key=lambda item: item[1], default=("", 0))
    return f"; GEMMs run in {label} ({percent(time / total)})" if label and total else ""


def _kernel_advice(
    timelines: Sequence[Timeline], context: Context, narrow: float, remedy: str, moving: float
) -> tuple[Advice, ...]:
    """Return the larger of two gains: of GEMMs in another type, and of fusing what only moves memory."""
    if narrow >= max(moving, LEAST):
        return _advised("precision", f"GEMMs run in fp32 for {percent(narrow)} of the time", remedy, narrow)
    tables = [part for one in timelines for part in (one.kernels, one.operators)]
    fused = has_fused_optimizer({str(name) for part in tables for name in part["name"].unique()})
    seen = f"work that only moves memory takes {percent(moving)} of the time"
    return _advised("fusion", seen, f"fuse it {context.fusing(fused)}", moving)


def top_kernels(timelines: Sequence[Timeline]) -> Finding | None:
    """Return top_kernels."""
    table = kernel_tables.over_ranks([kernel_tables.kernel_rows(timeline, copies=False) for timeline in timelines])
    if not len(table):
        return None
    sentence = "No kernel of the window took any time."
    if float(table["mean_ms"].sum()):
        shares = table["kernel_time_share"]
        sentence = f"{_most(shares)} of {len(table)} kernels make up 80 % of the kernels' time; "
        sentence += f"the longest takes {percent(shares.iloc[0])}."
    return Finding("top_kernels", f"Longest kernels (at most {_TOP})", table.head(_TOP), sentence)


def _most(shares: "pd.Series[float]") -> int:
    """Return how many of the largest shares make up 80 %."""
    return int((shares.cumsum() < 0.8).sum()) + 1


def time_by_phase(timelines: Sequence[Timeline]) -> Finding | None:
    """Return phases."""
    table = joined([phases.phase_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    on_gpu = bool(table["gpu_ms"].notna().any())
    sums = table.groupby("phase")["gpu_ms" if on_gpu else "host_ms"].sum()
    whole, known = float(sums.sum()), sums.drop("other", errors="ignore")
    table = table if on_gpu else table.drop(columns=["gpu_ms", "gpu_share", "kernels"])
    sentence = ""
    if len(known) and known.max() > 0:
        of = "the GPU's time" if on_gpu else "the time on the CPU"
        sentence = _over(timelines, f"{known.idxmax()} takes {percent(float(known.max()) / whole)} of {of}.")
    return Finding("phases", "Time by phase", table, sentence)


def memory_copies(timelines: Sequence[Timeline], times: Times, span_ns: int) -> Finding | None:
    """Return memory_copies: a row per rank, direction and memory of the CPU, with advice on exposed copies."""
    table = joined([kernel_tables.copy_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    total = float(table["total_ms"].sum())
    hidden = float((table["overlapped_share"].fillna(0) * table["total_ms"]).sum()) / total if total else 0.0
    sentence = f"Copies take {number(total / len(timelines))} ms per rank, {percent(hidden)} of it overlapped."
    exposed = sum(row.exposed_memory_ns for row in times) - sum(map(temporal.start_up_copies_ns, timelines))
    share = exposed / span_ns if span_ns else 0.0
    remedy = "overlap them with computation"
    if float(table.loc[table["host_memory"] == "pageable", "total_ms"].sum()) > _HALF * total:
        remedy = "copy from pinned memory (pin_memory=True, non_blocking=True)"
    advice = _advised("copies", f"copies that overlap with nothing take {percent(share)} of the time", remedy, share)
    return Finding("memory_copies", "Memory copies by direction", table, sentence, advice)


def queue(timelines: Sequence[Timeline]) -> Finding | None:
    """Return launch_queue: how long work waits between its launch and its start."""
    table = idle.launch_queue(timelines)
    if not len(table):
        return None
    waiting, empty = (
        percent(float((table[name] * table["matched"]).sum() / table["matched"].sum()))
        for name in ("found_idle_share", "empty_share")
    )
    sentence = f"{waiting} of kernels found the GPU waiting; the queue was empty {empty} of the time."
    return Finding("launch_queue", "Launch queue", table, _over(timelines, sentence))


def steps(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return iterations, the spread over the steps, each of its slowest rank, and steps; nothing without marks."""
    table = joined([temporal.iterations(timeline) for timeline in timelines])
    if table is None:
        return []
    longest = table.groupby("step", sort=False)["step_time_ms"].idxmax()
    if not any(len(timeline.kernels) for timeline in timelines):
        table = table.drop(columns=["memory_ms", "exposed_memory_ms", "kernels", "launched_compute_ms", "behind_ms"])
    spread = temporal.iteration_spread(table.loc[longest])
    table = table.dropna(axis="columns", how="all")
    times = table.loc[longest, "step_time_ms"]
    whose = "The median step of the slowest rank" if len(timelines) > 1 else "The median step"
    sentence = f"{whose} takes {number(float(times.median()))} ms"
    sentence += f", the longest {number(float(times.max()))} ms." if len(times) > 1 else "."
    slowest = table.nlargest(1, "step_time_ms").iloc[0]
    worst = f"The slowest is step {int(slowest['step'])}{_of_rank(slowest.get('rank'), timelines)}: "
    worst += f"{number(float(slowest['step_time_ms']))} ms."
    return [
        Finding("iterations", "Spread over the steps, each that of its slowest rank", spread, sentence),
        Finding("steps", "Every step", table, worst),
    ]


def ranges(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return ranges: the named ranges of the program; nothing where there are none."""
    table = phases.range_rows(timelines)
    if not len(table):
        return []
    first = table.iloc[0]
    sentence = f"{first['name'][:80]} takes longest of {len(table)} names: {number(float(first['total_ms']))} ms in "
    sentence += f"{first['count']:,} calls{' of all ranks' if len(timelines) > 1 else ''}."
    return [Finding("ranges", f"Named ranges, time on the CPU (at most {_TOP})", table.head(_TOP), sentence)]


def operators(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return operator_families and top_operators; nothing where a GPU worked, or no operator took time."""
    context = context or Context()
    if any(len(timeline.kernels) for timeline in timelines):
        return []
    families, names = (kernel_tables.operators_over_ranks(timelines, by) for by in ("family", "name"))
    if not len(families) or not float(names["self_ms"].sum()):
        return []
    share = dict(zip(families["family"], families["self_time_share"].astype(float), strict=True))
    sentence = f"{families['family'].iloc[0]} takes {percent(max(share.values()))} of the operators' self time"
    times = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    computes = sum(row.compute_ns for row in times) / sum(row.span_ns for row in times) if times else 0.0
    moving = sum(share.get(name, 0.0) for name in MOVES_MEMORY) * computes
    fp32 = fp32_share(timelines)
    narrow = share.get("GEMM", 0.0) * fp32 * computes
    narrow = narrow if context.native_bf16 and not context.narrow and fp32 > _HALF else 0.0
    advice = () if lost_kernels(timelines) else _kernel_advice(timelines, context, narrow, "train in bf16", moving)
    longest = f"{_most(names['self_time_share'])} of {len(names)} operators make up 80 % of the self time; "
    longest += f"{names['name'].iloc[0]} is the longest."
    sentence = _over(timelines, f"{sentence}{_gemms(timelines)}.")
    return [
        Finding("operator_families", "Operators by family", families, sentence, advice),
        Finding("top_operators", f"Longest operators (at most {_TOP})", names.head(_TOP), longest),
    ]


def _over(timelines: Sequence[object], sentence: str) -> str:
    """Return a sentence about all ranks, which says so where there are several."""
    text = f"over all ranks, {sentence}" if len(timelines) > 1 else sentence
    return text[:1].upper() + text[1:]


def _of_rank(rank: int | None, ranks: Sequence[object]) -> str:
    return f" of rank {int(rank)}" if len(ranks) > 1 and rank is not None and not pd.isna(rank) else ""
