"""Utilization of the kinds of cores (the pipes of the SMs), from the counters of every kernel (Nsight Compute).

For each pipe: sum over kernels(weight x percent) / sum(weight), the weight being the kernel's elapsed cycles, or its
duration where cycles are not known. docs/explanation/core-utilization.md derives it and lists the metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ncu_metrics import PIPES, metrics_of, no_metric, pipe_percent
from analysis.names import family

if TYPE_CHECKING:
    import pandas as pd

FOUR: Mapping[str, str] = {"fma": "FMA", "fp16": "FP16", "tensor": "tensor cores", "sfu": "SFU"}
"""The four main kinds of cores, with the names shown to people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipeUse:
    """One pipe."""

    percent: float | None
    """Of the peak rate, while kernels run; None where no kernel was counted."""
    in_window_percent: float | None
    """Of the peak rate, over the window with the time in which no kernel runs; None without a window or durations."""
    metric: str | None
    """What it was computed from, without the suffix; None where the file has none."""
    reason: str
    """Why a percent is None, or for how many kernels it was not counted; "" where there is nothing to say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreUse:
    """All pipes over one set of kernels."""

    kernels: int
    timed: int
    """Kernels that have a duration."""
    kernel_time_ms: float | None
    """Sum of the known durations under the profiler; None where none is known."""
    cycles: float | None
    """Sum of the elapsed cycles; None where not every kernel has them."""
    weight: str | None
    """What kernels are weighted by: "cycles" or "duration"; None where neither is known."""
    pipes: Mapping[str, PipeUse]
    """By name, all of PIPES."""


def core_use(counters: KernelCounters, window_ns: float | None = None) -> CoreUse:
    """Return the utilization of the pipes over all kernels of a file.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler, in ns (steps x median step time). With several
            processes in the file the window counts once per process.
    """
    import pandas as pd

    if counters.kernels.empty:
        nothing = PipeUse(percent=None, in_window_percent=None, metric=None, reason="no kernel was profiled")
        pipes = dict.fromkeys(PIPES, nothing)
        return CoreUse(kernels=0, timed=0, kernel_time_ms=None, cycles=None, weight=None, pipes=pipes)
    return core_use_by(counters, pd.Series("all", counters.kernels.index), window_ns)["all"]


def core_use_by_family(counters: KernelCounters, window_ns: float | None = None) -> dict[str, CoreUse]:
    """Return the same for each family of kernels (GEMM, attention, ...), longest first."""
    return core_use_by(counters, counters.kernels["name"].map(family), window_ns)


def core_use_by(
    counters: KernelCounters, labels: "pd.Series[str]", window_ns: float | None = None
) -> dict[str, CoreUse]:
    """Return the same for each group of kernels, longest first: by time, or by cycles where no time is known.

    Args:
        counters: what a reader returned.
        labels: the group of every kernel, in their order; a missing one leaves the kernel out.
        window_ns: as for `core_use`; the shares of the window add up over the groups to those of all kernels.
    """
    frame = counters.kernels
    column = _weight(frame)
    groups = frame.groupby(labels, sort=False)
    pipes = {name: _pipe(counters, name, column, labels, window_ns) for name in PIPES}
    sizes, lengths = groups.size(), groups[["cycles", "duration_ns"]]
    counts, sums = lengths.count().to_dict(), lengths.sum().to_dict()
    uses = {}
    for name, size in sizes.items():
        timed = int(counts["duration_ns"][name])
        uses[str(name)] = CoreUse(
            kernels=int(size),
            timed=timed,
            kernel_time_ms=float(sums["duration_ns"][name]) / 1e6 if timed else None,
            cycles=float(sums["cycles"][name]) if counts["cycles"][name] == size else None,
            weight={"cycles": "cycles", "duration_ns": "duration"}.get(column or ""),
            pipes={pipe: each[name] for pipe, each in pipes.items()},
        )
    order = "duration_ns" if frame["duration_ns"].notna().any() else column
    ordered = sizes * 0.0 if order is None else groups[order].sum()
    return {str(name): uses[str(name)] for name in ordered.sort_values(ascending=False, kind="stable").index}


def rows(by_batch: Mapping[int, KernelCounters], windows_ns: Mapping[int, float] | None = None) -> list[dict[str, Any]]:
    """Return the rows of core_utilization.csv, one per micro batch size, smallest first.

    Columns: micro_batch_size, device, kernels, kernel_time_ms, weight, <pipe>_percent and <pipe>_in_window_percent for
    each of PIPES, metrics (what each pipe was computed from), reason.
    """
    table = []
    for size in sorted(by_batch):
        use = core_use(by_batch[size], (windows_ns or {}).get(size))
        row: dict[str, Any] = {"micro_batch_size": size, "device": by_batch[size].device_name}
        row |= {name: getattr(use, name) for name in ("kernels", "kernel_time_ms", "weight")}
        for name, pipe in use.pipes.items():
            row |= {f"{name}_percent": pipe.percent, f"{name}_in_window_percent": pipe.in_window_percent}
        row["metrics"] = "; ".join(f"{name}={pipe.metric}" for name, pipe in use.pipes.items() if pipe.metric)
        row["reason"] = "; ".join(f"{name}: {pipe.reason}" for name, pipe in use.pipes.items() if pipe.reason)
        table.append(row)
    return table


def _weight(frame: "pd.DataFrame") -> str | None:
    """Return the column that weights the kernels: one unit for all, cycles unless more kernels have a duration."""
    lacking = {column: int(frame[column].isna().sum()) for column in ("cycles", "duration_ns")}
    best = min(lacking, key=lambda column: lacking[column])  # cycles first when equal
    return best if lacking[best] < len(frame) else None


def _window_problem(frame: "pd.DataFrame", length_ns: float) -> str:
    """Return why shares of a window cannot be computed, "" where they can."""
    if frame["duration_ns"].isna().any():
        return "the share of the window needs the duration of every kernel"
    busy = float(frame["duration_ns"].sum())
    if busy <= length_ns:
        return ""
    return (
        f"the kernels took {busy / 1e6:,.3f} ms under ncu, more than the window of {length_ns / 1e6:,.3f} ms: profile "
        "with --with clock-control=none"
    )


def _pipe(
    counters: KernelCounters, pipe: str, column: str | None, labels: "pd.Series[str]", window_ns: float | None
) -> dict[Any, PipeUse]:
    """Return the use of a pipe by group."""
    import pandas as pd

    frame, metrics = counters.kernels, metrics_of(pipe, counters.compute_capability)
    counted = pipe_percent(frame, metrics)
    if counted is None or column is None:
        reason = "the file has neither cycles nor durations, so kernels cannot be weighted"
        reason = no_metric(frame, metrics) if counted is None else reason
        use = PipeUse(percent=None, in_window_percent=None, metric=counted[1] if counted else None, reason=reason)
        return dict.fromkeys(labels.dropna().unique(), use)
    values, metric = counted
    both = values.notna() & frame[column].notna()
    columns = {
        "weighted": (values * frame[column]).where(both),
        "weight": frame[column].where(both),
        "busy": values * frame["duration_ns"],
        "counted": both,
        "valued": values.notna(),
        "kernels": 1,
    }
    sums = pd.DataFrame(columns, index=frame.index).groupby(labels, sort=False).sum()
    length_ns = (window_ns or 0.0) * max(1, int(frame["process"].nunique()))
    problem = _window_problem(frame, length_ns)
    uses = {}
    for name, row in sums.to_dict("index").items():
        percent = row["weighted"] / row["weight"] if row["weight"] > 0 else None
        kernels, lacking = int(row["kernels"]), int(row["kernels"] - row["counted"])
        reasons = []
        if not row["counted"]:
            reasons.append(f"none of {kernels} kernels has a value")
        elif percent is None:
            reasons.append("the counted kernels took no time")
        elif lacking:
            reasons.append(f"{lacking} of {kernels} kernels have no value and are skipped")
        in_window = None
        if window_ns is not None:
            partly = "the share of the window needs a value of every kernel" if row["valued"] < kernels else ""
            reasons += [problem or partly] if problem or partly else []
            in_window = None if problem or partly else row["busy"] / length_ns
        uses[name] = PipeUse(percent=percent, in_window_percent=in_window, metric=metric, reason=", ".join(reasons))
    return uses


PHASES = ("data", "forward", "backward", "all-reduce", "optimizer")
"""Phases of a step, in their order."""
NO_PHASE = "no phase"
"""Of a kernel that lies in none."""
_DOMAIN = "bertbench@"
_AROUND = ("run", "step ", "bertbench:capture")


def kernel_phases(counters: KernelCounters) -> "pd.DataFrame | None":
    """Return phase and part of every kernel, in their order; None where the file has no such ranges.

    part is the outermost range of the model inside the phase ("layer.3", "embeddings"), "" where there is none. PyTorch
    launches the backward pass from a thread without ranges: kernels without any range that follow forward are backward.
    """
    import pandas as pd

    kernels = counters.kernels
    if "push_pop_ranges" not in kernels:
        return None
    phases = []
    last: dict[int, str] = {}
    columns = (kernels[name].tolist() for name in ("process", "push_pop_ranges", "start_stop_ranges"))
    for process, stack, spans in zip(*columns, strict=True):
        phase, part = _phase_of([name.removeprefix(_DOMAIN) for name in stack if name.startswith(_DOMAIN)])
        if phase is None and f"{_DOMAIN}all-reduce" in spans:
            phase = "all-reduce"
        if phase is not None:
            last[process] = phase
        elif last.get(process) == "forward" and not stack:
            phase = "backward"
        phases.append((phase or NO_PHASE, part))
    table = pd.DataFrame(phases, columns=["phase", "part"], index=kernels.index)
    return None if (table["phase"] == NO_PHASE).all() else table


def _phase_of(names: Sequence[str]) -> tuple[str | None, str]:
    places = [place for place, name in enumerate(names) if name in PHASES]
    inside = names[places[-1] + 1 :] if places else names
    part = next((name for name in inside if not name.startswith(_AROUND)), "")
    return (names[places[-1]] if places else None), part
