"""What the traces of a run say about time: tables, each with one sentence on what it means and what to try."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.findings import Finding
from analysis.metrics import copies, idle, kernel_tables, launches, phases, temporal
from analysis.metrics.utilization import NUMBER_FIELDS, compute_utilization
from analysis.timeline import Timeline, lost_kernels

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
_OF_SLOWEST = ", each that of its slowest rank"
_NO_LENGTH = "No kernel of the window took any time, by this trace."


def findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return the findings of the traces of one run, one timeline per rank; what they cannot say is left out.

    Names: temporal_breakdown, compute_utilization, idle_causes, kernel_families, top_kernels, phases, memory_copies,
    launch_queue, iterations, steps.
    """
    made = [
        _temporal(timelines),
        _utilization(timelines),
        _idle(timelines),
        _families(timelines),
        _top_kernels(timelines),
        _phases(timelines),
        _copies(timelines),
        _launches(timelines),
        *_iterations(timelines),
    ]
    return [finding for finding in made if finding is not None]


def _temporal(timelines: Sequence[Timeline]) -> Finding | None:
    rows = [row for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    if not rows:
        return None
    span = sum(row.span_ns for row in rows)
    names = ("compute_ns", "idle_ns", "exposed_communication_ns", "exposed_memory_ns")
    compute, idle_share, exposed, copying = (sum(getattr(row, name) for row in rows) / span for name in names)
    what = f"{_percent(compute)} of the time is computation, {_percent(exposed)} communication that nothing hides, "
    what += f"{_percent(idle_share)} idle"
    if not rows[0].steps:
        what += f" (no step is marked: from first to last work, {_lengths([row.span_ns / 1e6 for row in rows])})"
    if exposed >= max(idle_share, _LITTLE):
        advice = ": overlap the communication or send less of it, unless most of it waits for one rank (see below)"
    elif copying > max(idle_share, _LITTLE):
        what += f", {_percent(copying)} copies that nothing hides"
        advice = ": keep data on the GPU, or copy it from pinned memory while something computes"
    elif idle_share > _MUCH:
        advice = ": the table of idle causes says what the device waits for"
    else:
        advice = f": faster {'kernels' if rows[0].on_gpu else 'operators'} are what is left to gain"
    table = temporal.temporal_frame(rows)
    first = ["rank", "steps", "span_ms", *(name for name in _SHARES_FIRST if name in table)]
    table = table[[*first, *(name for name in table.columns if name not in first)]]
    if not any(row.on_gpu for row in rows):  # a CPU has no copies that are told from computation
        table = table.drop(columns=[name for name in table.columns if "memory" in name])
    said = what + advice + "." + _outside(timelines, rows)
    if not rows[0].on_gpu and (lost := lost_kernels(timelines)):
        said = f"{lost}. {said}"
    return Finding("temporal_breakdown", "Where the time goes", table, said)


def _outside(timelines: Sequence[Timeline], rows: Sequence[temporal.Temporal]) -> str:
    """Say how much work lies outside the marked steps: a GPU runs on after the CPU has ended the last one."""
    if not any(row.steps and row.on_gpu for row in rows):
        return ""
    whole = [row for row in (temporal.temporal_breakdown(found, "kernels") for found in timelines) if row is not None]
    outside = sum(row.busy_ns for row in whole) - sum(row.busy_ns for row in rows)
    if outside < 0.01 * sum(row.busy_ns for row in whole):
        return ""
    return (
        f" {outside / len(rows) / 1e6:.4g} ms of GPU work per rank lies outside the marked steps and is not in this "
        "table; with --window kernels it is."
    )


def _utilization(timelines: Sequence[Timeline]) -> Finding | None:
    import pandas as pd

    rows = [compute_utilization(timeline) for timeline in timelines]
    table = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(NUMBER_FIELDS))
    table["rank"] = table["rank"].astype("Int64")
    known = [row.compute_utilization for row in rows if row.compute_utilization is not None]
    if not known:
        return (
            Finding(
                "compute_utilization",
                "Compute utilisation",
                table,
                f"Not known: {rows[0].reason.rstrip('.')}" + ("" if rows[0].reason.endswith("?") else "."),
            )
            if rows
            else None
        )
    mean = sum(known) / len(known)
    on_gpu = any(row.devices is not None for row in rows)
    said = f"The {'GPU has a kernel running' if on_gpu else 'CPU runs an operator'} {_percent(mean)} of the time"
    lengths = [row.window_ms for row in rows if row.window_ms is not None]
    if not rows[0].steps and lengths:
        said += f" (no step is marked: of the whole trace, {_lengths(lengths)})"
    said += f" ({len(known)} of {len(rows)} ranks)" if len(known) < len(rows) else ""
    table = table if on_gpu else table.drop(columns=["sm_weighted_utilization", "devices"])
    weighted = [row for row in rows if row.sm_weighted_utilization is not None]
    if weighted:
        filled = sum(row.sm_weighted_utilization or 0.0 for row in weighted) / len(weighted)
        said += f"; its grids could fill the multiprocessors {_percent(filled)} of the time"
        own = [row.compute_utilization_without_communication or 0.0 for row in weighted]
        if filled < sum(own) / len(own) - 0.2:  # collectives use few blocks on purpose
            said += ": many kernels are too small for this GPU, try a larger batch or fused kernels"
    return Finding("compute_utilization", "Compute utilisation", table, said + ".")


