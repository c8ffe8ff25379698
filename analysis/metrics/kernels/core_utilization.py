"""Utilization of the kinds of cores (the pipes of the SMs), from the counters of every kernel (Nsight Compute).

For each pipe: sum over kernels(weight x percent) / sum(weight), the weight being the kernel's elapsed cycles, or its
duration where cycles are not known. docs/explanation/core-utilization.md derives it and lists the metrics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ncu_metrics import (
    PIPES,
    dram_bytes,
    metrics_of,
    no_metric,
    pipe_percent,
    tensor_flop,
    thread_flop,
)
from analysis.names import family

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

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
    kernel_time_ms: float | None
    """Sum of their durations under the profiler; None where not every kernel has one."""
    cycles: float | None
    """Sum of their elapsed cycles; None where not every kernel has them."""
    weight: str | None
    """What kernels are weighted by: "cycles" or "duration"; None where neither is known."""
    pipes: Mapping[str, PipeUse]
    """By name, all of PIPES."""
    dram_bytes: float | None
    """Bytes moved between GPU and its memory; None where any kernel lacks it."""
    fp32_flop: float | None
    """Floating-point operations in single precision outside the tensor cores, a fused multiply-add counted as two."""
    fp16_flop: float | None
    """The same in half precision, thread instructions counted, a packed one (two values) as one."""
    tensor_flop: float | None
    """Operations of the tensor cores; None where the chip or ncu has no metric for it."""


def core_use(counters: KernelCounters, window_ns: float | None = None) -> CoreUse:
    """Return the utilization of the pipes over all kernels of a file, the last one included.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler, in ns (steps x median step time). With several
            processes in the file the window counts once per process.
    """
    import numpy as np

    frame = counters.kernels
    return _uses(counters, frame, np.zeros(len(frame), "int64"), 1, _Window.of(frame, window_ns))[0]


def core_use_by(
    counters: KernelCounters, labels: "pd.Series[str]", window_ns: float | None = None
) -> dict[str, CoreUse]:
    """Return the same for each group of kernels, longest first.

    Args:
        counters: what a reader returned.
        labels: the group of every kernel, in their order; a missing one leaves the kernel out.
        window_ns: as for `core_use`; the shares of the window add up over the groups to those of all kernels.
    """
    frame = counters.kernels
    if frame.empty:
        return {}
    codes, names = labels.factorize()
    inside = codes >= 0
    uses = _uses(counters, frame[inside], codes[inside], len(names), _Window.of(frame, window_ns))
    # What the tables show: times, or where a kernel has none, cycles. Cycles alone would order by the clock too.
    column = "duration_ns" if frame["duration_ns"].notna().all() else _weight(frame)
    order = [0.0] * len(names) if column is None else _sums(codes[inside], frame[inside][column].fillna(0), len(names))
    return {str(names[place]): uses[place] for place in sorted(range(len(names)), key=lambda place: -order[place])}


def core_use_by_family(counters: KernelCounters, window_ns: float | None = None) -> dict[str, CoreUse]:
    """Return the same for each family of kernels (GEMM, attention, ...), longest first."""
    return core_use_by(counters, counters.kernels["name"].map(family), window_ns)


def rows(by_batch: Mapping[int, KernelCounters], windows_ns: Mapping[int, float] | None = None) -> list[dict[str, Any]]:
    """Return the rows of core_utilization.csv, one per micro batch size, smallest first.

    Columns: micro_batch_size, device, kernels, kernel_time_ms, weight, <pipe>_percent and <pipe>_in_window_percent for
    each of PIPES, dram_bytes, fp32_flop, fp16_flop, tensor_flop, metrics (what each pipe was computed from), reason.
    """
    table = []
    for size in sorted(by_batch):
        counters = by_batch[size]
        use = core_use(counters, (windows_ns or {}).get(size))
        row: dict[str, Any] = {
            "micro_batch_size": size,
            "device": counters.device_name,
            "kernels": use.kernels,
            "kernel_time_ms": use.kernel_time_ms,
            "weight": use.weight,
        }
        for name, pipe in use.pipes.items():
            row[f"{name}_percent"] = pipe.percent
            row[f"{name}_in_window_percent"] = pipe.in_window_percent
        row |= {name: getattr(use, name) for name in ("dram_bytes", "fp32_flop", "fp16_flop", "tensor_flop")}
        row["metrics"] = "; ".join(f"{name}={pipe.metric}" for name, pipe in use.pipes.items() if pipe.metric)
        row["reason"] = "; ".join(
            dict.fromkeys(f"{name}: {pipe.reason}" for name, pipe in use.pipes.items() if pipe.reason)
        )
        table.append(row)
    return table


@dataclass(frozen=True, slots=True)
class _Window:
    """The window with which all kernels of a file are compared."""

    length_ns: float
    problem: str

    @classmethod
    def of(cls, frame: "pd.DataFrame", window_ns: float | None) -> "_Window | None":
        if window_ns is None:
            return None
        length = window_ns * max(1, int(frame["process"].nunique()))
        if frame["duration_ns"].isna().any():
            return cls(length, "the share of the window needs the duration of every kernel")
        busy = float(frame["duration_ns"].sum())
        if length > 0 and busy <= length:
            return cls(length, "")
        return cls(
            length,
            f"the kernels took {busy / 1e6:,.3f} ms under ncu, more than the window of {length / 1e6:,.3f} ms: profile "
            "with --with clock-control=none; the share of overlapping kernels cannot be computed",
        )


def _uses(
    counters: KernelCounters,
    frame: "pd.DataFrame",
    codes: "NDArray[np.int64]",
    groups: int,
    window: _Window | None,
) -> list[CoreUse]:
    """Return a CoreUse per group of kernels of `frame`, some of the counters'; `codes` says which each is of."""
    column = _weight(frame)
    launches = _sums(codes, None, groups)
    capability = counters.compute_capability
    pipes = {name: _pipe(frame, metrics_of(name, capability), column, window, codes, launches) for name in PIPES}
    times, cycles = (_whole(frame[name], codes, groups) for name in ("duration_ns", "cycles"))
    moved = _whole(dram_bytes(frame), codes, groups)
    fp32, fp16 = (_whole(thread_flop(frame, kind), codes, groups) for kind in ("fp32", "fp16"))
    tensor = [_whole(values, codes, groups) for values in tensor_flop(frame).values()]
    found = []
    for group in range(groups):
        own = {name: pipe[group] for name, pipe in pipes.items()}
        time_ns = times[group]
        found.append(
            CoreUse(
                kernels=int(launches[group]),
                kernel_time_ms=None if time_ns is None else time_ns / 1e6,
                cycles=cycles[group],
                weight={"cycles": "cycles", "duration_ns": "duration"}.get(column or ""),
                pipes=own,
                dram_bytes=moved[group],
                fp32_flop=fp32[group],
                fp16_flop=fp16[group],
                tensor_flop=_tensor_total([values[group] for values in tensor], own),
            )
        )
    return found


