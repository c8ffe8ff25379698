"""Ceilings of a roofline: the highest rates of a GPU's arithmetic and of each level of its memory.

The first known one counts: measured ones, those that the counters of a profile imply, published ones by the device's
name. docs/explanation/roofline.md names every source.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from analysis.counters import KernelCounters
from analysis.metrics.kernels.devices import device_of
from analysis.metrics.kernels.ncu_metrics import (
    DRAM_LEVEL,
    DRAM_PERCENTS,
    L1,
    L2,
    TENSOR_INSTRUCTIONS,
    THREAD_TYPES,
    VOLTA_TENSOR_FLOP,
    dram_bytes,
    level_traffic,
    peak_rate,
    tensor_counters,
    total,
)

if TYPE_CHECKING:
    import pandas as pd

DRAM = "dram"
LEVEL_KINDS: Mapping[str, str] = {L1: "l1", L2: "l2", DRAM_LEVEL: DRAM}
"""Kind of the ceiling of each level of the memory: bytes/s. All other kinds are FLOP/s."""
_LEAST_PERCENT = 5.0  # a smaller percentage, rounded to two decimals, implies no peak


def is_bandwidth(kind: str) -> bool:
    """Return whether a ceiling of this kind is of a level of the memory, in bytes/s."""
    return kind in LEVEL_KINDS.values()


class Ceiling(NamedTuple):
    """One highest rate."""

    kind: str
    """One of LEVEL_KINDS, a type of THREAD_TYPES, or tensor_<type>."""
    rate: float
    """Bytes/s of a level of the memory, else FLOP/s."""
    source: str
    """Where it is from: measured, implied by the counters, or the table of devices."""


def measured_ceiling(dtype: str, flops_per_second: float) -> dict[str, float]:
    """Return a measured GEMM peak (rank record `measured_peak`) as `roofline` takes it; {} for other types.

    Args:
        dtype: of the GEMMs, as PyTorch names it; float32 counts as fp32, whatever units ran it.
        flops_per_second: of one device.
    """
    kinds = {"float8_e4m3fn": "tensor_fp8", "bfloat16": "tensor_bf16", "float16": "tensor_fp16", "float32": "fp32",
             "float64": "fp64"}  # fmt: skip
    return {kinds[dtype]: flops_per_second} if dtype in kinds else {}


def ceilings(counters: KernelCounters, measured: Mapping[str, float] | None = None) -> dict[str, Ceiling]:
    """Return the ceilings by kind: measured ones first, then implied ones, then those of the table of devices."""
    known: dict[str, Ceiling] = {}
    if (device := device_of(counters.device_name)) is not None:
        rates = dict(device.flops)
        rates |= {} if device.bytes_per_second is None else {DRAM: device.bytes_per_second}
        known |= {kind: Ceiling(kind, rate, f"{device.name}, published") for kind, rate in rates.items()}
    known |= _implied(counters)
    for kind, rate in (measured or {}).items():
        if math.isfinite(rate) and rate > 0:
            known[kind] = Ceiling(kind, float(rate), "measured")
    return known


def _implied(counters: KernelCounters) -> dict[str, Ceiling]:
    """Return ceilings at the clocks of the profile: peak per cycle x cycles per second, as ncu's rooflines have it.

    Clocks differ from kernel to kernel: the median counts.
    """
    frame = counters.kernels
    known: dict[str, Ceiling] = {}

    def add(kind: str, rates: "pd.Series[float] | None", source: str) -> None:
        rates = None if rates is None else rates[(rates > 0) & (rates < math.inf)]
        if kind not in known and rates is not None and len(rates):
            known[kind] = Ceiling(kind, float(rates.median()), f"counters, {source}")

    for kind, letter in THREAD_TYPES.items():
        for unit in ("sm", "smsp"):
            base, clock = f"{unit}__sass_thread_inst_executed_op_{letter}fma_pred_on", f"{unit}__cycles_elapsed"
            peak, derived = peak_rate(frame, base, unit), f"derived__{base}_x2"
            add(kind, None if peak is None else 2 * peak, f"{base}.sum.peak_sustained")
            if unit == "sm" and derived in frame and f"{clock}.avg.per_second" in frame:  # of smsp it is what was done
                add(kind, frame[derived] * frame[f"{clock}.avg.per_second"], derived)
    for kind, bases in tensor_counters(frame).items():
        # Accumulating in fp16 can be twice as fast: the peak is of what most operations did.
        counts = {base: counted.sum() for base in bases if (counted := total(frame, base)) is not None}
        for base in sorted(bases, key=lambda base: -counts.get(base, 0.0)):
            add(f"tensor_{kind}", peak_rate(frame, base, "sm"), f"{base}.sum.peak_sustained")
    if counters.compute_capability == (7, 0):
        for base in TENSOR_INSTRUCTIONS:
            peak = peak_rate(frame, base, base.partition("__")[0])
            add("tensor_fp16", None if peak is None else VOLTA_TENSOR_FLOP * peak, f"{base}.sum.peak_sustained")
    for level, kind in LEVEL_KINDS.items():
        _, peak, base = level_traffic(frame, level)
        add(kind, peak, f"{base}.sum.peak_sustained")
    if (moved := dram_bytes(frame)) is not None:
        for name in DRAM_PERCENTS:
            if name in frame:
                percent = frame[name].where(frame[name] >= _LEAST_PERCENT)
                add(DRAM, moved / (frame["duration_ns"] / 1e9) / (percent / 100), name)
    return known
