"""How busy the kinds of cores are: the pipes of the SMs, from the counters of every kernel (Nsight Compute).

For each pipe: sum over kernels(weight x percent) / sum(weight), the weight being the kernel's elapsed cycles, or its
duration where cycles are not known. docs/explanation/core-utilization.md derives it and lists the metrics.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.names import family

if TYPE_CHECKING:
    import pandas as pd

_PERCENT = ".avg.pct_of_peak_sustained_elapsed"
PIPES: Mapping[str, tuple[str, ...]] = {
    "fma": ("sm__inst_executed_pipe_fma",),
    "fp16": ("sm__inst_executed_pipe_fp16", "sm__inst_executed_pipe_fma_type_fp16"),
    "tensor": (
        "sm__inst_executed_pipe_tensor",
        "sm__inst_executed_pipe_tensor_op_gmma",
        "sm__pipe_tc_cycles_active",
        "sm__pipe_tensor_cycles_active_v2",
        "sm__pipe_tensor_cycles_active",
    ),
    "sfu": ("sm__inst_executed_pipe_xu",),
    "fma_active": ("sm__pipe_fma_cycles_active",),
    "tensor_active": (
        "sm__pipe_tc_cycles_active",
        "sm__pipe_tensor_cycles_active_v2",
        "sm__pipe_tensor_cycles_active",
    ),
}
"""Metrics of each pipe, best first: the first that the file has is used. `..._active` counts cycles in which the pipe
worked, the others instructions against the highest rate."""

_DRAM = "dram__bytes.sum"
_TENSOR_OPS = tuple(f"sm__ops_path_tensor_src_{source}_dst_fp32.sum" for source in ("fp16", "bf16", "tf32"))


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
    """Launches."""
    kernel_time_ms: float | None
    """Sum of their durations under the profiler; None where not every kernel has one."""
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
    """Return how busy the pipes were over all kernels of a file, the last one included.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler, in ns (steps x median step time). With several
            processes in the file the window counts once per process.
    """
    return _use(counters.kernels, window_ns)


def core_use_by_family(counters: KernelCounters) -> dict[str, CoreUse]:
    """Return the same for each family of kernels (matrix product, attention, ...), longest first."""
    frame = counters.kernels
    if frame.empty:
        return {}
    families = frame["name"].map(family)
    found = {str(name): _use(group, None) for name, group in frame.groupby(families, sort=False)}
    column = _weight(frame)
    if column is None:
        return found
    sums = frame[column].groupby(families).sum()
    return dict(sorted(found.items(), key=lambda item: -float(sums[item[0]])))


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


def _use(frame: "pd.DataFrame", window_ns: float | None) -> CoreUse:
    column = _weight(frame)
    time_ns = _total(frame, ["duration_ns"])
    window = None if window_ns is None else window_ns * max(1, int(frame["process"].nunique()))
    pipes = {name: _pipe(frame, bases, column, window) for name, bases in PIPES.items()}
    return CoreUse(
        kernels=len(frame),
        kernel_time_ms=None if time_ns is None else time_ns / 1e6,
        weight={"cycles": "cycles", "duration_ns": "duration"}.get(column or ""),
        pipes=pipes,
        dram_bytes=_total(frame, [_DRAM]),
        fp32_flop=_flop(frame, "f"),
        fp16_flop=_flop(frame, "h"),
        tensor_flop=_tensor_flop(frame, pipes),
    )


def _weight(frame: "pd.DataFrame") -> str | None:
    """Return the column that weights the kernels: one unit for all, cycles unless more kernels have a duration."""
    lacking = {column: int(frame[column].isna().sum()) for column in ("cycles", "duration_ns")}
    best = min(lacking, key=lambda column: lacking[column])  # cycles first when equal
    return best if lacking[best] < len(frame) else None


def _pipe(frame: "pd.DataFrame", bases: tuple[str, ...], column: str | None, window_ns: float | None) -> PipeUse:
    if frame.empty:
        return PipeUse(percent=None, in_window_percent=None, metric=None, reason="no kernel was profiled")
    base = next((base for base in bases if base + _PERCENT in frame and frame[base + _PERCENT].notna().any()), None)
    if base is None:
        reason = "this GPU or this ncu has no such metric, or it was not collected"
        return PipeUse(percent=None, in_window_percent=None, metric=None, reason=reason)
    if column is None:
        reason = "neither cycles nor durations are in the file, so kernels cannot be weighted"
        return PipeUse(percent=None, in_window_percent=None, metric=base, reason=reason)
    values, weights = frame[base + _PERCENT], frame[column]
    counted = values.notna() & weights.notna()
    total = float(weights[counted].sum())
    percent = float((values[counted] * weights[counted]).sum()) / total if total > 0 else None
    reasons = []
    if percent is None:
        reasons.append("the counted kernels took no time")
    elif not counted.all():
        reasons.append(f"{int((~counted).sum())} of {len(frame)} kernels have no value and are left out")
    in_window = None
    if window_ns is not None:
        in_window, why = _in_window(values, frame["duration_ns"], window_ns)
        reasons += [why] if why else []
    return PipeUse(percent=percent, in_window_percent=in_window, metric=base, reason=", ".join(reasons))


def _in_window(values: "pd.Series[float]", durations: "pd.Series[float]", window_ns: float) -> tuple[float | None, str]:
    """Return sum(duration x percent) / window: time without a kernel counts as 0 %. Also why it is None."""
    if durations.isna().any() or values.isna().any():
        return None, "the share of the window needs duration and value of every kernel"
    busy = float(durations.sum())
    if not window_ns > 0 or busy > window_ns:
        return None, (
            f"the kernels took {busy / 1e6:.3f} ms under ncu, the window has {window_ns / 1e6:.3f} ms: profile with "
            "--with clock-control=none, or overlapping kernels make the share unknowable"
        )
    return float((values * durations).sum()) / window_ns, ""


def _flop(frame: "pd.DataFrame", kind: str) -> float | None:
    add, mul, fma = (f"sm__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum" for op in ("add", "mul", "fma"))
    return _total(frame, [add, mul, fma, fma])


def _tensor_flop(frame: "pd.DataFrame", pipes: Mapping[str, PipeUse]) -> float | None:
    """Return the tensor cores' operations; None where the pipe worked and the metric is 0: it missed that."""
    total = _total(frame, [name for name in _TENSOR_OPS if name in frame])
    return None if total == 0 and any(pipes[name].percent for name in ("tensor", "tensor_active")) else total


def _total(frame: "pd.DataFrame", names: list[str]) -> float | None:
    """Return the sum of these columns; None where one is absent or a kernel lacks it: a part must not pass for all."""
    if frame.empty or not names or any(name not in frame or frame[name].isna().any() for name in names):
        return None
    return math.fsum(float(frame[name].sum()) for name in names)