def _sums(codes: "NDArray[np.int64]", values: "pd.Series[Any] | None", groups: int) -> list[float]:
    """Sum per group; the number of kernels where `values` is None."""
    import numpy as np

    weights = None if values is None else values.to_numpy("float64")
    return [float(value) for value in np.bincount(codes, weights=weights, minlength=groups)]


def _weight(frame: "pd.DataFrame") -> str | None:
    """Return the column that weights the kernels: one unit for all, cycles unless more kernels have a duration."""
    lacking = {column: int(frame[column].isna().sum()) for column in ("cycles", "duration_ns")}
    best = min(lacking, key=lambda column: lacking[column])  # cycles first when equal
    return best if lacking[best] < len(frame) else None


def _pipe(
    frame: "pd.DataFrame",
    metrics: Sequence[str],
    column: str | None,
    window: _Window | None,
    codes: "NDArray[np.int64]",
    launches: Sequence[float],
) -> list[PipeUse]:
    """Return the use of a pipe per group."""
    groups = len(launches)
    found = pipe_percent(frame, metrics)
    if frame.empty or found is None or column is None:
        metric = found[1] if found is not None and not frame.empty else None
        reason = "no kernel was profiled" if frame.empty else no_metric(frame, metrics)
        if metric is not None:
            reason = "the file has neither cycles nor durations, so kernels cannot be weighted"
        return [PipeUse(percent=None, in_window_percent=None, metric=metric, reason=reason)] * groups
    values, metric = found
    counted = values.notna() & frame[column].notna()
    totals = _sums(codes, frame[column].where(counted, 0.0), groups)
    parts = _sums(codes, (values * frame[column]).where(counted, 0.0), groups)
    counts = _sums(codes, counted, groups)
    valued = _sums(codes, values.notna(), groups)
    busy = _sums(codes, (values * frame["duration_ns"]).fillna(0.0), groups)
    uses = []
    for group in range(groups):
        percent = parts[group] / totals[group] if totals[group] > 0 else None
        reasons = []
        lacking = int(launches[group] - counts[group])
        if not counts[group]:
            reasons.append(f"none of {int(launches[group])} kernels has a value")
        elif percent is None:
            reasons.append("the counted kernels took no time")
        elif lacking:
            reasons.append(f"{lacking} of {int(launches[group])} kernels have no value and are skipped")
        in_window = None
        if window is not None:
            whole = valued[group] == launches[group]
            why = window.problem or ("" if whole else "the share of the window needs a value of every kernel")
            reasons += [why] if why else []
            in_window = None if why else busy[group] / window.length_ns
        uses.append(PipeUse(percent=percent, in_window_percent=in_window, metric=metric, reason=", ".join(reasons)))
    return uses


