"""Rules about time: each takes a table of a run's traces, one per rank, and returns one finding.

A finding is a table, one sentence with its number, and at most one piece of advice: a remedy, and the share of the time
of all ranks that it could save.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from analysis.diagnose.advice import Advice, Context, advised, faster_gemms
from analysis.diagnose.finding import Finding, joined, number
from analysis.intervals import total_ns
from analysis.metrics.kernels import tables
from analysis.metrics.kernels.core_utilization import sampled_utilization
from analysis.metrics.kernels.modules import OUTSIDE, class_rows, module_rows
from analysis.metrics.kernels.operator_roofline import gemm_time_by_precision, operator_roofline
from analysis.metrics.time import idle, phases, temporal
from analysis.metrics.time.temporal import compute_utilization
from analysis.metrics.time.window import analysis_time, origin_ns
from analysis.names import MOVES_MEMORY, family, has_fused_optimizer
from analysis.timeline import Timeline, columns, lost_kernels, typed
from analysis.wording import counted, is_known, percent

_TOP = 30
_HALF = 0.5
_LEAST_MODULE = 0.001
"""Share of the time from which a module is shown."""
# Of the columns of a wide table, those that a narrow terminal still shows.
_FIRST = (
    "rank", "steps", "span_ms", "compute_share", "exposed_communication_share", "exposed_memory_share", "idle_share",
    "overlap_share",
)  # fmt: skip
_WINDOW_COLUMNS = columns("rank window steps start_ms span_ms")
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


@dataclass(frozen=True, slots=True)
class _Run:
    timelines: Sequence[Timeline]
    times: Sequence[temporal.Temporal]
    """Of the ranks with work."""
    context: Context
    gemm_times: Mapping[str, int]
    """ns by type, most time first."""

    @property
    def span_ns(self) -> int:
        return sum(row.span_ns for row in self.times)

    @property
    def has_kernels(self) -> bool:
        return any(len(timeline.kernels) for timeline in self.timelines)

    def of_rank(self, rank: int | None) -> str:
        several = len(self.timelines) > 1
        return f" of rank {int(rank)}" if several and rank is not None and not pd.isna(rank) else ""


def findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return what the traces say about time; what they do not say is left out.

    Names: window, temporal_breakdown, compute_utilization, sampled_utilization, idle_causes, idle_gaps,
    kernel_families, top_kernels, phases, memory_copies, launch_queue, steps, operator_families, top_operators,
    module_classes, modules, operator_roofline, ranges.
    """
    if not timelines:
        return []
    times = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    gaps = [(one, table) for one in timelines if (table := idle.idle_gaps(one)) is not None]
    run = _Run(timelines, times, context or Context(), gemm_time_by_precision(timelines))
    places, kernels = module_rows(timelines), [tables.kernel_rows(one, copies=False) for one in timelines]
    on_cpu = [] if run.has_kernels else timelines
    rules: list[tuple[Callable[[pd.DataFrame, _Run], Finding | None], pd.DataFrame | None]] = [
        (_breakdown, temporal.temporal_frame(times) if times else None),
        (_utilization, pd.DataFrame([*map(compute_utilization, timelines)])),
        (_sampled, joined([sampled_utilization(one) for one in timelines])),
        (_idle_causes, joined([idle.idle_causes(*pair) for pair in gaps])),
        (_largest_gaps, joined([idle.largest_gaps(*pair) for pair in gaps])),
        (_kernel_families, tables.over_ranks(kernels, "family")),
        (partial(_longest, "kernel"), tables.over_ranks(kernels)),
        (_phases, joined([phases.phase_rows(one) for one in timelines])),
        (_copies, joined([tables.copy_rows(one) for one in timelines])),
        (_queue, idle.launch_queue(timelines)),
        (_steps, joined([temporal.iterations(one) for one in timelines])),
        (_operator_families, tables.operators_over_ranks(on_cpu, "family") if on_cpu else None),
        (partial(_longest, "operator"), tables.operators_over_ranks(on_cpu) if on_cpu else None),
        (_module_classes, class_rows(places)),
        (_modules, places if (places["path"] != OUTSIDE).any() else None),
        (_roofline, operator_roofline(timelines)),
        (_ranges, phases.range_rows(timelines)),
    ]
    made = [rule(table, run) for rule, table in rules if table is not None and len(table)]
    return [*window(timelines), *(one for one in made if one is not None)]


