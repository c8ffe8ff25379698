"""What the traces of a run say about time: tables, each with one sentence on what it means and what to try."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.diagnose import idle as idle_findings
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.copies import copy_advice, copy_finding, input_advice, overlap_remedy
from analysis.diagnose.finding import Finding, joined
from analysis.diagnose.sentences import (
    balance_sentence,
    devices_of,
    faster_gemms,
    fp32_share,
    least_to_most,
    number,
    precision_clause,
    range_over_ranks,
)
from analysis.metrics.kernels import tables as kernel_tables
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.metrics.kernels.utilization import compute_utilization
from analysis.metrics.time import phases, temporal
from analysis.metrics.time.idle import idle_causes
from analysis.metrics.time.launches import before_recording, launched_work
from analysis.metrics.time.ranges import range_rows
from analysis.metrics.time.temporal import analysis_window, window_set
from analysis.metrics.time.window import origin_ns
from analysis.names import MOVES_MEMORY, family, has_fused_optimizer
from analysis.spans import total_ns
from analysis.timeline import Timeline, lost_kernels
from analysis.wording import percent
from records.schema import COMPUTE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_TOP = 30
# Of the columns of a wide table, those that a narrow terminal still shows.
_SHARES_FIRST = (
    "compute_share",
    "exposed_communication_share",
    "exposed_memory_share",
    "idle_share",
    "overlap_share",
)
_LITTLE = 0.05
_MUCH = 0.25
_HALF = 0.5
_NEARLY_ALL = 0.1
"""Share of the time up to which what is not computation leaves faster kernels alone to gain from."""
_LONGER = 1.1
_OF_SLOWEST = ", each that of its slowest rank"
_NO_LENGTH = "By this trace, no kernel of the window took any time."


def findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return the findings of the traces of one run, one timeline per rank; what they cannot say is left out.

    Names: temporal_breakdown, compute_utilization, idle_causes, idle_gaps, kernel_families, top_kernels, phases,
    memory_copies, launch_queue, iterations, steps.
    """
    context = context or Context()
    times = [temporal.temporal_breakdown(timeline) for timeline in timelines]
    idles = [row for row in map(idle_causes, timelines) if row is not None]
    made = [
        _temporal(timelines, times, context),
        _utilization(timelines),
        idle_findings.causes(idles, context),
        idle_findings.gaps(idles),
        _families(timelines, _known(times), context),
        _top_kernels(timelines),
        _phases(timelines),
        copy_finding(timelines, sum(row.span_ns for row in _known(times))),
        idle_findings.launches(timelines, idles, context),
        *_iterations(timelines),
    ]
    return [finding for finding in made if finding is not None]


def _known(times: Sequence[temporal.Temporal | None]) -> list[temporal.Temporal]:
    return [row for row in times if row is not None]


