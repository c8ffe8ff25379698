"""The roofline of every kernel: operations per byte, rates reached, the ceilings above it, and what holds it back.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009):
attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s). docs/explanation/roofline.md derives every number.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ncu_metrics import (
    DRAM_LEVEL,
    DRAM_PERCENTS,
    L1,
    L2,
    LEVELS,
    MEMORY,
    PIPES,
    SM,
    THREAD_TYPES,
    bank_conflicts,
    dram_bytes,
    memory_percents,
    occupancy_limits,
    occupancy_percents,
    pipe_percent,
    sm_percents,
    tensor_flop,
    thread_flop,
    waves,
)
from analysis.names import family

if TYPE_CHECKING:
    import pandas as pd


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


DRAM = "dram"
LATENCY, UNKNOWN = "latency", "unknown"
COMPUTE = "compute"
"""How the bound of a kernel begins that a pipe holds back: "compute (tensor)"."""
LATENCY_BOUND_BELOW = 0.6
"""Below this share of every ceiling none holds a kernel back: ncu's rule SOLBottleneck draws the line there."""
_ACCOUNTS_FOR = 0.9  # of ncu's sum, for sums and parts are measured in different runs of a kernel

_TENSOR, _BUSY = "tensor_", "busy_"
_LEAST_PERCENT = 5.0  # a smaller percentage, rounded to two decimals, implies no peak
_MEMORY_REMEDY = "collect `ncu --section SpeedOfLight_RooflineChart`"
_NEEDED = ("fp32", "tensor")  # without these the rest is no total
_REMEDY = "collect `ncu --section SpeedOfLight_RooflineChart`, or use `bertbench profile`, which measures the peak"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One highest rate."""

    kind: str
    """DRAM, a type of THREAD_TYPES, or tensor_<type>."""
    rate: float
    """Bytes/s of DRAM, else FLOP/s."""
    source: str
    """Where it is from: measured, implied by the counters, or the table of devices."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Every kernel against the ceilings."""

    kernels: "pd.DataFrame"
    """One row per kernel name, longest first: name, family, launches, time_ms, time_share, flop, flop_type (the type
    nearest its ceiling, else the one with most operations), dram_bytes, intensity_flop_per_byte, achieved_flops
    (FLOP/s), dram_gb_s, compute_fraction (the highest of the shares of types' ceilings, of pipes and of the SM),
    memory_fraction (the highest of the next three and ncu's own sum), l1_fraction, l2_fraction, dram_fraction,
    attainable_flops, attainable_fraction (of DRAM and flop_type alone), bound (one of LEVELS, "memory" where no level
    accounts for it, "compute (PIPE)", LATENCY or UNKNOWN), achieved_occupancy and theoretical_occupancy (of the warps
    that an SM can hold), occupancy_limit (of the longest launch; "" unknown or none), bank_conflicts (of the wavefronts
    of shared memory), waves (of blocks, mean over time), reason. NaN is not known; `reason` says why."""
    families: "pd.DataFrame"
    """The same per family of kernels, without name."""
    ceilings: Mapping[str, Ceiling]
    """By kind; those that are known."""
    problems: tuple[str, ...]
    """What is not known and why, one sentence each."""