def _lengths(ms: Sequence[float]) -> str:
    """Name the windows' length, of several ranks the shortest and the longest."""
    ends = dict.fromkeys(f"{value:,.4g}" for value in (min(ms), max(ms)))
    return f"{' to '.join(ends)} ms"


def _idle(timelines: Sequence[Timeline]) -> Finding | None:
    rows = [row for row in map(idle.idle_causes, timelines) if row is not None]
    if not rows:
        return None
    span, idle_ns = sum(row.span_ns for row in rows), sum(row.idle_ns for row in rows)
    sums = {cause: sum(row.ns(cause) for row in rows) for cause in idle.CAUSES}
    largest = max(sums, key=lambda cause: sums[cause])
    share = sums[largest] / span
    on_gpu = rows[0].on_gpu
    device = "GPU" if on_gpu else "CPU"
    idles = f"The GPU is idle {_percent(idle_ns / span)} of the time"
    if not on_gpu:  # what communicates does not compute; the table of where the time goes counts it as busy
        idles = f"The CPU computes nothing {_percent(idle_ns / span)} of the time"
    if idle_ns / span < _LITTLE:
        said = f"{idles}: there is little to gain here."
    else:
        advice = {
            "data_wait": "waits for data: use more loader workers, prefetching, or inputs that are prepared beforehand",
            "communication_wait": "waits for other ranks: look for a straggler, overlap or shrink the communication",
            "launch_bound": "waits for the CPU to launch work: try a larger batch, torch.compile or CUDA graphs",
            "other": "waits for a reason that the trace does not show"
            + (f" ({rows[0].reason})" if rows[0].reason and on_gpu else ""),
        }[largest]
        said = f"{idles}; for {_percent(share)} it {advice}."
    table = idle.idle_frame(rows)
    if not on_gpu:  # a CPU launches nothing
        table = table[table["cause"] != "launch_bound"].drop(columns="note").reset_index(drop=True)
    return Finding("idle_causes", f"Why the {device} is idle", table, said)


def _families(timelines: Sequence[Timeline]) -> Finding | None:
    rows = [kernel_tables.family_rows(timeline) for timeline in timelines]
    table = kernel_tables.over_ranks(rows, "family")
    if not len(table):
        return None
    first = table.iloc[0]
    if not float(table["mean_ms"].sum()):
        return Finding("kernel_families", "Kernels by family", table, _NO_LENGTH)
    share = {str(name): float(part) for name, part in zip(table["family"], table["kernel_time_share"], strict=True)}
    said = f"{first['family']} takes {_percent(float(first['kernel_time_share']))} of the kernels' time"
    small = sum(share.get(name, 0.0) for name in ("elementwise", "norm", "dropout", "activation"))
    if share.get("communication", 0.0) > _MUCH:
        said += ": the part that computation does not hide is what to cut, see the table of where the time goes"
    elif small > 0.4:
        said += (
            f", kernels that only move memory {_percent(small)}: fuse them (torch.compile, fused optimizer and norms)"
        )
    elif share.get("GEMM", 0.0) > 0.5:
        said += ": reduced precision (bf16, tf32) and shapes that are multiples of 8 speed it up"
    return Finding("kernel_families", "Kernels by family", table, said + ".")


def _top_kernels(timelines: Sequence[Timeline]) -> Finding | None:
    rows = [kernel_tables.kernel_rows(timeline) for timeline in timelines]
    table = kernel_tables.over_ranks(rows)
    if not len(table):
        return None
    if not float(table["mean_ms"].sum()):
        return Finding("top_kernels", f"Longest kernels (at most {_TOP})", table.head(_TOP), _NO_LENGTH)
    few = int((table["kernel_time_share"].cumsum() < 0.8).sum()) + 1
    first = table.iloc[0]
    share = float(first["kernel_time_share"])
    said = f"{few} of {len(table)} kernels make up 80 % of the kernels' time, the longest {_percent(share)} "
    said += f"({first['family']}): start with these."
    return Finding("top_kernels", f"Longest kernels (at most {_TOP})", table.head(_TOP), said)


