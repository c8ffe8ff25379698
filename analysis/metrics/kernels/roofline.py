"""The roofline of every kernel: operations per byte, rates reached, the ceilings above it, and what holds it back.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009):
attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s), at every level of the memory ("Hierarchical Roofline
Analysis", Yang, 2020). docs/explanation/roofline.md derives every number.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ceilings import DRAM, LEVEL_KINDS, Ceiling, ceilings, is_bandwidth
from analysis.metrics.kernels.ncu_metrics import (
    DRAM_LEVEL,
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
_ISSUING = "selected"
"""What ncu calls the cycle in which a warp issues its instruction; every other reason is a stall."""
_BETWEEN = "cycles between instructions"
_NEEDED = ("fp32", "tensor")  # without these the rest is no total
_MEAN = ("achieved_occupancy", "theoretical_occupancy", "l1_hit", "l2_hit", "waves")
_COLUMNS = [
    "name", "launches", "timed", "time_ms", "time_share", "flop", "flop_type", "dram_bytes", "intensity_flop_per_byte",
    "achieved_flops", "fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops", "dram_gb_s", "l1_bytes", "l2_bytes",
    "l1_flop_per_byte", "l2_flop_per_byte", "l1_gb_s", "l2_gb_s", "compute_fraction", "memory_fraction", "l1_fraction",
    "l2_fraction", "dram_fraction", "attainable_flops", "attainable_by", "attainable_fraction", "bound",
    "achieved_occupancy", "theoretical_occupancy", "occupancy_limit", "l1_hit", "l2_hit", "bank_conflicts", "waves",
    "stall", "stall_share",
]  # fmt: skip


class Roofline(NamedTuple):
    """Every kernel against the ceilings."""

    kernels: "pd.DataFrame"
    """One row per kernel name, longest first: name, family, launches, timed (launches that have a time; all others are
    left out of the row if there are any), time_ms, time_share, flop, flop_type (the type nearest its ceiling, else the
    one with most operations), dram_bytes, intensity_flop_per_byte (of DRAM), achieved_flops (FLOP/s), fp32_flops,
    fp64_flops, fp16_flops (outside the tensor cores), tensor_flops (FLOP/s), dram_gb_s, l1_bytes, l2_bytes,
    l1_flop_per_byte, l2_flop_per_byte, l1_gb_s, l2_gb_s, compute_fraction (the highest of the shares of types'
    ceilings, of pipes and of the SM), memory_fraction (the highest of the next three and ncu's own sum), l1_fraction,
    l2_fraction, dram_fraction, attainable_flops (lowest of flop_type's ceiling and every known level's), attainable_by
    (flop_type or the level of it), attainable_fraction, bound (one of LEVELS, "memory" where no level accounts for it,
    "compute (PIPE)", LATENCY or UNKNOWN), achieved_occupancy and theoretical_occupancy (of the warps that an SM can
    hold), occupancy_limit (of the longest launch; "" unknown or none), l1_hit and l2_hit (of the sectors accessed
    there), bank_conflicts (of the wavefronts of shared memory), waves (of blocks, mean over time), stall (what warps
    wait for most, by ncu's name), stall_share (of the cycles between two instructions). NaN is not known."""
    ceilings: Mapping[str, Ceiling]
    """By kind; those that are known."""
    problems: tuple[str, ...]
    """What is not known and why, one sentence each."""


def roofline(counters: KernelCounters, measured: Mapping[str, float] | None = None) -> Roofline:
    """Return the roofline of a file's kernels.

    Args:
        counters: what a reader returned.
        measured: ceilings that were measured on this device: FLOP/s by type as in Device.flops, bytes/s as "dram".
            They come first, then those that the counters imply, then published ones; an unknown device has no other.
    """
    frame = counters.kernels
    work, known = _work(counters), ceilings(counters, measured)
    kernels = _by_name(work, frame["name"].astype("object"), occupancy_limits(counters), known)
    kernels.insert(1, "family", kernels["name"].map(family))
    problems = ["no kernel was profiled"] if frame.empty else _problems(counters, work, known)
    return Roofline(kernels, known, tuple(problems))


def _work(counters: KernelCounters) -> "pd.DataFrame":
    """Return one row per launch: duration_ns, bytes_<kind>, flop_<type>, conflicts, wavefronts, and products of the
    time with percentages (busy_memory_<level>, busy_sm_<pipe>, busy_<mean>) and cycles (stall_<reason>).

    flop_tensor is 0 of a kernel that executed no tensor instruction and NaN of one whose operations nothing tells; the
    other tensor columns are of types.
    """
    import pandas as pd

    frame = counters.kernels
    time = frame["duration_ns"]
    columns: dict[str, pd.Series[float] | None] = {"duration_ns": time}
    columns |= {f"bytes_{kind}": level_traffic(frame, level)[0] for level, kind in LEVEL_KINDS.items()}
    columns |= {f"flop_{kind}": thread_flop(frame, kind) for kind in THREAD_TYPES}
    worked, by_type = _tensor_worked(frame), tensor_flop(frame, counters.compute_capability)
    columns |= {f"flop_tensor_{kind}": operations for kind, operations in by_type.items()}
    if by_type:
        # 0 of a pipe that worked is no count: some chips' metric misses some instructions.
        none = pd.DataFrame(by_type).fillna(0).sum(axis=1) == 0
        missed = none & (worked > 0) if worked is not None else none & False
        columns["flop_tensor"] = pd.Series(0.0, frame.index).where(~missed)
    elif worked is not None:
        columns["flop_tensor"] = worked.where(worked == 0)
    percents = {f"memory_{name}": values for name, values in memory_percents(counters).items()}
    percents |= {f"sm_{name}": values for name, values in sm_percents(counters).items()}
    percents |= occupancy_percents(counters)
    if (filled := waves(counters)) is not None:
        percents["waves"] = filled * 100
    columns |= {f"busy_{name}": time * values / 100 for name, values in percents.items()}
    columns["conflicts"], columns["wavefronts"] = bank_conflicts(counters) or (None, None)
    cycles, between = stall_cycles(counters), warp_latency(counters)
    columns |= {f"stall_{reason}": time * cycles[reason] for reason in cycles if reason != _ISSUING}
    if len(cycles.columns):
        columns[_BETWEEN] = time * (cycles.sum(axis=1) if between is None else between)
    return pd.DataFrame({name: values for name, values in columns.items() if values is not None}, index=frame.index)


def _tensor_worked(frame: "pd.DataFrame") -> "pd.Series[float] | None":
    """Return something that is 0 where the tensor cores stood still, whatever the file has."""
    for base in TENSOR_INSTRUCTIONS:
        if f"{base}.sum" not in frame:
            continue
        # A chip that runs packed fp16 on this pipe (GA100) counts those warps here: 32 threads each, and no matrix.
        unit = base.partition("__")[0]
        fp16 = frame.get(f"{unit}__sass_thread_inst_executed_op_hfma_pred_on.sum")
        executed = frame[f"{base}.sum"]
        return executed if fp16 is None else executed.where(executed * 32 != fp16, 0.0)
    percent = pipe_percent(frame, PIPES["tensor"])
    return None if percent is None else percent[0]


def _problems(counters: KernelCounters, work: "pd.DataFrame", known: Mapping[str, Ceiling]) -> list[str]:
    device = counters.device_name or "the device (the file does not name it)"
    problems = []
    timed = int(work["duration_ns"].notna().sum())
    if 0 < timed < len(work):
        problems.append(f"{len(work) - timed} of {len(work)} launches have no time and are left out")
    if "bytes_dram" not in work:
        problems.append("the file lacks bytes: collect dram__bytes.sum")
    if DRAM not in known or all(map(is_bandwidth, known)):
        what = "memory bandwidth" if DRAM not in known else "compute rate"
        problems.append(f"the peak {what} of {device} is unknown: collect `ncu --section SpeedOfLight_RooflineChart`")
    if lacking := [kind for kind in (*THREAD_TYPES, "tensor") if f"flop_{kind}" not in work]:
        without = "so totals are unknown" if set(lacking) & set(_NEEDED) else "totals exclude them"
        problems.append(f"the file lacks operations ({', '.join(lacking)}), {without}")
    levels = {name: 0.0 if f"busy_memory_{name}" in work else math.nan for name in (*LEVELS, MEMORY)}
    if unseen := _not_counted({SM: 0.0 if f"busy_sm_{SM}" in work else math.nan}, levels):
        problems.append(f"utilization of {', '.join(unseen)} is not in this file: collect `ncu --section SpeedOfLight`")
    if "flop_tensor" in work and work["flop_tensor"].isna().any():
        problems.append("the tensor cores' operations are not in this file: the pipe's utilization counts instead")
    return problems


def _by_name(
    work: "pd.DataFrame", keys: "pd.Series[str]", limits: "pd.Series[str]", known: Mapping[str, Ceiling]
) -> "pd.DataFrame":
    import pandas as pd

    launches, total = work.groupby(keys, sort=False).size(), float(work["duration_ns"].sum(min_count=1))
    timed = work["duration_ns"].notna()
    # Launches without a time are left out, but of a name that has no other.
    work = work[timed | ~timed.groupby(keys).transform("any")]
    groups = work.groupby(keys, sort=False)
    sums = groups.sum(min_count=1).where(groups.count().eq(groups.size(), axis=0))  # a part must not pass for all
    longest = work["duration_ns"].fillna(-1.0).groupby(keys, sort=False).idxmax()
    rows = []
    for name, values in zip(sums.index, sums.to_dict("records"), strict=True):
        row = _row({str(key): value for key, value in values.items()}, total, known)
        counts = {"launches": int(launches[name]), "timed": int(timed[keys == name].sum())}
        rows.append({"name": str(name), **counts, **row, "occupancy_limit": limits[longest[name]]})
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values("time_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)


def _part(row: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _row(row: Mapping[str, float], total_ns: float, known: Mapping[str, Ceiling]) -> dict[str, object]:
    time = row["duration_ns"]
    seconds = time / 1e9
    counted = _part(row, "flop_")
    flops = {kind: value for kind, value in counted.items() if not math.isnan(value)}
    flop = sum(counted.values()) if set(_NEEDED) <= set(counted) else math.nan
    moved = {kind: row.get(f"bytes_{kind}", math.nan) for kind in LEVEL_KINDS.values()}
    busy = {name: _ratio(value, time) for name, value in _part(row, "busy_").items()}
    fractions = {kind: _ratio(value, seconds * known[kind].rate) for kind, value in flops.items() if kind in known}
    computing = {kind.replace("_", " "): share for kind, share in fractions.items()} | _part(busy, "sm_")
    levels = {level: busy.get(f"memory_{level}", math.nan) for level in (*LEVELS, MEMORY)}
    for level, kind in LEVEL_KINDS.items():
        share = _ratio(moved[kind], seconds * known[kind].rate) if kind in known else math.nan
        # A cache has more limits than its bytes: a low share of them alone does not say that it is idle.
        if level == DRAM_LEVEL or share >= LATENCY_BOUND_BELOW or not math.isnan(levels[level]):
            levels[level] = _nan_max([levels[level], share])
    ranking = fractions if any(fractions.values()) else flops
    leading = max(ranking, key=lambda kind: ranking[kind], default="")
    leading = leading if flops.get(leading) else ""
    roofs = {leading: known[leading].rate} if leading in known else {}
    for level, kind in LEVEL_KINDS.items():
        if roofs and kind in known and not math.isnan(_ratio(flop, moved[kind])):
            roofs[level] = flop / moved[kind] * known[kind].rate
    roof = min(roofs, key=lambda name: roofs[name]) if len(roofs) > 1 else ""
    compute = _nan_max(computing.values())
    tensor = [value for kind, value in counted.items() if kind.startswith("tensor_")]
    tensor_total = (
        math.nan if math.isnan(counted.get("tensor", 0.0)) else sum(tensor or [counted.get("tensor", math.nan)])
    )
    stalls = {reason: value for reason, value in _part(row, "stall_").items() if value > 0}
    stall = max(stalls, key=lambda name: stalls[name], default="")
    intensities = {kind: _ratio(flop, size) for kind, size in moved.items()}
    return {
        "time_ms": seconds * 1e3,
        "time_share": _ratio(time, total_ns),
        "flop": flop,
        "flop_type": leading,
        "intensity_flop_per_byte": intensities[DRAM],
        "achieved_flops": _ratio(flop, seconds),
        **{f"{kind}_flops": _ratio(counted.get(kind, math.nan), seconds) for kind in THREAD_TYPES},
        "tensor_flops": _ratio(tensor_total, seconds),
        **{f"{kind}_bytes": size for kind, size in moved.items()},
        **{f"{kind}_flop_per_byte": intensity for kind, intensity in intensities.items()},
        **{f"{kind}_gb_s": _ratio(size, seconds) / 1e9 for kind, size in moved.items()},
        "compute_fraction": 0.0 if math.isnan(compute) and flop == 0 else compute,
        "memory_fraction": _nan_max(levels.values()),
        **{f"{kind}_fraction": levels[level] for level, kind in LEVEL_KINDS.items()},
        "attainable_flops": roofs.get(roof, math.nan),
        "attainable_by": roof,
        "attainable_fraction": _ratio(_ratio(flop, seconds), roofs.get(roof, math.nan)),
        "bound": _bound(computing, levels),
        **{name: busy.get(name, math.nan) for name in _MEAN},
        "bank_conflicts": _ratio(row.get("conflicts", math.nan), row.get("wavefronts", math.nan)),
        "stall": stall,
        "stall_share": _ratio(stalls.get(stall, math.nan), row.get(_BETWEEN, math.nan)),
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


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _nan_max(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