def _temporal(
    timelines: Sequence[Timeline], times: Sequence[temporal.Temporal | None], context: Context
) -> Finding | None:
    rows = _known(times)
    if not rows:
        return None
    span = sum(row.span_ns for row in rows)
    names = ("compute_ns", "idle_ns", "exposed_communication_ns", "exposed_memory_ns")
    compute, idle_share, exposed, copying = (sum(getattr(row, name) for row in rows) / span for name in names)
    filling = sum(temporal.start_up_copies_ns(timeline) for timeline in timelines) / span
    copying -= filling
    most = max(len(np.unique(timeline.work.device)) for timeline in timelines)
    somewhere = f" on any of a rank's {most} GPUs" if most > 1 else ""
    hidden = f"{percent(exposed)} exposed communication"
    if (
        rows[0].on_gpu
        and not any(row.communication_ns for row in rows)
        and any(len(timeline.collectives) for timeline in timelines)
    ):
        hidden = "no communication on the GPU (see Communication by rank for calls on the CPU, such as MPI)"
    of_ranks = range_over_ranks([row.compute_ns / row.span_ns for row in rows])
    what = f"{percent(compute)} of the time is computation{somewhere}{of_ranks}, {hidden}, "
    what += f"{percent(idle_share)} idle{least_to_most([row.idle_ns / row.span_ns for row in rows])}"
    what += f", {percent(filling)} copies before the first kernel (start-up)" if filling >= _LITTLE else ""
    if exposed >= max(idle_share, _LITTLE):
        advice = ": see Communication by rank for what to do about the communication"
    elif copying > max(idle_share, _LITTLE):
        what += f", {percent(copying)} exposed copies"
        advice = f": {overlap_remedy(timelines)}"
    elif idle_share >= _LITTLE:
        advice = ": see the table of idle causes"
        advice += "; then Communication by rank" if exposed >= _LITTLE else ""
    elif idle_share + exposed + copying >= _NEARLY_ALL:
        advice = f": {percent(1 - compute)} is not computation, but no part of that takes 5 % alone"
    elif context.disturbed:  # what others took is in the time of every operator
        advice = f": measure again on an idle machine before you optimize ({context.disturbed})"
    else:
        advice = f": only faster {'kernels' if rows[0].on_gpu else 'operators'} save time"
    table = temporal.temporal_frame(rows)
    given = [None if (own := launched_work(found)) is None else own.total_compute_ns / 1e6 for found in timelines]
    given = [ms for ms, row in zip(given, times, strict=True) if row is not None]
    first = ["rank", "steps", "span_ms", *(name for name in _SHARES_FIRST if name in table)]
    if any(ms is not None for ms in given):
        table.insert(0, "launched_compute_ms", [float("nan") if ms is None else ms for ms in given])
        first += ["compute_ms", "launched_compute_ms"]
    table = table[[*first, *(name for name in table.columns if name not in first)]]
    if not any(row.on_gpu for row in rows):  # a CPU has no copies apart from computation
        table = table.drop(columns=[name for name in table.columns if "memory" in name])
    said = what + advice + "." + _outside(timelines, rows) + balance_sentence(rows, given)
    if not rows[0].on_gpu and (lost := lost_kernels(timelines)):
        said = f"{lost}. On the CPU, {what}."  # no advice: how long the GPU took is unknown
    return Finding("temporal_breakdown", "Where the time goes", table, said, tuple(copy_advice(timelines, copying)))


def _outside(timelines: Sequence[Timeline], rows: Sequence[temporal.Temporal]) -> str:
    """Say how much work lies outside the marked steps: a GPU runs on after the CPU has ended the last one."""
    if not any(row.steps and row.on_gpu for row in rows) or any(found.window for found in timelines):
        return ""
    whole = [row for row in (temporal.temporal_breakdown(found, "kernels") for found in timelines) if row is not None]
    outside = sum(row.busy_ns for row in whole) - sum(row.busy_ns for row in rows)
    if outside < 0.01 * sum(row.busy_ns for row in whole):
        return ""
    return (
        f" {number(outside / len(rows) / 1e6)} ms of GPU work per rank ran outside the marked steps; include it with "
        "--window kernels."
    )


def _utilization(timelines: Sequence[Timeline]) -> Finding | None:
    import pandas as pd

    rows = [compute_utilization(timeline) for timeline in timelines]
    table = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(COMPUTE_COLUMNS))
    table["rank"] = table["rank"].astype("Int64")
    known = [row.compute_utilization for row in rows if row.compute_utilization is not None]
    if not known:
        return (
            Finding(
                "compute_utilization",
                "Compute utilization",
                table,
                f"Unknown: {rows[0].reason.rstrip('.')}" + ("" if rows[0].reason.endswith("?") else "."),
            )
            if rows
            else None
        )
    mean = sum(known) / len(known)
    on_gpu = any(row.devices is not None for row in rows)
    said = f"The {'GPU has a kernel running' if on_gpu else 'CPU runs an operator'} {percent(mean)} of the time"
    most = max((row.devices or 0) for row in rows)
    said += range_over_ranks(known)
    said += f", the mean of a rank's {most} GPUs" if most > 1 else ""
    said += f" ({len(known)} of {len(rows)} ranks)" if len(known) < len(rows) else ""
    table = table if on_gpu else table.drop(columns=["sm_weighted_utilization", "devices"])
    weighted = [row for row in rows if row.sm_weighted_utilization is not None]
    if weighted:
        filled = sum(row.sm_weighted_utilization or 0.0 for row in weighted) / len(weighted)
        said += f"; its grids can fill the multiprocessors {percent(filled)} of the time"
        own = [row.compute_utilization_without_communication or 0.0 for row in weighted]
        if filled < sum(own) / len(own) - 0.2:  # collectives use few blocks on purpose
            said += ": many kernels are too small for this GPU; try a larger batch or fused kernels"
    return Finding("compute_utilization", "Compute utilization", table, said + ".")


