"""The roofline of every kernel: operations per byte, rates reached, the ceilings above it, and what holds it back.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009):
attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s), at every level of the memory ("Hierarchical Roofline
Analysis", Yang, 2020). docs/explanation/roofline.md derives every number.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ceilings import DRAM, LEVEL_KINDS, Ceiling, ceilings, is_bandwidth
from analysis.metrics.kernels.ncu_metrics import (
    DRAM_LEVEL,
    L1,
    L2,
    LEVELS,
    MEMORY,
    PIPES,
    SM,
    TENSOR_INSTRUCTIONS,
    THREAD_TYPES,
    bank_conflicts,
    level_traffic,
    memory_percents,
    occupancy_limits,
    occupancy_percents,
    pipe_percent,
    sm_percents,
    stall_cycles,
    tensor_flop,
    thread_flop,
    warp_latency,
    waves,
)
from analysis.names import family

if TYPE_CHECKING:
    import pandas as pd


LATENCY, UNKNOWN = "latency", "unknown"
COMPUTE = "compute"
"""How the bound of a kernel begins that a pipe holds back: "compute (tensor)"."""
LATENCY_BOUND_BELOW = 0.6
"""Below this share of every ceiling none holds a kernel back: ncu's rule SOLBottleneck, of its section SpeedOfLight,
draws the line there ("latency_bound_threshold = 60" in SpeedOfLight.py of Nsight Compute 2022.3)."""
_ACCOUNTS_FOR = 0.9  # of ncu's sum, for sums and parts are measured in different runs of a kernel

_TENSOR, _BUSY, _STALL = "tensor_", "busy_", "stall_"
_BETWEEN = "cycles between instructions"
ISSUING = "selected"
"""What ncu calls the cycle in which a warp issues its instruction; every other reason is a stall."""
_MEMORY_REMEDY = "collect `ncu --section SpeedOfLight_RooflineChart`"
_NEEDED = ("fp32", "tensor")  # without these the rest is no total
_REMEDY = f"{_MEMORY_REMEDY}, or use `bertbench profile`, which measures the peak"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Every kernel against the ceilings."""

    kernels: "pd.DataFrame"
    """One row per kernel name, longest first: name, family, launches, time_ms, time_share, flop, flop_type (the type
    nearest its ceiling, else the one with most operations), dram_bytes, intensity_flop_per_byte (of DRAM),
    achieved_flops (FLOP/s), fp32_flops, fp64_flops, fp16_flops (outside the tensor cores), tensor_flops (FLOP/s),
    dram_gb_s, l1_bytes, l2_bytes, l1_flop_per_byte, l2_flop_per_byte, l1_gb_s, l2_gb_s, compute_fraction (the highest
    of the shares of types' ceilings, of pipes and of the SM), memory_fraction (the highest of the next three and ncu's
    own sum), l1_fraction, l2_fraction, dram_fraction, attainable_flops (lowest of flop_type's ceiling and every known
    level's), attainable_by (flop_type or the level of it), attainable_fraction, bound (one of LEVELS, "memory" where no
    level accounts for it, "compute (PIPE)", LATENCY or UNKNOWN), achieved_occupancy and theoretical_occupancy (of the
    warps that an SM can hold), occupancy_limit (of the longest launch; "" unknown or none), bank_conflicts (of the
    wavefronts of shared memory), waves (of blocks, mean over time), stall (what warps wait for most, by ncu's name),
    stall_share (of the cycles between two instructions), reason. NaN is not known; `reason` says why."""
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


def _work(counters: KernelCounters) -> "pd.DataFrame":
    """One row per launch: duration_ns, <level>_bytes, flop_<type>, busy_<what> (time x share of its peak),
    bank_conflicts, stall_<reason> (time x cycles).

    flop_tensor is 0 of a kernel that executed no tensor instruction and NaN of one whose operations nothing tells; the
    other tensor columns are of types.
    """
    import pandas as pd

    frame = counters.kernels
    columns: dict[str, pd.Series[float]] = {"duration_ns": frame["duration_ns"]}
    for level, kind in LEVEL_KINDS.items():
        if (moved := level_traffic(frame, level)[0]) is not None:
            columns[f"{kind}_bytes"] = moved
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
    cycles, between = stall_cycles(counters), warp_latency(counters)
    columns |= {f"{_STALL}{reason}": frame["duration_ns"] * cycles[reason] for reason in cycles if reason != ISSUING}
    if len(cycles.columns):
        columns[_BETWEEN] = frame["duration_ns"] * (cycles.sum(axis=1) if between is None else between)
    return pd.DataFrame(columns, index=frame.index)