def roofline(counters: KernelCounters, measured: Mapping[str, float] | None = None) -> Roofline:
    """Return the roofline of a file's kernels.

    Args:
        counters: what a reader returned.
        measured: ceilings that were measured on this device: FLOP/s by type as in DevicePeaks.flops, bytes/s as "dram".
            They come first, then those that the counters imply, then the table; an unknown device has no other.
    """
    frame = counters.kernels
    work = _work(counters)
    found = ceilings(counters, measured)
    names, families = frame["name"].astype("object"), frame["name"].map(family)
    limits = occupancy_limits(counters)
    kernels = _grouped(work, names, limits, found)
    kernels.insert(1, "family", kernels["name"].map(family))
    problems = ["no kernel was profiled"] if frame.empty else _problems(counters, work, found)
    by_family = _grouped(work, families, limits, found).rename(columns={"name": "family"})
    return Roofline(kernels, by_family, found, tuple(problems))


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
    found = {}
    for kind, letter in THREAD_TYPES.items():
        for unit in ("sm", "smsp"):
            peak = f"{unit}__sass_thread_inst_executed_op_{letter}fma_pred_on.sum.peak_sustained"
            derived = f"derived__{unit}__sass_thread_inst_executed_op_{letter}fma_pred_on_x2"
            clock = f"{unit}__cycles_elapsed.avg.per_second"
            per_cycle = 2 * frame[peak] if peak in frame else frame.get(derived)
            if kind not in found and per_cycle is not None and clock in frame:
                rate = _middle(per_cycle * frame[clock])
                if rate:
                    found[kind] = Ceiling(kind, rate, f"counters, {peak if peak in frame else derived}")
    peak, clock = "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"
    if peak in frame and clock in frame and (rate := _middle(frame[peak] * frame[clock])):
        found[DRAM] = Ceiling(DRAM, rate, f"counters, {peak}")
        return found
    moved = dram_bytes(frame)
    for name in DRAM_PERCENTS:
        if name in frame and moved is not None:
            percent = frame[name].where(frame[name] >= _LEAST_PERCENT)
            rate = _middle(moved / (frame["duration_ns"] / 1e9) / (percent / 100))
            if rate:
                found[DRAM] = Ceiling(DRAM, rate, f"counters, {name}")
                break
    return found


def _middle(rates: "pd.Series[float]") -> float | None:
    """Median over the kernels: clocks differ from kernel to kernel."""
    known = rates[(rates > 0) & (rates < math.inf)]
    return float(known.median()) if len(known) else None


def _work(counters: KernelCounters) -> "pd.DataFrame":
    """One row per launch: duration_ns, dram_bytes, flop_<type>, busy_<what> (time x share of its peak), bank_conflicts.

    flop_tensor is 0 of a kernel that executed no tensor instruction and NaN of one whose operations nothing tells; the
    other tensor columns are of types.
    """
    import pandas as pd

    frame = counters.kernels
    columns: dict[str, pd.Series[float]] = {"duration_ns": frame["duration_ns"]}
    if (moved := dram_bytes(frame)) is not None:
        columns["dram_bytes"] = moved
    for kind in THREAD_TYPES:
        if (operations := thread_flop(frame, kind)) is not None:
            columns[f"flop_{kind}"] = operations
    worked = _tensor_worked(frame)
    by_type = tensor_flop(frame, counters.compute_capability)
    for kind, operations in by_type.items():
        columns[f"flop_{_TENSOR}{kind}"] = operations
    if by_type and worked is not None:
        # 0 of a pipe that worked is no count: some chips' metric misses some instructions.
        none = sum(operations.fillna(0) for operations in by_type.values()) == 0
        columns["flop_tensor"] = pd.Series(0.0, frame.index).where(~(none & (worked > 0)))
    elif by_type or worked is not None:
        columns["flop_tensor"] = pd.Series(0.0, frame.index) if worked is None else worked.where(worked == 0)
    shares = {f"memory_{name}": values for name, values in memory_percents(counters).items()}
    shares |= {f"sm_{name}": values for name, values in sm_percents(counters).items()}
    shares |= occupancy_percents(counters)
    for name, percent in shares.items():
        columns[f"{_BUSY}{name}"] = frame["duration_ns"] * percent / 100
    if (filled := waves(counters)) is not None:
        columns[f"{_BUSY}waves"] = frame["duration_ns"] * filled
    if (conflicts := bank_conflicts(counters)) is not None:
        columns["bank_conflicts"], columns["wavefronts"] = conflicts
    return pd.DataFrame(columns, index=frame.index)


def _tensor_worked(frame: "pd.DataFrame") -> "pd.Series[float] | None":
    """Something that is 0 where the tensor cores stood still, whatever the file has."""
    for name in ("sm__inst_executed_pipe_tensor.sum", "smsp__inst_executed_pipe_tensor.sum"):
        if name not in frame:
            continue
        # A chip that runs packed fp16 on this pipe (GA100) counts those warps here: 32 threads each, and no matrix.
        fp16 = frame.get(name.replace("inst_executed_pipe_tensor", "sass_thread_inst_executed_op_hfma_pred_on"))
        return frame[name] if fp16 is None else frame[name].where(frame[name] * 32 != fp16, 0.0)
    found = pipe_percent(frame, PIPES["tensor"])
    return None if found is None else found[0]


