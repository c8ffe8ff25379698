"""The metrics of Nsight Compute that core utilization and rooflines need, by compute capability.

Checked by `ncu --query-metrics` of Nsight Compute 2022.3 for every chip that it knows (tests/slow/test_ncu_real.py).
"""

from collections.abc import Iterable, Mapping

from common.errors import UsageError

Capability = tuple[int, int]

# Lowest and highest compute capability of an architecture, and its number.
_ARCHITECTURES: tuple[tuple[Capability, Capability, int], ...] = (
    ((7, 0), (7, 4), 70), ((7, 5), (7, 9), 75), ((8, 0), (8, 5), 80), ((8, 6), (8, 8), 86), ((8, 9), (8, 9), 89),
    ((9, 0), (9, 9), 90), ((10, 0), (11, 9), 100), ((12, 0), (12, 9), 120),
)  # fmt: skip

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"


def _each(form: str, *names: str) -> Iterable[str]:
    return (form.format(name) for name in names)


_EVERYWHERE: tuple[str, ...] = (
    "gpc__cycles_elapsed.max", "gpu__time_duration.sum", "dram__bytes.sum",
    # Pipes and issue slots.
    *_each("sm__inst_executed_pipe_{}" + _ELAPSED, "fma", "xu", "alu", "lsu", "fp64"),
    *_each("sm__pipe_{}_cycles_active" + _ELAPSED, "fma", "tensor", "fp64"),
    f"sm__inst_issued{_ELAPSED}",
    # Operations and their peaks.
    *_each(
        "sm__sass_thread_inst_executed_op_{}_pred_on.sum",
        "fadd", "fmul", "ffma", "hadd", "hmul", "hfma", "dadd", "dmul", "dfma",
    ),
    *_each("sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained", "ffma", "dfma", "hfma"),
    # Levels of the memory: throughput, bytes, peaks, clocks.
    *_each("{}__throughput" + _ELAPSED, "sm", "l1tex", "lts", "dram"),
    f"gpu__compute_memory_throughput{_ELAPSED}",
    *_each("{}__t_bytes.sum", "l1tex", "lts"),
    *_each("{}.sum.peak_sustained", "l1tex__t_bytes", "lts__t_bytes", "dram__bytes"),
    *_each("{}__cycles_elapsed.avg.per_second", "sm", "l1tex", "lts", "dram"),
    "sm__warps_active.avg.pct_of_peak_sustained_active",  # occupancy
)  # fmt: skip

NEWER: Mapping[str, tuple[int, ...]] = {
    f"sm__pipe_tensor_cycles_active_v2{_ELAPSED}": (89,),
    f"sm__inst_executed_pipe_tensor_op_gmma{_ELAPSED}": (90,),
    f"sm__pipe_tc_cycles_active{_ELAPSED}": (100,),
    **dict.fromkeys(_each("sm__ops_path_tensor_src_{}_dst_fp32.sum", "fp16", "bf16", "tf32"), (89, 90, 100, 120)),
}
"""Metrics that Nsight Compute 2022.3 does not list, with the architectures that have them."""
_FURTHER: Mapping[str, tuple[int, ...]] = {
    f"sm__inst_executed_pipe_fp16{_ELAPSED}": (70, 75, 80),
    f"sm__inst_executed_pipe_fma_type_fp16{_ELAPSED}": (86, 89, 90, 100, 120),
    f"sm__inst_executed_pipe_tensor{_ELAPSED}": (70, 75, 80, 86, 89, 90, 120),
    **NEWER,
}


def metrics_of(capability: Capability | str) -> list[str]:
    """Return the metrics to collect on a GPU of a capability, or why it is unknown. Raises UsageError."""
    for lowest, highest, number in _ARCHITECTURES:
        if not isinstance(capability, str) and lowest <= capability <= highest:
            return [*_EVERYWHERE, *(name for name, numbers in _FURTHER.items() if number in numbers)]
    raise UsageError(
        "device-unsupported",
        f"no metrics are known for this GPU's compute capability, {capability}: name them with --with metrics=a,b "
        "(`ncu --query-metrics` lists them), or use --profiler nsys, below 7.0 nvprof",
    )