def window(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return window: rank, window ("steps" | "work" | the chosen one), steps, start_ms (on the
    clock of --window), span_ms; nothing without events."""
    rows = []
    for timeline in timelines:
        if (whole := analysis_time(timeline)) is not None:
            steps = timeline.steps["step"]
            kind = "steps" if len(steps) else "work"
            row: dict[str, Any] = {"rank": timeline.rank, "window": timeline.window.label if timeline.window else kind}
            row |= {"steps": len(steps), "start_ms": (int(whole[0, 0]) - origin_ns(timeline)) / 1e6}
            rows.append({**row, "span_ms": total_ns(whole) / 1e6})
    if not rows:
        return []
    table = typed(rows, _WINDOW_COLUMNS)
    first = table.iloc[0]
    what = counted(int(first["steps"]), "step") if first["window"] == "steps" else first["window"]
    ranks = f" of {len(table)} ranks" if len(table) > 1 else ""
    span = " to ".join(dict.fromkeys(map(number, (table["span_ms"].min(), table["span_ms"].max()))))
    sentence = f"Tables cover {what}{ranks}, {span} ms; counts are of work launched in it."
    return [Finding("window", "Window of the tables below", table, sentence)]


def _breakdown(table: pd.DataFrame, run: _Run) -> Finding:
    """Without advice: that is with the parts of the time."""
    compute, exposed, waiting = (
        percent(sum(getattr(row, name) for row in run.times) / run.span_ns)
        for name in ("compute_ns", "exposed_communication_ns", "idle_ns")
    )
    launched = {timeline.rank: temporal.launched_compute_ns(timeline) for timeline in run.timelines}
    if any(value is not None for value in launched.values()):
        table["launched_compute_ms"] = [(launched[row.rank] or float("nan")) / 1e6 for row in run.times]
    table = table[[*_FIRST, *(name for name in table.columns if name not in _FIRST)]]
    if not any(row.on_gpu for row in run.times):  # a CPU has no copies apart from computation
        table = table.drop(columns=["devices", *(name for name in table.columns if "memory" in name)])
    by_step = all(len(one.steps) and not one.is_part for one in run.timelines)
    slowest = number(max(row.span_ns / (row.steps if by_step else 1) for row in run.times) / 1e6)
    time = f"{'step' if by_step else 'window'} takes {'up to ' if len(table) > 1 else ''}{slowest} ms"
    time += "; over all ranks" if len(table) > 1 else ":"
    sentence = f"A {time} {compute} computation, {exposed} exposed communication, {waiting} idle."
    if not run.times[0].on_gpu and lost_kernels(run.timelines):
        sentence = f"The trace lacks its GPU kernels; the CPU computes {compute} of the time."
    return Finding("temporal_breakdown", "Where the time goes", table, sentence)


def _utilization(table: pd.DataFrame, run: _Run) -> Finding:
    table = table[[*temporal.Utilization._fields]].astype({"rank": "Int64"})
    runs, weighted = (
        float(table[name].astype(float).mean()) for name in ("compute_utilization", "sm_weighted_utilization")
    )
    what, sentence = "A kernel", "Compute utilization is unknown; the table gives the reason."
    if is_known(runs):
        if table["devices"].isna().all():
            table, what = table.drop(columns=["sm_weighted_utilization", "devices"]), "An operator"
        filled = f"; weighted by the multiprocessors it fills, {percent(weighted)}" if is_known(weighted) else ""
        sentence = f"{what} runs {percent(runs)} of the time{filled}."
    return Finding("compute_utilization", "Compute utilization", table, sentence)


def _sampled(table: pd.DataFrame, run: _Run) -> Finding:
    weights = table["samples"] / table["samples"].sum()
    sm, tensor = ((table[name] * weights).sum() for name in ("sm_utilization", "tensor_utilization"))
    sentence = f"By sampled counters, SMs are active {percent(sm)} and tensor pipes {percent(tensor)} of the time."
    return Finding("sampled_utilization", "SM and tensor utilization over time", table, sentence)


def _idle_causes(table: pd.DataFrame, run: _Run) -> Finding:
    """With advice on the cause that could save most of the ranks' time; none for a CPU."""
    sums = table.groupby("cause", sort=False)[["idle_ms", "repeating_ms", "long_ms"]].sum()
    shares = sums.reindex([*_WAITS], fill_value=0.0) / (run.span_ns / 1e6)
    on_gpu = any(len(timeline.work) for timeline in run.timelines)
    idles = "GPU is idle" if on_gpu else "CPU does not compute"
    sentence = f"The {idles} {percent(float(shares['idle_ms'].sum()))} of the time, "
    sentence += f"mostly {_WAITS[str(shares['idle_ms'].idxmax())]} ({percent(float(shares['idle_ms'].max()))})."
    advice = _idle_advice(shares, run.context) if on_gpu else ()
    return Finding("idle_causes", f"Why the {idles}", table, sentence, advice)


def _idle_advice(shares: pd.DataFrame, context: Context) -> tuple[Advice, ...]:
    """Return the largest gain: what launching saves repeats in short gaps; a pause of the CPU is a long one."""
    repeating, pauses = shares["repeating_ms"], float(shares["long_ms"]["launch_bound"])
    launch = f"try {context.fewer_launches}"
    if pauses > repeating["launch_bound"]:
        launch = "find out what the CPU does in the largest idle gaps"
    blocking = "remove .item(), .cpu() and prints from the loop"
    allocation = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use equal shapes"
    data = float(shares["idle_ms"]["data_wait"])
    saves, cause, what, remedy = max(
        (max(float(repeating["launch_bound"]), pauses), "host", "work", launch),
        (data, "data", "data", "use more loader workers, prefetching, or prepared inputs"),
        (float(repeating["synchronization"]), "synchronization", "the CPU, which synchronizes,", blocking),
        (float(repeating["allocator"]), "allocator", "memory to be allocated", allocation),
    )
    return advised(cause, f"the GPU waits for {what} {percent(saves)} of the time", remedy, saves)


def _largest_gaps(table: pd.DataFrame, run: _Run) -> Finding:
    longest = table.nlargest(1, "length_ms").iloc[0]
    sentence = f"The longest idle gap{run.of_rank(longest['rank'])} takes {number(float(longest['length_ms']))} ms"
    sentence += f", with the CPU in {longest['call'][:80]}." if longest["call"] else "."
    return Finding("idle_gaps", "Largest idle gaps", table, sentence)


def _kernel_families(table: pd.DataFrame, run: _Run) -> Finding | None:
    def running(*families: str) -> float:
        running_ns = (temporal.running_ns(one, lambda name: family(name) in families) for one in run.timelines)
        return sum(running_ns) / run.span_ns if run.span_ns else 0.0

    remedy = faster_gemms([name for timeline in run.timelines for name in timeline.devices.values()])
    advice = _work_advice(run, running("GEMM"), remedy, running(*MOVES_MEMORY))
    return _families("kernel", table, table["kernel_time_share"], run, advice)


def _operator_families(table: pd.DataFrame, run: _Run) -> Finding | None:
    share = dict(zip(table["family"], table["self_time_share"].astype(float), strict=True))
    computes = sum(row.compute_ns for row in run.times) / run.span_ns if run.span_ns else 0.0
    gemms, moving = (sum(share.get(one, 0.0) for one in each) * computes for each in (["GEMM"], MOVES_MEMORY))
    remedy = "train in bf16" if run.context.native_bf16 else ""
    advice = () if lost_kernels(run.timelines) else _work_advice(run, gemms, remedy, moving)
    return _families("operator", table, table["self_time_share"], run, advice)


def _families(
    what: str, table: pd.DataFrame, shares: "pd.Series[float]", run: _Run, advice: tuple[Advice, ...]
) -> Finding | None:
    """Name the first family, its share, and the type in which most GEMMs run, where their names say it."""
    label, time = next(iter(run.gemm_times.items()), ("", 0))
    gemms = f"; GEMMs run in {label} ({percent(time / sum(run.gemm_times.values()))})" if label else ""
    sentence = f"{percent(shares.iloc[0])} of the {what}s' time is {table['family'].iloc[0]}{gemms}."
    finding = Finding(f"{what}_families", f"{what.capitalize()}s by family", table, sentence, advice)
    return finding if is_known(shares.iloc[0]) else None


def _work_advice(run: _Run, gemms: float, remedy: str, moving: float) -> tuple[Advice, ...]:
    """Return the larger of two gains: of fp32 GEMMs in another type, and of fusing what only moves memory."""
    fp32 = run.gemm_times.get("fp32", 0) / (sum(run.gemm_times.values()) or 1)
    narrow = gemms * fp32 if remedy and fp32 > _HALF and not run.context.narrow else 0.0
    if narrow >= moving:
        return advised("precision", f"GEMMs run in fp32 for {percent(narrow)} of the time", remedy, narrow)
    if run.context.fused:
        return ()
    parts = [part for one in run.timelines for part in (one.kernels, one.operators)]
    fused = has_fused_optimizer({str(name) for part in parts for name in part["name"].unique()})
    seen = f"work that only moves memory takes {percent(moving)} of the time"
    return advised("fusion", seen, f"fuse it {run.context.fusing(fused)}", moving)


def _longest(what: str, table: pd.DataFrame, run: _Run) -> Finding:
    """Say how many names make up 80 % of the time, and the share of the longest."""
    shares = table["kernel_time_share" if what == "kernel" else "self_time_share"]
    most = int((shares.cumsum() < 0.8).sum()) + 1
    sentence = (
        f"{most} of {len(shares)} {what}s make up 80 % of their time; the longest takes {percent(shares.iloc[0])}."
    )
    return Finding(f"top_{what}s", f"Longest {what}s (at most {_TOP})", table.head(_TOP), sentence)


def _phases(table: pd.DataFrame, run: _Run) -> Finding:
    on_gpu = bool(table["gpu_ms"].notna().any())
    sums = table.groupby("phase")["gpu_ms" if on_gpu else "host_ms"].sum()
    whole, known = float(sums.sum()), sums.drop("other", errors="ignore")
    table = table if on_gpu else table.drop(columns=["gpu_ms", "gpu_share", "kernels"])
    sentence = ""
    if len(known) and known.max() > 0:
        share = percent(float(known.max()) / whole)
        sentence = f"{share} of the {'GPU' if on_gpu else 'CPU'}'s time is {known.idxmax()}."
    return Finding("phases", "Time by phase", table, sentence)


def _copies(table: pd.DataFrame, run: _Run) -> Finding:
    """A row per rank, direction and memory of the CPU, with advice on exposed copies."""
    total = float(table["total_ms"].sum())
    hidden = float((table["overlapped_share"].fillna(0) * table["total_ms"]).sum()) / total if total else 0.0
    sentence = f"Copies take {number(total / len(run.timelines))} ms per rank, {percent(hidden)} of it overlapped."
    exposed = sum(row.exposed_memory_ns for row in run.times) - sum(map(temporal.start_up_copies_ns, run.timelines))
    share = exposed / run.span_ns if run.span_ns else 0.0
    remedy = "overlap them with computation"
    if float(table.loc[table["host_memory"] == "pageable", "total_ms"].sum()) > _HALF * total:
        remedy = "copy from pinned memory (pin_memory=True, non_blocking=True)"
    advice = advised("copies", f"copies that overlap with nothing take {percent(share)} of the time", remedy, share)
    return Finding("memory_copies", "Memory copies by direction", table, sentence, advice)


def _queue(table: pd.DataFrame, run: _Run) -> Finding:
    waiting, empty = (
        percent(float((table[name] * table["matched"]).sum() / table["matched"].sum()))
        for name in ("found_idle_share", "empty_share")
    )
    sentence = f"{waiting} of kernels found the GPU waiting; the queue was empty {empty} of the time."
    return Finding("launch_queue", "Launch queue", table, sentence)


def _steps(table: pd.DataFrame, run: _Run) -> Finding:
    if not run.has_kernels:
        table = table.drop(columns=["memory_ms", "exposed_memory_ms", "kernels", "launched_compute_ms", "behind_ms"])
    table = table.dropna(axis="columns", how="all")
    median = float(table.groupby("step", sort=False)["step_time_ms"].max().median())
    longest = table.nlargest(1, "step_time_ms").iloc[0]
    whose = " of the slowest rank" if len(run.timelines) > 1 else ""
    sentence = f"The median step{whose} takes {number(median)} ms; the longest, step {int(longest['step'])}"
    sentence += f"{run.of_rank(longest.get('rank'))}, {number(float(longest['step_time_ms']))} ms."
    if table["step"].nunique() == 1:
        sentence = f"The only step{whose} takes {number(median)} ms."
    return Finding("steps", "Every step", table, sentence)


def _module_classes(table: pd.DataFrame, run: _Run) -> Finding | None:
    first = table.iloc[0]
    sentence = f"{first['name']} has the largest own time: {percent(first['own_share'])} of all work, in "
    sentence += f"{first['instances']} instances."
    title = "Own time by class of module, mean per rank"
    return Finding("module_classes", title, table, sentence) if table["own_ms"].any() else None


def _modules(table: pd.DataFrame, run: _Run) -> Finding | None:
    largest = table.iloc[int(table["own_ms"].to_numpy().argmax())]
    outside = percent(float(table.loc[table["path"] == OUTSIDE, "total_share"].sum()))
    sentence = f"{largest['name']} has the largest own time, {number(largest['own_ms'])} ms; {outside} is outside."
    shown = table[table["total_share"] >= _LEAST_MODULE].reset_index(drop=True)
    shown["name"] = ["  " * depth + name for depth, name in zip(shown["depth"], shown["name"], strict=True)]
    shown = shown.drop(columns=["path"] if run.has_kernels else ["path", "kernels"])
    title = f"Time by module, mean per rank (modules with {percent(_LEAST_MODULE)} or more)"
    return Finding("modules", title, shown, sentence) if largest["own_ms"] else None


def _roofline(table: pd.DataFrame, run: _Run) -> Finding:
    known = table[table["attainable_fraction"].notna()]
    sentence = "The published peaks of this GPU and type are not known."
    if len(known):
        least = number(float((known["time_ms"] * known["attainable_fraction"]).sum()))
        measured = number(float(known["time_ms"].sum()))
        sentence = f"Operators with known peaks take {measured} ms; at the published peaks {least} ms."
    title = f"Roofline of GEMMs and attention by sizes and type, mean per rank (at most {_TOP})"
    return Finding("operator_roofline", title, table.head(_TOP), sentence)


def _ranges(table: pd.DataFrame, run: _Run) -> Finding:
    first = table.iloc[0]
    sentence = f"{first['name'][:80]} takes longest of {len(table)} names: {number(float(first['total_ms']))} ms in "
    sentence += f"{first['count']:,} calls{' of all ranks' if len(run.timelines) > 1 else ''}."
    return Finding("ranges", f"Named ranges, time on the CPU (at most {_TOP})", table.head(_TOP), sentence)