def _tensor_total(parts: Sequence[float | None], pipes: Mapping[str, PipeUse]) -> float | None:
    """Return the tensor cores' operations; None where the pipe worked and the metric is 0: it missed that."""
    known = [part for part in parts if part is not None]
    if not parts or len(known) < len(parts):
        return None
    total = math.fsum(known)
    return None if total == 0 and any(pipes[name].percent for name in ("tensor", "tensor_active")) else total


def _whole(values: "pd.Series[float] | None", codes: "NDArray[np.int64]", groups: int) -> list[float | None]:
    """Return the sum per group; None where a kernel of it lacks the value: a part must not pass for all."""
    if values is None or values.empty:
        return [None] * groups
    lacking = _sums(codes, values.isna(), groups)
    return [
        None if bad else total for bad, total in zip(lacking, _sums(codes, values.fillna(0.0), groups), strict=True)
    ]


PHASES = ("data", "forward", "backward", "all-reduce", "optimizer")
"""Phases of a step, in their order."""
NO_PHASE = "no phase"
"""Of a kernel that lies in none."""
BY_RANGE, BY_ORDER = "range", "order"
"""Source of a kernel's phase: an active range, or its position between kernels with a range."""

_DOMAIN = "bertbench@"
_AROUND = ("run", "step ", "bertbench:capture")


def kernel_phases(counters: KernelCounters) -> "pd.DataFrame | None":
    """Return phase, part and told_by of every kernel, in their order; None where the file has no such ranges.

    part is the outermost range of the model inside the phase ("layer.3", "embeddings"), "" where there is none; told_by
    is BY_RANGE, BY_ORDER or "".
    """
    import pandas as pd

    kernels = counters.kernels
    if "push_pop_ranges" not in kernels:
        return None
    phases, parts, told = [], [], []
    last: dict[int, str] = {}
    for process, stack, spans in zip(
        kernels["process"].tolist(),
        kernels["push_pop_ranges"].tolist(),
        kernels["start_stop_ranges"].tolist(),
        strict=True,
    ):
        names = [name.removeprefix(_DOMAIN) for name in stack if name.startswith(_DOMAIN)]
        phase, part = _phase_of(names)
        by = BY_RANGE if phase else ""
        if phase is None and f"{_DOMAIN}all-reduce" in spans:
            phase, by = "all-reduce", BY_RANGE
        if phase is None and last.get(process) == "forward" and not stack:
            phase, by = "backward", BY_ORDER
        elif phase is not None:
            last[process] = phase if by == BY_RANGE else last.get(process, "")
        phases.append(phase or NO_PHASE)
        parts.append(part)
        told.append(by)
    if all(phase == NO_PHASE for phase in phases):
        return None
    return pd.DataFrame({"phase": phases, "part": parts, "told_by": told}, index=kernels.index)


def _phase_of(names: Sequence[str]) -> tuple[str | None, str]:
    found = [position for position, name in enumerate(names) if name in PHASES]
    inside = names[found[-1] + 1 :] if found else names
    part = next((name for name in inside if not name.startswith(_AROUND)), "")
    return (names[found[-1]] if found else None), part
