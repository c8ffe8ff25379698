"""Rules about time: each takes the traces of a run, one per rank, and returns at most one finding.

A finding is a table, one sentence with its number, and at most one piece of advice: a remedy, and the share of the time
that it could save. What cannot be said is left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.diagnose.advice import LEAST, Advice, Context, faster_gemms
from analysis.diagnose.finding import Finding, joined, number
from analysis.metrics.kernels import tables as kernel_tables
from analysis.metrics.kernels.operator_roofline import fp32_share, gemm_time_by_precision
from analysis.metrics.kernels.utilization import compute_utilization
from analysis.metrics.time import idle, phases, temporal
from analysis.metrics.time.window import analysis_time, origin_ns
from analysis.names import MOVES_MEMORY, family, has_fused_optimizer
from analysis.spans import total_ns
from analysis.timeline import Timeline, lost_kernels, typed
from analysis.wording import percent
from records.schema import COMPUTE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from analysis.metrics.time.temporal import Temporal

_TOP = 30
_HALF = 0.5
_NO_LENGTH = "No kernel of the window took any time."
# Of the columns of a wide table, those that a narrow terminal still shows.
_FIRST = (
    "rank",
    "steps",
    "span_ms",
    "compute_share",
    "exposed_communication_share",
    "exposed_memory_share",
    "idle_share",
    "overlap_share",
)
_WINDOW_COLUMNS = {
    "rank": "Int64",
    "window": "str",
    "first_step": "Int64",
    "last_step": "Int64",
    "steps": "int64",
    "start_ms": "float64",
    "span_ms": "float64",
}
_NO_SYNCHRONIZATION = "remove .item(), .cpu() and prints from the loop"
_FEWER_ALLOCATIONS = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use equal shapes"
_WAITS = {
    "start_up": "before the first kernel",
    "tear_down": "after the last kernel",
    "data_wait": "waiting for data",
    "communication": "waiting in communication",
    "synchronization": "after the CPU waited for the GPU",
    "allocator": "while the CPU allocates memory",
    "launch_bound": "launch-bound",
    "unknown": "of unknown cause",
}


def window(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return window: rank, window ("steps" | "work" | what was asked for), first_step, last_step, steps, start_ms (on
    the clock of --window), span_ms; nothing without events."""
    rows = []
    for timeline in timelines:
        whole, steps = analysis_time(timeline), timeline.steps["step"]
        if whole is None:
            continue
        kind = "steps" if len(steps) else "work"
        row: dict[str, Any] = {
            "rank": timeline.rank,
            "window": kind if timeline.window is None else timeline.window.label,
        }
        row |= {"steps": len(steps), "start_ms": (int(whole[0, 0]) - origin_ns(timeline)) / 1e6}
        row |= {"first_step": steps.iloc[0], "last_step": steps.iloc[-1]} if len(steps) else {}
        rows.append({**row, "span_ms": total_ns(whole) / 1e6})
    if not rows:
        return []
    table = typed(rows, _WINDOW_COLUMNS)
    first = table.iloc[0]
    what = str(first["window"])
    if what == "steps":
        what = f"step {first['first_step']}" + (f" to {first['last_step']}" if first["steps"] > 1 else "")
    span = _from_to(table["span_ms"])
    sentence = f"All tables cover {what}, {span} ms; counts are of work launched in it."
    return [Finding("window", "Window of the tables below", table, sentence)]


def findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return what the traces say about time.

    Names: temporal_breakdown, compute_utilization, idle_causes, idle_gaps, kernel_families, top_kernels, phases,
    memory_copies, launch_queue, iterations, steps.
    """
    context = context or Context()
    times = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    gaps = [idle.idle_gaps(timeline) for timeline in timelines]
    made = [
        where_time_goes(timelines, times),
        utilization(timelines),
        idle_causes(timelines, times, gaps, context),
        largest_gaps(timelines, gaps),
        kernel_families(timelines, times, context),
        top_kernels(timelines),
        time_by_phase(timelines),
        memory_copies(timelines, times),
        queue(timelines),
        *steps(timelines),
    ]
    return [finding for finding in made if finding is not None]


def where_time_goes(timelines: Sequence[Timeline], times: "Sequence[Temporal]") -> Finding | None:
    """Return temporal_breakdown, without advice: that is with the parts of the time."""
    if not times:
        return None
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
    slowest = max(row.span_ns / max(row.steps or 1, 1) for row in times) / 1e6
    what = "step" if all(len(timeline.steps) for timeline in timelines) else "recording"
    what = "part" if any(timeline.is_part for timeline in timelines) else what
    sentence = f"A {what} takes {number(slowest)} ms: "
    if len(times) > 1:
        sentence = f"The slowest rank's {what} takes {number(slowest)} ms; on average "
    sentence += f"{compute} computation, {exposed} exposed communication, {waiting} idle."
    if not times[0].on_gpu and lost_kernels(timelines):
        sentence = f"The trace lacks its GPU kernels; the CPU computes {compute} of a {what} of {number(slowest)} ms."
    return Finding("temporal_breakdown", "Where the time goes", table, sentence)


def utilization(timelines: Sequence[Timeline]) -> Finding | None:
    """Return compute_utilization."""
    rows = [compute_utilization(timeline) for timeline in timelines]
    if not rows:
        return None
    table = pd.DataFrame([{name: getattr(row, name) for name in COMPUTE_COLUMNS} for row in rows])
    table["rank"] = table["rank"].astype("Int64")
    known = table["compute_utilization"].dropna()
    if not len(known):
        sentence = "Compute utilization is unknown; the table gives the reason."
        return Finding("compute_utilization", "Compute utilization", table, sentence)
    if table["devices"].isna().all():
        table = table.drop(columns=["sm_weighted_utilization", "devices"])
        sentence = f"The CPU runs an operator {percent(float(known.mean()))} of the time."
        return Finding("compute_utilization", "Compute utilization", table, sentence)
    sentence = f"A kernel runs {percent(float(known.mean()))} of the time"
    weighted = table["sm_weighted_utilization"].dropna().astype(float)
    if len(weighted):
        sentence += f"; weighted by the multiprocessors that its grid fills, {percent(float(weighted.mean()))}"
    return Finding("compute_utilization", "Compute utilization", table, f"{sentence}.")


def idle_causes(
    timelines: Sequence[Timeline],
    times: "Sequence[Temporal]",
    gaps: "Sequence[pd.DataFrame | None]",
    context: Context,
) -> Finding | None:
    """Return idle_causes, with advice on the cause that could save most.

    Args:
        timelines: one per rank.
        times: where the time of each with work goes.
        gaps: of each, of `idle.idle_gaps`.
        context: the recorded trial.
    """
    tables = [idle.idle_causes(one, own) for one, own in zip(timelines, gaps, strict=True) if own is not None]
    table = joined(tables)
    if table is None:
        return None
    on_gpu = any(len(timeline.work) for timeline in timelines)
    span_ms = sum(row.span_ns for row in times) / 1e6
    shares = table.groupby("cause", sort=False)[["idle_ms", "repeating_ms", "long_ms"]].sum() / span_ms
    whole = percent(float(shares["idle_ms"].sum()))
    sentence = f"The GPU is idle {whole} of the time" if on_gpu else f"The CPU does not compute {whole} of the time"
    largest = str(shares["idle_ms"].idxmax())
    sentence += f", mostly {_WAITS[largest]} ({percent(float(shares['idle_ms'].max()))})."
    title = "Why the GPU is idle" if on_gpu else "Why the CPU does not compute"
    return Finding("idle_causes", title, table, sentence, _idle_advice(shares, context) if on_gpu else ())


def _idle_advice(shares: "pd.DataFrame", context: Context) -> tuple[Advice, ...]:
    """Return the largest gain: what launching saves repeats in short gaps; a pause of the CPU is a long one."""

    def share(column: str, cause: str) -> float:
        return float(shares[column].get(cause, 0.0))

    launches, pauses = share("repeating_ms", "launch_bound"), share("long_ms", "launch_bound")
    pause = "find out what the CPU does in the largest idle gaps"
    saves, cause, what, remedy = max(
        (max(launches, pauses), "host", "work", f"try {context.fewer_launches}" if launches >= pauses else pause),
        (
            share("idle_ms", "data_wait"),
            "data",
            "data",
            "use more loader workers, prefetching, or prepared inputs",
        ),
        (
            share("repeating_ms", "synchronization"),
            "synchronization",
            "the CPU, which synchronizes,",
            _NO_SYNCHRONIZATION,
        ),
        (share("repeating_ms", "allocator"), "allocator", "memory to be allocated", _FEWER_ALLOCATIONS),
    )
    seen = f"the GPU waits for {what} {percent(saves)} of the time"
    return (Advice(cause=cause, seen=seen, remedy=remedy, saves=saves),) if saves >= LEAST else ()


def largest_gaps(timelines: Sequence[Timeline], gaps: "Sequence[pd.DataFrame | None]") -> Finding | None:
    """Return idle_gaps: the longest idle times of each rank, where they are and what the CPU did."""
    pairs = [(one, own) for one, own in zip(timelines, gaps, strict=True) if own is not None]
    table = joined([idle.largest_gaps(timeline, own) for timeline, own in pairs])
    if table is None:
        return None
    longest = table.nlargest(1, "length_ms").iloc[0]
    sentence = f"The longest idle gap takes {number(float(longest['length_ms']))} ms"
    sentence += f", with the CPU in {longest['call'][:80]}." if longest["call"] else "."
    on_gpu = any(len(timeline.work) for timeline in timelines)
    title = "Largest idle gaps" if on_gpu else "Longest times without computation"
    return Finding("idle_gaps", title, table, sentence)


def kernel_families(timelines: Sequence[Timeline], times: "Sequence[Temporal]", context: Context) -> Finding | None:
    """Return kernel_families, with advice on the kernels that could save most."""
    table = kernel_tables.over_ranks([kernel_tables.family_rows(timeline) for timeline in timelines], "family")
    if not len(table) or not float(table["mean_ms"].sum()):
        return None
    first = table.iloc[0]
    share = percent(float(first["kernel_time_share"]))
    name = str(first["family"])
    sentence = f"{name[:1].upper()}{name[1:]} takes {share} of the kernels' time{_gemms(timelines)}."
    span = sum(row.span_ns for row in times)

    def running(*families: str) -> float:
        return sum(temporal.running_ns(one, lambda name: family(name) in families) for one in timelines) / span

    gemm, moving = (running("GEMM"), running(*MOVES_MEMORY)) if span else (0.0, 0.0)
    narrow = gemm * fp32_share(timelines)
    devices = [name for timeline in timelines for name in timeline.devices.values()]
    remedy = "" if context.narrow or fp32_share(timelines) <= _HALF else faster_gemms(devices)
    advice = _kernel_advice(timelines, context, narrow if remedy else 0.0, remedy, moving)
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
        seen = f"GEMMs run in fp32 for {percent(narrow)} of the time"
        return (Advice(cause="precision", seen=seen, remedy=remedy, saves=narrow),)
    if moving >= LEAST:
        names = {
            str(name) for one in timelines for part in (one.kernels, one.operators) for name in part["name"].unique()
        }
        seen = f"work that only moves memory takes {percent(moving)} of the time"
        remedy = f"fuse it {context.fusing(has_fused_optimizer(names))}"
        return (Advice(cause="fusion", seen=seen, remedy=remedy, saves=moving),)
    return ()


def top_kernels(timelines: Sequence[Timeline]) -> Finding | None:
    """Return top_kernels."""
    table = kernel_tables.over_ranks([kernel_tables.kernel_rows(timeline, copies=False) for timeline in timelines])
    if not len(table):
        return None
    title = f"Longest kernels (at most {_TOP})"
    if not float(table["mean_ms"].sum()):
        return Finding("top_kernels", title, table.head(_TOP), _NO_LENGTH)
    few, share = int((table["kernel_time_share"].cumsum() < 0.8).sum()) + 1, percent(table["kernel_time_share"].iloc[0])
    sentence = f"{few} of {len(table)} kernels make up 80 % of the kernels' time; the longest takes {share}."
    return Finding("top_kernels", title, table.head(_TOP), sentence)


def time_by_phase(timelines: Sequence[Timeline]) -> Finding | None:
    """Return phases."""
    table = joined([phases.phase_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    on_gpu = bool(table["gpu_ms"].notna().any())
    sums = table.groupby("phase")["gpu_ms" if on_gpu else "host_ms"].sum().drop("other", errors="ignore")
    whole = float(table["gpu_ms" if on_gpu else "host_ms"].sum())
    table = table if on_gpu else table.drop(columns=["gpu_ms", "gpu_share", "kernels"])
    sentence = ""
    if len(sums) and whole and sums.max() > 0:
        what = "the GPU's time" if on_gpu else "the time on the CPU"
        sentence = f"{sums.idxmax()} takes {percent(float(sums.max()) / whole)} of {what}."
    return Finding("phases", "Time by phase", table, sentence)


def memory_copies(timelines: Sequence[Timeline], times: "Sequence[Temporal]") -> Finding | None:
    """Return memory_copies: a row per rank, direction and memory of the CPU, with advice on exposed copies."""
    table = joined([kernel_tables.copy_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    total, span = float(table["total_ms"].sum()), sum(row.span_ns for row in times)
    hidden = float((table["overlapped_share"].fillna(0) * table["total_ms"]).sum()) / total if total else 0.0
    sentence = f"Copies take {number(total / len(timelines))} ms per rank, {percent(hidden)} of it overlapped."
    exposed = sum(row.exposed_memory_ns for row in times) - sum(map(temporal.start_up_copies_ns, timelines))
    share = exposed / span if span else 0.0
    pageable = float(table.loc[table["host_memory"] == "pageable", "total_ms"].sum()) > _HALF * total
    remedy = (
        "copy from pinned memory (pin_memory=True, non_blocking=True)" if pageable else "overlap them with computation"
    )
    seen = f"copies that overlap with nothing take {percent(share)} of the time"
    advice = (Advice(cause="copies", seen=seen, remedy=remedy, saves=share),) if share >= LEAST else ()
    return Finding("memory_copies", "Memory copies by direction", table, sentence, advice)


def queue(timelines: Sequence[Timeline]) -> Finding | None:
    """Return launch_queue: how long work waits between its launch and its start."""
    table = idle.launch_queue(timelines)
    if not len(table):
        return None
    idle_share, empty = (
        percent(float((table[name] * table["matched"]).sum() / table["matched"].sum()))
        for name in ("found_idle_share", "empty_share")
    )
    sentence = f"{idle_share} of the kernels found the GPU waiting; the queue was empty {empty} of the time."
    return Finding("launch_queue", "Launch queue", table, sentence)


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
    sentence = f"The median step takes {number(float(times.median()))} ms, all {len(times)} from {_from_to(times)} ms."
    sentence = sentence if times.min() < times.max() else f"Steps take {number(float(times.max()))} ms."
    slowest = table.nlargest(1, "step_time_ms").iloc[0]
    rank = f" of rank {int(slowest['rank'])}" if len(timelines) > 1 and not pd.isna(slowest["rank"]) else ""
    worst = f"The slowest is step {int(slowest['step'])}{rank}: {number(float(slowest['step_time_ms']))} ms."
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
    calls, total = f"{first['count']:,}", number(float(first["total_ms"]))
    sentence = (
        f"{first['name'][:80]} takes longest of {len(table)} names: {total} ms in {calls} calls, nested included."
    )
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
    sentence += f"{_gemms(timelines)}."
    times = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    computes = sum(row.compute_ns for row in times) / sum(row.span_ns for row in times) if times else 0.0
    moving = sum(share.get(name, 0.0) for name in MOVES_MEMORY) * computes
    narrow = share.get("GEMM", 0.0) * fp32_share(timelines) * computes
    narrow = narrow if context.native_bf16 and not context.narrow and fp32_share(timelines) > _HALF else 0.0
    advice = () if lost_kernels(timelines) else _kernel_advice(timelines, context, narrow, "train in bf16", moving)
    few = int((names["self_time_share"].cumsum() < 0.8).sum()) + 1
    longest = f"{few} of {len(names)} operators make up 80 % of the self time; {names['name'].iloc[0]} is the longest."
    return [
        Finding("operator_families", "Operators by family", families, sentence, advice),
        Finding("top_operators", f"Longest operators (at most {_TOP})", names.head(_TOP), longest),
    ]


def _from_to(values: "Iterable[float]") -> str:
    """Return "588.8 to 625.7", or one number where both are written alike."""
    values = [float(value) for value in values]
    return " to ".join(dict.fromkeys(number(value) for value in (min(values), max(values))))
