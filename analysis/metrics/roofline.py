"""The roofline of every kernel: operations per byte, rates reached, the ceilings above it, and what holds it back.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009):
attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s). docs/explanation/roofline.md derives every number.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.counters import KernelCounters
from analysis.metrics.core_utilization import PIPES, metrics_of, pipe_percent
from analysis.metrics.device_peaks import device_peaks
from analysis.metrics.kernel_work import THREAD_TYPES, dram_bytes, tensor_flop, thread_flop
from analysis.names import family

if TYPE_CHECKING:
    import pandas as pd

DRAM = "dram"
MEMORY_BOUND, COMPUTE_BOUND, NEITHER, UNKNOWN = "memory", "compute", "neither (latency)", "unknown"
LATENCY_BOUND_BELOW = 0.6
"""Below this share of both ceilings neither holds a kernel back: ncu's rule SOLBottleneck draws the line there."""

_TENSOR = "tensor_"
_LEAST_PERCENT = 5.0  # a smaller percentage, rounded to two decimals, implies no peak
_DRAM_PERCENTS = (
    "dram__bytes.sum.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "GPU Speed Of Light Throughput: DRAM Throughput",
)
# What ncu calls the throughput of memory and of the SMs: used where nothing better is in the file.
_MEMORY_PERCENTS = (
    *_DRAM_PERCENTS,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "GPU Speed Of Light Throughput: Memory Throughput",
)
_SM_PERCENTS = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "GPU Speed Of Light Throughput: Compute (SM) Throughput",
)
_PIPES = ("tensor", "fma", "fp16", "sfu")
_NEEDED = ("fp32", "tensor")  # without these the rest is no total
_REMEDY = "give one that was measured, or collect `ncu --section SpeedOfLight_RooflineChart`"


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
    (FLOP/s), dram_gb_s, compute_fraction (of the nearest ceiling of a type, or the busiest pipe), memory_fraction,
    attainable_flops, attainable_fraction, bound, reason. NaN is not known; `reason` says why."""
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
    kernels = _grouped(work, names, found)
    kernels.insert(1, "family", kernels["name"].map(family))
    problems = ["no kernel was profiled"] if frame.empty else _problems(counters, work, found)
    by_family = _grouped(work, families, found).rename(columns={"name": "family"})
    return Roofline(kernels, by_family, found, tuple(problems))


def measured_ceiling(dtype: str, flops_per_second: float) -> dict[str, float]:
    """Return a measured peak of matrix products (rank record `measured_peak`) as `roofline` takes it.

    Args:
        dtype: of the products, as PyTorch names it; float32 counts as fp32, whatever units ran it.
        flops_per_second: of one device.
    """
    kinds = {"bfloat16": "tensor_bf16", "float16": "tensor_fp16", "float32": "fp32", "float64": "fp64"}
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
    for name in _DRAM_PERCENTS:
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
    """One row per launch: duration_ns, dram_bytes, flop_<type>, busy_<what> (time x share of its peak).

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
    for pipe in _PIPES:
        if (found := pipe_percent(frame, metrics_of(pipe, counters.compute_capability))) is not None:
            columns[f"busy_{pipe}"] = frame["duration_ns"] * found[0] / 100
    for name, sources in (("busy_sm", _SM_PERCENTS), ("busy_memory", _MEMORY_PERCENTS)):
        source = next((source for source in sources if source in frame), None)
        if source is not None:
            columns[name] = frame["duration_ns"] * frame[source] / 100
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
    device = counters.device_name or "the device, which the file does not name,"
    problems = []
    if "dram_bytes" not in work:
        problems.append("bytes are not in this file: collect dram__bytes.sum")
    if DRAM not in found:
        problems.append(f"no peak of the memory of {device} is known: {_REMEDY}")
    if all(kind == DRAM for kind in found):
        problems.append(f"no compute peak of {device} is known: {_REMEDY}")
    lacking = [kind for kind in (*THREAD_TYPES, "tensor") if f"flop_{kind}" not in work]
    if lacking:
        without = "no total is known" if set(lacking) & set(_NEEDED) else "the totals are without them"
        problems.append(f"operations ({', '.join(lacking)}) are not in this file: {without}")
    if "flop_tensor" in work and work["flop_tensor"].isna().any():
        problems.append(
            "the tensor cores worked, and how many operations they did is not in this file (instructions have several "
            "sizes): such kernels are judged by the share of the pipe alone"
        )
    return problems


def _grouped(work: "pd.DataFrame", keys: "pd.Series[str]", found: Mapping[str, Ceiling]) -> "pd.DataFrame":
    import pandas as pd

    groups = work.groupby(keys.rename("name"), sort=False)
    sums = groups.sum(min_count=1)
    complete = groups.count().eq(groups.size(), axis=0)
    sums = sums.where(complete)  # a part must not pass for all
    sums["launches"] = groups.size()
    total = float(work["duration_ns"].sum()) if work["duration_ns"].notna().all() else math.nan
    rows = [
        _row(str(name), {str(key): value for key, value in row.items()}, total, found)
        for name, row in zip(sums.index, sums.to_dict("records"), strict=True)
    ]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values("time_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)


_COLUMNS = [
    "name", "launches", "time_ms", "time_share", "flop", "flop_type", "dram_bytes", "intensity_flop_per_byte",
    "achieved_flops", "dram_gb_s", "compute_fraction", "memory_fraction", "attainable_flops", "attainable_fraction",
    "bound", "reason",
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
    busy = {key: _ratio(value, row["duration_ns"]) for key, value in row.items() if key.startswith("busy_")}
    fractions = {kind: _ratio(value, seconds * found[kind].rate) for kind, value in known.items() if kind in found}
    compute = _nan_max([*fractions.values(), *(busy.get(f"busy_{pipe}", math.nan) for pipe in _PIPES)])
    if math.isnan(compute):
        compute = 0.0 if flop == 0 else busy.get("busy_sm", math.nan)
    memory = _ratio(bandwidth, found[DRAM].rate) if DRAM in found else math.nan
    if math.isnan(memory):
        memory = busy.get("busy_memory", math.nan)
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
        "memory_fraction": memory,
        "attainable_flops": attainable,
        "attainable_fraction": _ratio(achieved, attainable),
        "bound": _bound(compute, memory),
        "reason": _reason(seconds, moved, unknown, compute, memory),
    }


def _bound(compute: float, memory: float) -> str:
    """One ceiling known to be near settles it; that none is near can be said only where both are known."""
    highest = _nan_max([compute, memory])
    if highest >= LATENCY_BOUND_BELOW:
        return MEMORY_BOUND if memory == highest else COMPUTE_BOUND
    return UNKNOWN if math.isnan(compute) or math.isnan(memory) else NEITHER


def _reason(seconds: float, moved: float, unknown: list[str], compute: float, memory: float) -> str:
    reasons = []
    if math.isnan(seconds):
        reasons.append("its time is not in this file")
    if math.isnan(moved):
        reasons.append("its bytes are not in this file")
    if unknown:
        reasons.append(f"its operations ({', '.join(dict.fromkeys(unknown))}) are not counted")
    if math.isnan(compute):
        reasons.append("no compute ceiling is known")
    if math.isnan(memory):
        reasons.append("no memory ceiling is known")
    return ", ".join(reasons)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _nan_max(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