def _tensor_worked(frame: "pd.DataFrame") -> "pd.Series[float] | None":
    """Something that is 0 where the tensor cores stood still, whatever the file has."""
    for name in (f"{base}.sum" for base in TENSOR_INSTRUCTIONS):
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
    if all(map(is_bandwidth, found)):
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
    "achieved_flops", "fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops", "dram_gb_s", "l1_bytes", "l2_bytes",
    "l1_flop_per_byte", "l2_flop_per_byte", "l1_gb_s", "l2_gb_s", "compute_fraction", "memory_fraction", "l1_fraction",
    "l2_fraction", "dram_fraction", "attainable_flops", "attainable_by", "attainable_fraction", "bound",
    "achieved_occupancy", "theoretical_occupancy", "occupancy_limit", "bank_conflicts", "waves", "stall", "stall_share",
    "reason",
]  # fmt: skip


def _row(name: str, row: Mapping[str, float], total_ns: float, found: Mapping[str, Ceiling]) -> dict[str, object]:
    seconds = row["duration_ns"] / 1e9
    flops = {key.removeprefix("flop_"): value for key, value in row.items() if key.startswith("flop_")}
    unknown = [kind for kind, value in flops.items() if math.isnan(value)]
    unknown += [kind for kind in _NEEDED if kind not in flops]
    known = {kind: value for kind, value in flops.items() if not math.isnan(value)}
    flop = math.nan if unknown else sum(known.values())
    bytes_of = {level: row.get(f"{kind}_bytes", math.nan) for level, kind in LEVEL_KINDS.items()}
    rates = {level: _ratio(moved, seconds) for level, moved in bytes_of.items()}
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
    for level, limit in LEVEL_KINDS.items():
        share = _ratio(rates[level], found[limit].rate) if limit in found else math.nan
        # A cache has more limits than its bytes: a low share of them alone does not say that it is idle.
        if level == DRAM_LEVEL or share >= LATENCY_BOUND_BELOW or not math.isnan(levels[level]):
            levels[level] = _nan_max([levels[level], share])
    leading = max(fractions, key=lambda kind: fractions[kind], default="") if any(fractions.values()) else ""
    kind = leading or max(known, key=lambda kind: known[kind], default="")
    kind = kind if known.get(kind) else ""
    intensities, achieved = {level: _ratio(flop, moved) for level, moved in bytes_of.items()}, _ratio(flop, seconds)
    roofs = {kind: found[kind].rate} if kind in found else {}
    for level, limit in LEVEL_KINDS.items():
        if limit in found and roofs and not math.isnan(intensities[level]):
            roofs[level] = intensities[level] * found[limit].rate
    roof = min(roofs, key=lambda name: roofs[name]) if len(roofs) > 1 else ""
    attainable = roofs.get(roof, math.nan)
    tensor = [value for name, value in flops.items() if name.startswith(_TENSOR)] or [flops.get("tensor", math.nan)]
    stalls = {key.removeprefix(_STALL): value for key, value in row.items() if key.startswith(_STALL) and value > 0}
    stall = max(stalls, key=lambda name: stalls[name], default="")
    return {
        "name": name,
        "launches": int(row["launches"]),
        "time_ms": seconds * 1e3,
        "time_share": _ratio(row["duration_ns"], total_ns),
        "flop": flop,
        "flop_type": kind,
        "intensity_flop_per_byte": intensities[DRAM_LEVEL],
        "achieved_flops": achieved,
        **{f"{name}_flops": _ratio(flops.get(name, math.nan), seconds) for name in THREAD_TYPES},
        "tensor_flops": math.nan if math.isnan(flops.get("tensor", 0.0)) else _ratio(sum(tensor), seconds),
        **{f"{limit}_bytes": bytes_of[level] for level, limit in LEVEL_KINDS.items()},
        **{f"{limit}_flop_per_byte": intensities[level] for level, limit in LEVEL_KINDS.items()},
        **{f"{limit}_gb_s": rates[level] / 1e9 for level, limit in LEVEL_KINDS.items()},
        "compute_fraction": compute,
        "memory_fraction": _nan_max(levels.values()),
        "l1_fraction": levels[L1],
        "l2_fraction": levels[L2],
        "dram_fraction": levels[DRAM_LEVEL],
        "attainable_flops": attainable,
        "attainable_by": roof,
        "attainable_fraction": _ratio(achieved, attainable),
        "bound": _bound(computing, levels),
        "achieved_occupancy": busy.get("achieved_occupancy", math.nan),
        "theoretical_occupancy": busy.get("theoretical_occupancy", math.nan),
        "bank_conflicts": _ratio(row.get("bank_conflicts", math.nan), row.get("wavefronts", math.nan)),
        "waves": busy.get("waves", math.nan),
        "stall": stall,
        "stall_share": _ratio(stalls.get(stall, math.nan), row.get(_BETWEEN, math.nan)),
        "reason": _reason(seconds, bytes_of[DRAM_LEVEL], unknown, computing, levels),
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