def _problems(counters: KernelCounters, work: "pd.DataFrame", found: Mapping[str, Ceiling]) -> list[str]:
    device = counters.device_name or "the device (the file does not name it)"
    problems = []
    if "dram_bytes" not in work:
        problems.append("the file lacks bytes: collect dram__bytes.sum")
    if DRAM not in found:
        problems.append(f"the peak memory bandwidth of {device} is unknown: {_MEMORY_REMEDY}")
    if all(kind == DRAM for kind in found):
        problems.append(f"the compute peak of {device} is unknown: {_REMEDY}")
    lacking = [kind for kind in (*THREAD_TYPES, "tensor") if f"flop_{kind}" not in work]
    if lacking:
        without = "so totals are unknown" if set(lacking) & set(_NEEDED) else "totals exclude them"
        problems.append(f"the file lacks operations ({', '.join(lacking)}), {without}")
    counted = {name: 0.0 if f"{_BUSY}memory_{name}" in work else math.nan for name in (*LEVELS, MEMORY)}
    if lacking := _not_counted({SM: 0.0 if f"{_BUSY}sm_{SM}" in work else math.nan}, counted):
        problems.append(
            f"the utilization of {_listed(lacking)} is not in this file: kernels below 60 % of every other limit may "
            "be bound there; collect `ncu --section SpeedOfLight`"
        )
    if "flop_tensor" in work and work["flop_tensor"].isna().any():
        problems.append(
            "the tensor cores were used, but their number of operations is not in this file (instructions differ in "
            "size): such kernels are judged by the utilization of the pipe alone"
        )
    return problems


