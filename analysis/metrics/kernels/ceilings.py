"""Ceilings of a roofline: the highest rates of a GPU's arithmetic and of each level of its memory.

The first known one counts: measured ones, those that the counters of a profile imply, NVIDIA's figures by the device's
name. docs/explanation/roofline.md names every source.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.counters import KernelCounters
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


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Highest rates of one GPU."""

    name: str
    flops: Mapping[str, float]
    """FLOP/s by type: fp32, fp64, fp16 outside the tensor cores, tensor_<type of the inputs> inside; absent: unknown.
    """
    bytes_per_second: float


def _peaks(name: str, gb_per_second: float, **tera: float) -> DevicePeaks:
    return DevicePeaks(name, {kind: value * 1e12 for kind, value in tera.items()}, gb_per_second * 1e9)


_HOPPER = {"fp64": 33.5, "fp32": 66.9, "fp16": 133.8, "tensor_fp64": 66.9, "tensor_tf32": 494.7, "tensor_fp16": 989.4,
           "tensor_bf16": 989.4, "tensor_fp8": 1978.9}  # fmt: skip
_AMPERE = {"fp64": 9.7, "fp32": 19.5, "fp16": 78.0, "tensor_fp64": 19.5, "tensor_tf32": 156.0, "tensor_fp16": 312.0,
           "tensor_bf16": 312.0}  # fmt: skip

# Looked for in the whole name; the name must fit to its end, so that a variant nobody listed is unknown.
_TABLE: tuple[tuple[str, DevicePeaks], ...] = (
    (r"H200", _peaks("H200 SXM", 4800, **_HOPPER)),
    (r"H100 80GB HBM3", _peaks("H100 SXM", 3350, **_HOPPER)),
    (r"H100 PCIe", _peaks("H100 PCIe", 2039, fp64=25.6, fp32=51.2, fp16=102.4, tensor_fp64=51.2, tensor_tf32=378.0,
                          tensor_fp16=756.0, tensor_bf16=756.0, tensor_fp8=1513.0)),
    (r"A100-SXM4-80GB", _peaks("A100 SXM 80 GB", 2039, **_AMPERE)),
    (r"A100-SXM4-40GB", _peaks("A100 SXM 40 GB", 1555, **_AMPERE)),
    (r"A100 80GB PCIe", _peaks("A100 PCIe 80 GB", 1935, **_AMPERE)),
    (r"A100-PCIE-40GB", _peaks("A100 PCIe 40 GB", 1555, **_AMPERE)),
    (r"V100-SXM2-(?:16|32)GB", _peaks("V100 SXM2", 900, fp64=7.8, fp32=15.7, fp16=31.4, tensor_fp16=125.0)),
    (r"V100-PCIE-(?:16|32)GB", _peaks("V100 PCIe", 900, fp64=7.0, fp32=14.0, fp16=28.0, tensor_fp16=112.0)),
    (r"P100-SXM2-16GB", _peaks("P100 SXM2", 732, fp64=5.3, fp32=10.6, fp16=21.2)),
    (r"P100-PCIE-16GB", _peaks("P100 PCIe 16 GB", 732, fp64=4.7, fp32=9.3, fp16=18.7)),
    (r"P100-PCIE-12GB", _peaks("P100 PCIe 12 GB", 549, fp64=4.7, fp32=9.3, fp16=18.7)),
    (r"L40S", _peaks("L40S", 864, fp32=91.6, tensor_tf32=183.0, tensor_fp16=362.05, tensor_bf16=362.05,
                     tensor_fp8=733.0)),
    (r"L4", _peaks("L4", 300, fp32=30.3, tensor_tf32=60.0, tensor_fp16=121.0, tensor_bf16=121.0, tensor_fp8=242.5)),
    (r"A10", _peaks("A10", 600, fp32=31.2, tensor_tf32=62.5, tensor_fp16=125.0, tensor_bf16=125.0)),
    (r"T4", _peaks("T4", 320, fp32=8.1, tensor_fp16=65.0)),
    (r"GeForce RTX 4090", _peaks("GeForce RTX 4090", 1008, fp32=82.6, fp16=82.6, tensor_tf32=82.6, tensor_fp16=165.2,
                                 tensor_bf16=165.2)),
    (r"GeForce RTX 3090", _peaks("GeForce RTX 3090", 936, fp32=35.6, fp16=35.6, tensor_tf32=35.6, tensor_fp16=71.0,
                                 tensor_bf16=71.0)),
    (r"GeForce RTX 2080 Ti", _peaks("GeForce RTX 2080 Ti", 616, fp32=13.4, fp16=26.9, tensor_fp16=53.8)),
)  # fmt: skip


def device_peaks(device_name: str | None) -> DevicePeaks | None:
    """Return the published peaks of a GPU; None for one that is not in the table, a slice of a GPU (MIG) included.

    Args:
        device_name: what the driver calls it, such as "NVIDIA A100-SXM4-80GB".
    """
    if device_name is None:
        return None
    name = re.sub(r"^(?:NVIDIA|Tesla|\s)+", "", device_name.strip(), flags=re.IGNORECASE)
    for pattern, peaks in _TABLE:
        if re.fullmatch(pattern, name, flags=re.IGNORECASE):
            return peaks
    return None