def _phases(timelines: Sequence[Timeline]) -> Finding | None:
    table = _joined([phases.phase_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    column = "gpu_ms" if table["gpu_ms"].notna().any() else "host_ms"
    sums = table.groupby("phase")[column].sum().sort_values(ascending=False)
    known, total = sums.drop("other", errors="ignore"), float(sums.sum())
    on_gpu = column == "gpu_ms"
    table = table if on_gpu else table.drop(columns=["gpu_ms", "gpu_share", "kernels"])
    what = "GPU's time" if on_gpu else "steps' time on the CPU"
    said = ""
    if total and len(known) and known.iloc[0] > 0:
        said = f"{known.index[0]} takes {_percent(float(known.iloc[0]) / total)} of the {what}"
        rest = float(sums.get("other", 0.0)) / total
        said += f"; {_percent(rest)} belongs to no phase" if rest > _LITTLE else ""
        if float(sums.get("data", 0.0)) / total > 0.1:
            said += "; data takes more than a tenth, so "
            said += "copy inputs from pinned memory" if on_gpu else "load it in the background (workers, prefetching)"
        elif float(sums.get("optimizer", 0.0)) / total > _MUCH:
            said += "; the optimizer takes more than a quarter, so use a fused one or accumulate gradients"
        said += "."
    return Finding("phases", "Time by phase", table, said)


def _copies(timelines: Sequence[Timeline]) -> Finding | None:
    table = _joined([copies.copy_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    total = float(table["total_ms"].sum())
    hidden = float((table["overlapped_share"].fillna(0) * table["total_ms"]).sum()) / total if total else 0.0
    pageable = float(table.loc[table["host_memory"] == "pageable", "total_ms"].sum())
    per_rank = total / len(timelines)
    said = f"Copies and memsets take {per_rank:,.4g} ms per rank, {_percent(hidden)} of it hidden by computation"
    spans = [row.span_ns / 1e6 for row in map(temporal.temporal_breakdown, timelines) if row is not None]
    if spans and pageable > 0.01 * sum(spans):
        said += (
            f"; {_percent(pageable / total)} is copies of pageable memory: use pin_memory=True and non_blocking=True"
        )
    return Finding("memory_copies", "Memory copies by direction", table, said + ".")


def _launches(timelines: Sequence[Timeline]) -> Finding | None:
    import pandas as pd

    rows = [row for row in map(launches.launch_queue, timelines) if row is not None]
    if not rows:
        return None
    table = pd.DataFrame([dataclasses.asdict(row) for row in rows])
    table = table.astype({"rank": "Int64", "launches_per_step": "float64"})
    matched = sum(row.matched for row in rows)
    short = sum(row.short_delay_share * row.matched for row in rows) / matched
    said = f"{_percent(short)} of the kernels start within {launches.SHORT_DELAY_US:g} µs of the end of their launch"
    if short > _MUCH:
        said += ": the GPU waits for the CPU, try a larger batch, torch.compile or CUDA graphs"
    else:
        said += ": the CPU runs ahead of the GPU most of the time, as it should"
    return Finding("launch_queue", "Launch queue", table, said + ".")


def _iterations(timelines: Sequence[Timeline]) -> list[Finding]:
    import pandas as pd

    table = _joined([temporal.iterations(timeline) for timeline in timelines])
    if table is None:
        return []
    # A step takes as long as its slowest rank.
    longest = table.groupby("step", sort=False)["step_time_ms"].idxmax()
    spread = temporal.iteration_spread(table.loc[longest])
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    if not on_gpu:
        unsaid = ["memory_ms", "exposed_memory_ms", "kernels"]
        table, spread = table.drop(columns=unsaid), spread[~spread["quantity"].isin(unsaid)].reset_index(drop=True)
    times = spread[spread["quantity"] == "step_time_ms"].iloc[0]
    said = f"The median step takes {times['median']:.4g} ms, from {times['min']:.4g} to {times['max']:.4g} ms"
    if times["median"] > 0 and times["p95"] > 1.2 * times["median"]:
        said += ": the slow ones are worth a look, compare their idle and communication with the others'"
    place = int(table["step_time_ms"].to_numpy().argmax())
    rank, step, taken_ms, idle_ms = (table[name].iloc[place] for name in ("rank", "step", "step_time_ms", "idle_ms"))
    of = "" if pd.isna(rank) else f" of rank {int(rank)}"
    idle = f", {_percent(float(idle_ms) / float(taken_ms))} of it idle" if taken_ms and not pd.isna(idle_ms) else ""
    slowest = f"The slowest is step {int(step)}{of}: {float(taken_ms):.4g} ms{idle}."
    table = table.dropna(axis="columns", how="all") if table["idle_ms"].isna().all() else table
    return [
        Finding("iterations", f"Spread over the steps{_OF_SLOWEST if len(timelines) > 1 else ''}", spread, said + "."),
        Finding("steps", "Every step", table, slowest),
    ]


def _joined(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame | None":
    import pandas as pd

    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