def _families(timelines: Sequence[Timeline], times: Sequence[temporal.Temporal], context: Context) -> Finding | None:
    rows = [kernel_tables.family_rows(timeline) for timeline in timelines]
    table = kernel_tables.over_ranks(rows, "family")
    if not len(table):
        return None
    if not float(table["mean_ms"].sum()):
        return Finding("kernel_families", "Kernels by family", table, _NO_LENGTH)
    share = {str(name): float(part) for name, part in zip(table["family"], table["kernel_time_share"], strict=True)}
    largest = next(iter(share))
    said = [f"{largest} takes {percent(share[largest])} of the kernels' time"]
    ran = precision_clause(timelines, context) if share.get("GEMM", 0.0) > _MUCH else ""
    if ran and largest == "GEMM":
        said.append(f"it {ran}")
    small = sum(share.get(name, 0.0) for name in MOVES_MEMORY)
    talks = share.get("communication", 0.0)
    if talks > _MUCH:
        said += [] if largest == "communication" else [f"communication takes {percent(talks)}"]
        said[-1] += " (Where the time goes shows how much of it is exposed)"
    advice = tuple(_kernel_advice(timelines, times, context))
    if small > 0.4:
        fuse = f": fuse them {_fusing(timelines, context)}" if any(one.cause == "fusion" for one in advice) else ""
        said.append(f"kernels that only move memory take {percent(small)}{fuse}")
    if ran and largest != "GEMM":
        said.append(f"GEMM takes {percent(share['GEMM'])} and {ran}")
    return Finding("kernel_families", "Kernels by family", table, "; ".join(said) + ".", advice)


def _kernel_advice(
    timelines: Sequence[Timeline], times: Sequence[temporal.Temporal], context: Context
) -> Iterator[Advice]:
    """Yield what other kernels could save: at most the part of the window in which these run."""
    span = sum(row.span_ns for row in times)
    if not span:
        return

    def running(*families: str) -> float:
        return sum(temporal.running_ns(one, lambda name: family(name) in families) for one in timelines) / span

    gemm, moving, narrow = running("GEMM"), running(*MOVES_MEMORY), fp32_share(timelines)
    remedy = faster_gemms(devices_of(timelines))
    if gemm * narrow >= LEAST and narrow > _HALF and not context.narrow and remedy:
        seen = f"GEMMs run in fp32 for {percent(gemm * narrow)} of the time"
        yield Advice(cause="precision", seen=seen, remedy=remedy, saves=gemm * narrow)
    if moving >= LEAST:
        seen = f"kernels that only move memory run for {percent(moving)} of the time"
        yield Advice(
            cause="fusion",
            seen=seen,
            remedy=f"fuse them {_fusing(timelines, context)}",
            saves=moving,
        )


def _top_kernels(timelines: Sequence[Timeline]) -> Finding | None:
    rows = [kernel_tables.kernel_rows(timeline, copies=False) for timeline in timelines]
    table = kernel_tables.over_ranks(rows)
    if not len(table):
        return None
    if not float(table["mean_ms"].sum()):
        return Finding("top_kernels", f"Longest kernels (at most {_TOP})", table.head(_TOP), _NO_LENGTH)
    few = int((table["kernel_time_share"].cumsum() < 0.8).sum()) + 1
    first = table.iloc[0]
    share = float(first["kernel_time_share"])
    said = f"{few} of {len(table)} kernels make up 80 % of the kernels' time: start with these. The longest takes "
    said = "There is one kernel. It takes " if len(table) == 1 else said
    said += f"{percent(share)} ({first['family']})."
    return Finding("top_kernels", f"Longest kernels (at most {_TOP})", table.head(_TOP), said)