# GPUs without tensor cores, and those whose tensor cores know 16-bit floats alone, that are not in the table.
_WITHOUT_TENSOR_CORES = r"\bGTX\b|\b[KMP]\d{1,3}(?:c|m|s|X|Xm)?\b|TITAN (?:X|Xp|Z|Black)\b|Quadro [KMP]"
_ONLY_FP16 = r"\bV100|\bT4G?\b|GeForce RTX 20\d\d|TITAN (?:V|RTX)\b|Quadro (?:RTX|GV)"
_FASTER = 1.5


def faster_types(device_name: str) -> tuple[str, ...] | None:
    """Return the types in which a GPU's GEMMs are much faster than in fp32, of fp16, bf16, tf32; None: not known.

    Args:
        device_name: what the driver calls it.
    """
    if peaks := device_peaks(device_name):
        rates = {kind.removeprefix("tensor_"): rate for kind, rate in peaks.flops.items()}
        return tuple(kind for kind in ("fp16", "bf16", "tf32") if rates.get(kind, 0) >= _FASTER * rates["fp32"])
    if re.search(_WITHOUT_TENSOR_CORES, device_name, re.IGNORECASE):
        return ()
    return ("fp16",) if re.search(_ONLY_FP16, device_name, re.IGNORECASE) else None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One highest rate."""

    kind: str
    """One of LEVEL_KINDS, a type of THREAD_TYPES, or tensor_<type>."""
    rate: float
    """Bytes/s of a level of the memory, else FLOP/s."""
    source: str
    """Where it is from: measured, implied by the counters, or the table of devices."""


def measured_ceiling(dtype: str, flops_per_second: float) -> dict[str, float]:
    """Return a measured GEMM peak (rank record `measured_peak`) as `roofline` takes it.

    Args:
        dtype: of the GEMMs, as PyTorch names it; float32 counts as fp32, whatever units ran it.
        flops_per_second: of one device.
    """
    kinds = {
        "float8_e4m3fn": "tensor_fp8",
        "bfloat16": "tensor_bf16",
        "float16": "tensor_fp16",
        "float32": "fp32",
        "float64": "fp64",
    }
    return {kinds[dtype]: flops_per_second} if dtype in kinds else {}


def ceilings(counters: KernelCounters, measured: Mapping[str, float] | None = None) -> dict[str, Ceiling]:
    """Return the ceilings by kind: measured ones first, then implied ones, then those of the table."""
    found = {}
    table = device_peaks(counters.device_name)
    if table is not None:
        source = f"{table.name}, NVIDIA's figures"
        found[DRAM] = Ceiling(DRAM, table.bytes_per_second, source)
        found |= {kind: Ceiling(kind, rate, source) for kind, rate in table.flops.items()}
    found |= _implied(counters)
    for kind, rate in (measured or {}).items():
        if math.isfinite(rate) and rate > 0:
            found[kind] = Ceiling(kind, float(rate), "measured")
    return found


def _implied(counters: KernelCounters) -> dict[str, Ceiling]:
    """Ceilings at the clocks of the profile: peak per cycle x cycles per second, as in ncu's roofline sections."""
    frame = counters.kernels
    found: dict[str, Ceiling] = {}

    def add(kind: str, rates: "pd.Series[float] | None", source: str) -> None:
        if kind not in found and rates is not None and (rate := _middle(rates)):
            found[kind] = Ceiling(kind, rate, f"counters, {source}")

    for kind, letter in THREAD_TYPES.items():
        for unit in ("sm", "smsp"):
            base = f"{unit}__sass_thread_inst_executed_op_{letter}fma_pred_on"
            peak, derived, clock = peak_rate(frame, base, unit), f"derived__{base}_x2", f"{unit}__cycles_elapsed"
            add(kind, None if peak is None else 2 * peak, f"{base}.sum.peak_sustained")
            if derived in frame and f"{clock}.avg.per_second" in frame and unit == "sm":  # of smsp it is what was done
                add(kind, frame[derived] * frame[f"{clock}.avg.per_second"], derived)
    for kind, bases in tensor_counters(frame).items():
        # Accumulating in fp16 can be twice as fast: the peak is of what most operations did.
        for base in sorted(bases, key=lambda base: -_sum(total(frame, base))):
            add(f"tensor_{kind}", peak_rate(frame, base, "sm"), f"{base}.sum.peak_sustained")
    if counters.compute_capability == (7, 0):
        for base in TENSOR_INSTRUCTIONS:
            rates = peak_rate(frame, base, base.partition("__")[0])
            add("tensor_fp16", None if rates is None else VOLTA_TENSOR_FLOP * rates, f"{base}.sum.peak_sustained")
    for level, kind in LEVEL_KINDS.items():
        _, peak, base = level_traffic(frame, level)
        add(kind, peak, f"{base}.sum.peak_sustained")
    if (moved := dram_bytes(frame)) is not None:
        for name in DRAM_PERCENTS:
            if name in frame:
                percent = frame[name].where(frame[name] >= _LEAST_PERCENT)
                add(DRAM, moved / (frame["duration_ns"] / 1e9) / (percent / 100), name)
    return found


def _sum(counts: "pd.Series[float] | None") -> float:
    return 0.0 if counts is None else float(counts.sum())


def _middle(rates: "pd.Series[float]") -> float | None:
    """Median over the kernels: clocks differ from kernel to kernel."""
    known = rates[(rates > 0) & (rates < math.inf)]
    return float(known.median()) if len(known) else None
