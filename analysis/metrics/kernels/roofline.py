"""The roofline of every kernel: operations per byte, rates reached, the ceilings above it, and what holds it back.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009):
attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s), at every level of the memory ("Hierarchical Roofline
Analysis", Yang, 2020). docs/explanation/roofline.md derives every number and names the source of every ceiling.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from analysis.counters import KernelCounters
from analysis.metrics.kernels.devices import device_of
from analysis.metrics.kernels.ncu_metrics import (
    DRAM,
    DRAM_LEVEL,
    LEVEL_KINDS,
    MEMORY,
    SM,
    THREAD_TYPES,
    implied_ceilings,
    launch_table,
)
from analysis.names import family

LATENCY, UNKNOWN = "latency", "unknown"
COMPUTE = "compute"
"""How the bound of a kernel begins that a pipe holds back: "compute (tensor)"."""
LATENCY_BOUND_BELOW = 0.6
"""Below this share of every ceiling none holds a kernel back: ncu's rule SOLBottleneck, of its section SpeedOfLight,
draws the line there ("latency_bound_threshold = 60" in SpeedOfLight.py of Nsight Compute 2022.3)."""
_ACCOUNTS_FOR = 0.9  # of ncu's sum, for sums and parts are measured in different runs of a kernel
_NEEDED = {"fp32", "tensor"}  # without these the rest is no total


class Roofline(NamedTuple):
    """Every kernel against the ceilings."""

    kernels: pd.DataFrame
    """One row per kernel name, longest first: name, family, launches, timed (launches that have a time; all others are
    left out of the row if there are any), time_ms, time_share, flop, flop_type (the type nearest its ceiling, else the
    one with most operations), achieved_flops (FLOP/s), fp32_flops, fp64_flops,
    fp16_flops (outside the tensor cores), tensor_flops (FLOP/s); of l1, l2 and dram: bytes, flop_per_byte, gb_s and
    fraction (of its ceiling); compute_fraction (the highest of the shares of types' ceilings, of pipes and of the SM),
    memory_fraction (the highest of the levels and ncu's own sum), attainable_flops (lowest of flop_type's ceiling and
    every known level's), attainable_by (flop_type or the level of it), attainable_fraction, bound (a level, "memory"
    where no level accounts for it, "compute (PIPE)", LATENCY or UNKNOWN), occupancy_share (of the
    warps that an SM can hold). NaN is not known."""
    ceilings: Mapping[str, float]
    """Those that are known, by kind: bytes/s of LEVEL_KINDS, FLOP/s of all others."""


def roofline(counters: KernelCounters) -> Roofline:
    """Return the roofline of a file's kernels."""
    work, known = launch_table(counters), ceilings(counters)
    kernels = _by_name(work, counters.kernels["name"].astype("object"), known)
    kernels.insert(1, "family", kernels["name"].map(family))
    return Roofline(kernels, known)


# ---- ceilings ----


def is_bandwidth(kind: str) -> bool:
    """Return whether a ceiling of this kind is of a level of the memory, in bytes/s."""
    return kind in LEVEL_KINDS.values()


def ceilings(counters: KernelCounters) -> dict[str, float]:
    """Return the ceilings by kind: FLOP/s by type as in Device.flops, bytes/s of LEVEL_KINDS.

    Those that the counters imply come first, then published ones; an unknown device has no other.
    """
    published: dict[str, float] = {}
    if (device := device_of(counters.device_name)) is not None:
        published = {**device.flops, DRAM: device.bytes_per_second or math.nan}
    return {kind: rate for kind, rate in (published | implied_ceilings(counters)).items() if rate > 0}


# ---- kernels ----


def _by_name(work: pd.DataFrame, names: "pd.Series[str]", known: Mapping[str, float]) -> pd.DataFrame:
    timed = work["duration_ns"].notna()
    # Launches without a time are left out, but of a name that has no other.
    groups = work[timed | ~timed.groupby(names).transform("any")].groupby(names, sort=False)
    sums = groups.sum(min_count=1).where(groups.count().eq(groups.size(), axis=0))  # a part must not pass for all
    nothing = pd.Series(math.nan, sums.index)

    def part(prefix: str) -> pd.DataFrame:
        return sums.loc[:, sums.columns.str.startswith(prefix)].rename(columns=lambda name: name.removeprefix(prefix))

    time = sums["duration_ns"].where(sums["duration_ns"] > 0)
    seconds = time / 1e9
    flops, moved = part("flop_"), part("bytes_").reindex(columns=[*LEVEL_KINDS.values()])
    flop = flops.sum(axis=1, skipna=False) if set(flops) >= _NEEDED else nothing
    intensity = moved.rdiv(flop, axis=0).where(moved > 0)
    fractions = pd.DataFrame({kind: flops[kind] / seconds / rate for kind, rate in known.items() if kind in flops})
    fractions = fractions.reindex(index=sums.index, columns=[kind for kind in flops if kind in known])
    pipes = part("busy_sm_").div(time, axis=0)
    computing = pd.concat([fractions.rename(columns=lambda kind: kind.replace("_", " ")), pipes], axis=1)
    levels = part("busy_memory_").div(time, axis=0).reindex(columns=[*LEVEL_KINDS, MEMORY])
    roofs = pd.DataFrame(index=sums.index)
    for level, kind in LEVEL_KINDS.items():
        if kind in known:
            share = moved[kind] / (seconds * known[kind])
            # A cache has more limits than its bytes: a low share of them alone does not say that it is idle.
            counts = (share >= LATENCY_BOUND_BELOW) | levels[level].notna() | (level == DRAM_LEVEL)
            levels[level] = pd.concat([levels[level], share.where(counts)], axis=1).max(axis=1)
            roofs[level] = intensity[kind] * known[kind]
    leading = _highest(fractions.reindex_like(flops).where((fractions > 0).any(axis=1), flops))
    compute_roof, memory_roof = leading.map(known).astype(float), roofs.min(axis=1)
    attainable = pd.concat([compute_roof, memory_roof], axis=1).min(axis=1, skipna=False)
    compute = computing.max(axis=1)
    tensor = flops.loc[:, flops.columns.str.startswith("tensor_")].sum(axis=1, skipna=False)
    columns = {
        "launches": names.groupby(names).size(),
        "timed": timed.groupby(names).sum(),
        "time_ms": sums["duration_ns"] / 1e9 * 1e3,
        "time_share": sums["duration_ns"] / (work["duration_ns"].sum() or math.nan),
        "flop": flop,
        "flop_type": leading,
        "achieved_flops": flop / seconds,
        **{f"{kind}_flops": flops.get(kind, nothing) / seconds for kind in THREAD_TYPES},
        "tensor_flops": tensor.where(flops.get("tensor", nothing).notna()) / seconds,
        **{f"{kind}_bytes": moved[kind] for kind in moved},
        **{f"{kind}_flop_per_byte": intensity[kind] for kind in moved},
        **{f"{kind}_gb_s": moved[kind] / seconds / 1e9 for kind in moved},
        "compute_fraction": compute.mask(compute.isna() & (flop == 0), 0.0),
        "memory_fraction": levels.max(axis=1),
        **{f"{kind}_fraction": levels[level] for level, kind in LEVEL_KINDS.items()},
        "attainable_flops": attainable,
        "attainable_by": leading.where(compute_roof <= memory_roof, _highest(-roofs)).where(attainable.notna(), ""),
        "attainable_fraction": flop / seconds / attainable,
        "bound": [
            _bound(*rows) for rows in zip(*(table.to_dict("records") for table in (computing, levels)), strict=True)
        ],
        "occupancy_share": sums.get("busy_occupancy", nothing) / time,
    }
    table = pd.DataFrame({name: pd.Series(values, sums.index) for name, values in columns.items()})
    table = table.rename_axis("name").reset_index()
    return table.sort_values("time_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)


def _highest(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the column of the highest value of each row that has any but 0, else ""."""
    known = table.where(table != 0).notna().any(axis=1)
    return table.fillna(-math.inf).idxmax(axis=1).where(known, "") if len(table.columns) else known.map({False: ""})


def _bound(computing: Mapping[Any, float], levels: Mapping[Any, float]) -> str:
    """One ceiling known to be near settles it; that none is near is certain only if all are known."""
    compute, memory = (max((x for x in one.values() if x == x), default=0.0) for one in (computing, levels))
    if max(compute, memory) < LATENCY_BOUND_BELOW:
        return UNKNOWN if _not_counted({**computing, **levels}) else LATENCY
    return f"{COMPUTE} ({_named(computing, SM)})" if memory < compute else _named(levels, MEMORY)


def _named(shares: Mapping[Any, float], whole: str) -> str:
    """The highest share by its name; `whole`, what ncu sums up, where none of those in the file accounts for it."""
    parts = {name: share for name, share in shares.items() if name != whole and not math.isnan(share)}
    highest = max(parts, key=lambda name: parts[name], default=whole)
    return whole if shares.get(whole, 0.0) * _ACCOUNTS_FOR > shares[highest] else highest


def _not_counted(shares: Mapping[str, float]) -> list[str]:
    """What could hold a kernel back and is not in the file: ncu's sum has DRAM, and not all of L1/TEX and L2."""
    unknown = [name for name in (*LEVEL_KINDS, SM) if math.isnan(shares.get(name, math.nan))]
    return [name for name in unknown if name != DRAM_LEVEL or math.isnan(shares[MEMORY])]