def _names(timelines: Sequence[Timeline]) -> set[str]:
    return {str(name) for one in timelines for table in (one.kernels, one.operators) for name in table["name"].unique()}


def _fusing(timelines: Sequence[Timeline], context: Context) -> str:
    return context.fusing(has_fused_optimizer(_names(timelines)))


def _phases(timelines: Sequence[Timeline]) -> Finding | None:
    table = joined([phases.phase_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    column = "gpu_ms" if table["gpu_ms"].notna().any() else "host_ms"
    sums = table.groupby("phase")[column].sum().sort_values(ascending=False)
    known, total = sums.drop("other", errors="ignore"), float(sums.sum())
    on_gpu = column == "gpu_ms"
    table = table if on_gpu else table.drop(columns=["gpu_ms", "gpu_share", "kernels"])
    marked = any(len(timeline.steps) for timeline in timelines)
    whose = "steps'" if marked else "recording's"
    whose = "window's" if any(timeline.is_part for timeline in timelines) else whose
    what = "GPU's time" if on_gpu else f"{whose} time on the CPU"
    said = ""
    if total and len(known) and known.iloc[0] > 0:
        said = f"{known.index[0]} takes {percent(float(known.iloc[0]) / total)} of the {what}"
        rest = float(sums.get("other", 0.0)) / total
        said += f"; {percent(rest)} belongs to no phase" if rest > _LITTLE else ""
        if float(sums.get("data", 0.0)) / total > 0.1:
            said += "; data takes more than a tenth"
            said += input_advice(timelines) if on_gpu else ", so load it in the background (workers, prefetching)"
        elif float(sums.get("optimizer", 0.0)) / total > _MUCH:
            fuse = "" if has_fused_optimizer(_names(timelines)) else "use a fused one or "
            said += f"; the optimizer takes more than a quarter, so {fuse}accumulate gradients"
        said += "."
    return Finding("phases", "Time by phase", table, said)


def _iterations(timelines: Sequence[Timeline]) -> list[Finding]:
    import pandas as pd

    table = joined([temporal.iterations(timeline) for timeline in timelines])
    if table is None:
        return []
    # A step takes as long as its slowest rank.
    longest = table.groupby("step", sort=False)["step_time_ms"].idxmax()
    spread = temporal.iteration_spread(table.loc[longest])
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    if not on_gpu:
        unsaid = ["memory_ms", "exposed_memory_ms", "kernels", *temporal.LAUNCHED]
        table, spread = table.drop(columns=unsaid), spread[~spread["quantity"].isin(unsaid)].reset_index(drop=True)
    times = spread[spread["quantity"] == "step_time_ms"].iloc[0]
    said = f"The median step takes {number(times['median'])} ms"
    ends = tuple(number(times[name]) for name in ("min", "max"))
    if len(longest) == 1:
        said = f"The one step takes {ends[0]} ms"
    elif ends[0] == ends[1]:
        said = f"All {len(longest)} steps take {ends[0]} ms"
    else:
        said += f", from {ends[0]} to {ends[1]} ms"
    if times["median"] > 0 and times["p95"] > 1.2 * times["median"]:
        said += ": compare the idle time and communication of slow steps with the others"
    given = spread[spread["quantity"] == "launched_compute_ms"]
    if len(given) and given["median"].iloc[0] > _LONGER * times["median"]:
        said += (
            f"; the GPU computes {number(given['median'].iloc[0])} ms for the work of one step: the step marks are "
            "those of a CPU that runs ahead; --window kernels includes all work"
        )
    place = int(table["step_time_ms"].to_numpy().argmax())
    rank, step, taken_ms, idle_ms = (table[name].iloc[place] for name in ("rank", "step", "step_time_ms", "idle_ms"))
    of = "" if pd.isna(rank) else f" of rank {int(rank)}"
    idle = f", {percent(float(idle_ms) / float(taken_ms))} of it idle" if taken_ms and not pd.isna(idle_ms) else ""
    which = f"The slowest is step {int(step)}{of}"
    if len(longest) == 1:
        which = f"Step {int(step)}{f' is slowest on rank {int(rank)}' if len(table) > 1 and of else ''}"
    slowest = f"{which}: {number(float(taken_ms))} ms{idle}." + _behind(table, times["median"])
    unknown = table.columns if table["idle_ms"].isna().all() else temporal.LAUNCHED
    table = table.drop(columns=[name for name in unknown if name in table and table[name].isna().all()])
    return [
        Finding("iterations", f"Spread over the steps{_OF_SLOWEST if len(timelines) > 1 else ''}", spread, said + "."),
        Finding("steps", "Every step", table, slowest),
    ]


def _behind(table: "pd.DataFrame", step_ms: float) -> str:
    if "behind_ms" not in table or not (behind := table["behind_ms"].median()) > _LITTLE * step_ms:
        return ""
    said = f" The GPU ends the work of a step {number(float(behind))} ms after the CPU has ended the step (median): "
    said += "compare steps and ranks by what they launched (launched_...)"
    device = table["device_step_ms"].median()
    return f"{said} and by device_step_ms (median {number(float(device))} ms)." if device > 0 else f"{said}."


def range_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return ranges: the named ranges of the program; nothing where there are none.

    Ranges nest: shares would add up to more than the time that there is, so inclusive and own time stand side by side.
    """
    table = range_rows(timelines)
    if not len(table):
        return []
    first = table.iloc[0]
    calls, every = int(first["count"]), int(table["count"].sum())
    said = f"{every:,} range{'s'[: every != 1]} of {len(table)} name{'s'[: len(table) != 1]}; "
    said += f"{first['name'][:80]} takes longest, "
    said += f"{number(float(first['total_ms']))} ms in {calls:,} call{'s'[: calls != 1]}, nested ranges included. "
    if all(timeline.spans is None for timeline in timelines):
        said += "They cover the whole recording. "
    said += f"Their self time, which counts each moment of a thread once, is {number(table['self_ms'].sum())} ms"
    own = table.iloc[int(table["self_ms"].to_numpy().argmax())]
    said += f"; the largest is {own['name'][:80]} ({number(float(own['self_ms']))} ms)."
    return [Finding("ranges", f"Named ranges, time on the CPU (at most {_TOP})", table.head(_TOP), said)]


def operator_findings(timelines: Sequence[Timeline], context: Context | None = None) -> list[Finding]:
    """Return operator_families and top_operators; nothing where a GPU worked, or no operator was recorded."""
    context = context or Context()
    if any(len(timeline.kernels) for timeline in timelines):
        return []
    families, names = (kernel_tables.operators_over_ranks(timelines, by) for by in ("family", "name"))
    if not len(families):
        return []
    if not int(names["calls"].sum()) or not float(names["self_ms"].sum()):
        said = "By this trace, no operator of the window took any time."
        return [Finding("operator_families", "Operators by family", families, said)]
    share = {str(name): float(part) for name, part in zip(families["family"], families["self_time_share"], strict=True)}
    largest = next(iter(share))
    said = f"{largest} takes {percent(share[largest])} of the operators' self time"
    moving = sum(share.get(name, 0.0) for name in MOVES_MEMORY)
    if share.get("GEMM", 0.0) > 0.5:
        said += f"; it {ran}" if (ran := precision_clause(timelines, context)) else ""
    elif moving > 0.4 and not lost_kernels(timelines):  # what operators of a GPU take on the CPU is their launch
        fuse = f"fuse them {_fusing(timelines, context)}"
        said += f", operators that only move memory {percent(moving)}: {fuse}, use a larger batch"
        narrow = [label for label in gemm_time_by_precision(timelines) if label in ("bf16", "fp16")]
        if share.get("copy", 0.0) > 0.4 and narrow:
            said += f", and check whether casts cost more than {narrow[0]} saves on this CPU"
    few = int((names["self_time_share"].cumsum() < 0.8).sum()) + 1
    first = names.iloc[0]
    longest = f"{few} of {len(names)} operators make up 80 % of the operators' self time. The longest "
    longest += f"is {first['name']} ({percent(float(first['self_time_share']))})."
    advice = tuple(_operator_advice(timelines, share, moving, context))
    return [
        Finding("operator_families", "Operators by family", families, said + ".", advice),
        Finding("top_operators", f"Longest operators (at most {_TOP})", names.head(_TOP), longest),
    ]


def _operator_advice(
    timelines: Sequence[Timeline], share: Mapping[str, float], moving: float, context: Context
) -> Iterator[Advice]:
    """Yield what other operators of a CPU could save: their share of the part of the window that computes."""
    rows = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    span = sum(row.span_ns for row in rows)
    if lost_kernels(timelines) or not span:
        return
    computes = sum(row.compute_ns for row in rows) / span
    gemm, narrow = share.get("GEMM", 0.0), fp32_share(timelines)
    if gemm * narrow >= LEAST and narrow > _HALF and not context.narrow and context.native_bf16:
        seen = f"GEMMs run in fp32 for {percent(gemm * narrow)} of the operators' time, and this CPU has bf16"
        yield Advice(cause="precision", seen=seen, remedy="train in bf16", saves=gemm * narrow * computes)
    if moving > _MUCH:
        seen = f"operators that only move memory take {percent(moving)} of the operators' time"
        yield Advice(
            cause="fusion",
            seen=seen,
            remedy=f"fuse them {_fusing(timelines, context)}",
            saves=moving * computes,
        )


def window_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return window: rank, window ("steps" | "work" | what was asked for), first_step, last_step, steps, start_ms (on
    the clock of --window), span_ms; nothing without events.

    Args:
        timelines: what readers returned, one per rank.
    """
    import pandas as pd

    rows = []
    for timeline in timelines:
        bounds, steps = analysis_window(timeline), timeline.steps["step"]
        if bounds is None:
            continue
        kind = "steps" if len(steps) else "work"
        rows.append(
            {
                "rank": timeline.rank,
                "window": kind if timeline.window is None else timeline.window.label,
                "first_step": int(steps.iloc[0]) if len(steps) else None,
                "last_step": int(steps.iloc[-1]) if len(steps) else None,
                "steps": len(steps),
                "start_ms": (bounds[0] - origin_ns(timeline)) / 1e6,
                "span_ms": total_ns(window_set(timeline, bounds)) / 1e6,
            }
        )
    if not rows:
        return []
    whole = {"rank": "Int64", "first_step": "Int64", "last_step": "Int64"}
    table = pd.DataFrame(rows).astype(whole)
    return [Finding("window", "Window of the tables below", table, _window_sentence(table, timelines))]


def _lengths(ms: Sequence[float]) -> str:
    ends = dict.fromkeys(number(value) for value in (min(ms), max(ms)))
    return f"{' to '.join(ends)} ms"


def _window_sentence(table: "pd.DataFrame", timelines: Sequence[Timeline]) -> str:
    span = _lengths(table["span_ms"].tolist())
    on_gpu = any(len(timeline.work) for timeline in timelines)
    if len(table[["window", "first_step", "last_step", "steps"]].drop_duplicates()) > 1:
        what = f"the windows in the table, which differ between ranks, {span}"
    elif table["window"].iloc[0] == "work":
        worked = on_gpu or any(len(timeline.operators) for timeline in timelines)
        what = "all work, from its first start to its last end" if worked else "all that was recorded"
        what += f", {span}"
    elif (chosen := timelines[0].window) is not None and chosen.label != "steps":
        what = f"{chosen.label}, {span}"
        if chosen.label.startswith("range:"):
            steps = len(timelines[0].steps)
            what += f" in {steps} occurrences without the time between them" if steps > 1 else " in one occurrence"
    else:
        first, last, steps = (int(table[name].iloc[0]) for name in ("first_step", "last_step", "steps"))
        what = f"step {first}, {span}" if steps == 1 else f"the {steps} steps {first} to {last}, {span}"
    tables = "All tables of the trace cover" if len(timelines) == 1 else "All tables of the traces cover"
    said = f"{tables} {what}, unless a sentence names another window"
    if not on_gpu or set(table["window"]) == {"work"}:
        return f"{said}."
    early = sum(map(before_recording, timelines))
    left = f", without {early:,} that were launched before the recording began" if early else ""
    return f"{said}: times are of work that ran in it, sums over kernels and copies of work launched in it{left}."