def _grouped(
    work: "pd.DataFrame", keys: "pd.Series[str]", limits: "pd.Series[str]", found: Mapping[str, Ceiling]
) -> "pd.DataFrame":
    import pandas as pd

    groups = work.groupby(keys.rename("name"), sort=False)
    sums = groups.sum(min_count=1)
    complete = groups.count().eq(groups.size(), axis=0)
    sums = sums.where(complete)  # a part must not pass for all
    sums["launches"] = groups.size()
    total = float(work["duration_ns"].sum()) if work["duration_ns"].notna().all() else math.nan
    longest = work["duration_ns"].fillna(-1.0).groupby(keys.rename("name"), sort=False).idxmax()
    rows = [
        {
            **_row(str(name), {str(key): value for key, value in row.items()}, total, found),
            "occupancy_limit": limits[longest[name]],
        }
        for name, row in zip(sums.index, sums.to_dict("records"), strict=True)
    ]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values("time_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)


_COLUMNS = [
    "name", "launches", "time_ms", "time_share", "flop", "flop_type", "dram_bytes", "intensity_flop_per_byte",
    "achieved_flops", "dram_gb_s", "compute_fraction", "memory_fraction", "l1_fraction", "l2_fraction", "dram_fraction",
    "attainable_flops", "attainable_fraction", "bound", "achieved_occupancy", "theoretical_occupancy",
    "occupancy_limit", "bank_conflicts", "waves", "reason",
]  # fmt: skip


def _row(name: str, row: Mapping[str, float], total_ns: float, found: Mapping[str, Ceiling]) -> dict[str, object]:
    seconds = row["duration_ns"] / 1e9
    flops = {key.removeprefix("flop_"): value for key, value in row.items() if key.startswith("flop_")}
    unknown = [kind for kind, value in flops.items() if math.isnan(value)]
    unknown += [kind for kind in _NEEDED if kind not in flops]
    known = {kind: value for kind, value in flops.items() if not math.isnan(value)}
    flop = math.nan if unknown else sum(known.values())
    moved = row.get("dram_bytes", math.nan)
    bandwidth = _ratio(moved, seconds)
    busy = {
        key.removeprefix(_BUSY): _ratio(value, row["duration_ns"])
        for key, value in row.items()
        if key.startswith(_BUSY)
    }
    fractions = {kind: _ratio(value, seconds * found[kind].rate) for kind, value in known.items() if kind in found}
    computing = {kind.replace("_", " "): share for kind, share in fractions.items()}
    computing |= {key.removeprefix("sm_"): share for key, share in busy.items() if key.startswith("sm_")}
    compute = _nan_max(computing.values())
    compute = 0.0 if math.isnan(compute) and flop == 0 else compute
    levels = {level: busy.get(f"memory_{level}", math.nan) for level in (*LEVELS, MEMORY)}
    if DRAM in found:
        levels[DRAM_LEVEL] = _nan_max([levels[DRAM_LEVEL], _ratio(bandwidth, found[DRAM].rate)])
    leading = max(fractions, key=lambda kind: fractions[kind], default="") if any(fractions.values()) else ""
    kind = leading or max(known, key=lambda kind: known[kind], default="")
    kind = kind if known.get(kind) else ""
    intensity, achieved = _ratio(flop, moved), _ratio(flop, seconds)
    attainable = math.nan
    if kind in found and DRAM in found and not math.isnan(intensity):
        attainable = min(found[kind].rate, intensity * found[DRAM].rate)
    return {
        "name": name,
        "launches": int(row["launches"]),
        "time_ms": seconds * 1e3,
        "time_share": _ratio(row["duration_ns"], total_ns),
        "flop": flop,
        "flop_type": kind,
        "dram_bytes": moved,
        "intensity_flop_per_byte": intensity,
        "achieved_flops": achieved,
        "dram_gb_s": bandwidth / 1e9,
        "compute_fraction": compute,
        "memory_fraction": _nan_max(levels.values()),
        "l1_fraction": levels[L1],
        "l2_fraction": levels[L2],
        "dram_fraction": levels[DRAM_LEVEL],
        "attainable_flops": attainable,
        "attainable_fraction": _ratio(achieved, attainable),
        "bound": _bound(computing, levels),
        "achieved_occupancy": busy.get("achieved_occupancy", math.nan),
        "theoretical_occupancy": busy.get("theoretical_occupancy", math.nan),
        "bank_conflicts": _ratio(row.get("bank_conflicts", math.nan), row.get("wavefronts", math.nan)),
        "waves": busy.get("waves", math.nan),
        "reason": _reason(seconds, moved, unknown, computing, levels),
    }


def _bound(computing: Mapping[str, float], levels: Mapping[str, float]) -> str:
    """One ceiling known to be near settles it; that none is near is certain only if all are known."""
    compute, memory = _nan_max(computing.values()), _nan_max(levels.values())
    if not _nan_max([compute, memory]) >= LATENCY_BOUND_BELOW:
        return UNKNOWN if _not_counted(computing, levels) else LATENCY
    if math.isnan(memory) or memory < compute:
        return f"{COMPUTE} ({_named(computing, SM)})"
    return _named(levels, MEMORY)


def _named(shares: Mapping[str, float], whole: str) -> str:
    """The highest share by its name; `whole`, what ncu sums up, where none of those in the file accounts for it."""
    parts = {name: share for name, share in shares.items() if name != whole and not math.isnan(share)}
    highest = max(parts, key=lambda name: parts[name], default=whole)
    return whole if shares.get(whole, 0.0) * _ACCOUNTS_FOR > shares[highest] else highest


def _not_counted(computing: Mapping[str, float], levels: Mapping[str, float]) -> list[str]:
    """What could hold a kernel back unseen: ncu's sum over the memory holds DRAM, and not all of L1/TEX and L2."""
    unseen = [level for level in LEVELS if math.isnan(levels[level])]
    unseen = unseen if math.isnan(levels[MEMORY]) else [level for level in unseen if level != DRAM_LEVEL]
    return unseen + ([SM] if math.isnan(computing.get(SM, math.nan)) else [])


def _reason(
    seconds: float, moved: float, unknown: list[str], computing: Mapping[str, float], levels: Mapping[str, float]
) -> str:
    reasons = []
    if math.isnan(seconds):
        reasons.append("its time is not in this file")
    if math.isnan(moved):
        reasons.append("its bytes are not in this file")
    if unknown:
        reasons.append(f"its operations ({', '.join(dict.fromkeys(unknown))}) are not counted")
    if math.isnan(_nan_max(computing.values())):
        reasons.append("no compute ceiling is known")
    if lacking := _not_counted(computing, levels):
        reasons.append(f"the utilization of {_listed(lacking)} is not in this file")
    return ", ".join(reasons)


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _nan_max(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
