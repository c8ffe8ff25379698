"""How busy every level of the memory and every pipe was in a kernel, what limits its occupancy, and bank conflicts.

Percentages are of all cycles of a kernel, as ncu's own verdict (rule SOLBottleneck) takes them. Names are those of the
sections SpeedOfLight, ComputeWorkloadAnalysis, MemoryWorkloadAnalysis, LaunchStats and Occupancy of Nsight Compute
2022.3, on the raw page; then the labels of the details page, of that version, older and newer ones.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.counters import RULE_CONFLICTS, RULE_WAVEFRONTS, KernelCounters
from analysis.metrics.kernels.core_utilization import active_share

if TYPE_CHECKING:
    import pandas as pd

L1, L2, DRAM_LEVEL, MEMORY, SM = "L1/TEX", "L2", "DRAM", "memory", "SM"
LEVELS = (L1, L2, DRAM_LEVEL)
"""Levels of the memory, the SM's own first."""

_ELAPSED, _ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
_SPEED_OF_LIGHT = ("GPU Speed Of Light Throughput", "GPU Speed Of Light")  # the second until 2021


def _speed_of_light(*labels: str) -> tuple[str, ...]:
    return tuple(f"{section}: {label}" for section in _SPEED_OF_LIGHT for label in labels)


@dataclass(frozen=True, slots=True)
class _Names:
    """Columns of one percentage, best first."""

    elapsed: tuple[str, ...]
    """Of all cycles of the kernel."""
    active: tuple[str, ...] = ()
    """Of the cycles in which the SMs had work."""


_THROUGHPUTS: Mapping[str, _Names] = {
    # The label of L1/TEX is of active cycles, those of the others of all cycles (SpeedOfLight.section).
    L1: _Names(
        (f"l1tex__throughput{_ELAPSED}",),
        (f"l1tex__throughput{_ACTIVE}", *_speed_of_light("L1/TEX Cache Throughput", "SOL L1/TEX Cache", "SOL TEX")),
    ),
    L2: _Names(
        (
            f"lts__throughput{_ELAPSED}",
            *_speed_of_light("L2 Cache Throughput", "SOL L2 Cache", "SOL L2"),
            f"lts__t_sectors{_ELAPSED}",
            f"lts__t_bytes{_ELAPSED}",
        )
    ),
    DRAM_LEVEL: _Names(
        (
            f"dram__throughput{_ELAPSED}",
            f"gpu__dram_throughput{_ELAPSED}",
            "dram__bytes.sum.pct_of_peak_sustained_elapsed",
            *_speed_of_light("DRAM Throughput", "SOL DRAM", "SOL FB"),
        )
    ),
    MEMORY: _Names((f"gpu__compute_memory_throughput{_ELAPSED}", *_speed_of_light("Memory Throughput", "Memory [%]"))),
    SM: _Names(
        (
            f"sm__throughput{_ELAPSED}",
            *_speed_of_light("Compute (SM) Throughput", "Compute (SM) [%]", "SM [%]", "SOL SM"),
        )
    ),
}
DRAM_PERCENTS = _THROUGHPUTS[DRAM_LEVEL].elapsed
"""Columns that say how near DRAM was to its peak, best first."""

# Together they are the throughput of memory, where that itself is not in the file (its breakdown in ncu).
_PARTS_OF_MEMORY = (
    _Names((f"gpu__compute_memory_access_throughput{_ELAPSED}", "Memory Workload Analysis: Mem Busy")),
    _Names((f"gpu__compute_memory_request_throughput{_ELAPSED}", "Memory Workload Analysis: Max Bandwidth")),
)
# All pipes and the issue slots, the part of SM's throughput that stands in for it.
_SM_BUSY = _Names(
    (f"sm__instruction_throughput{_ELAPSED}",),
    (f"sm__instruction_throughput{_ACTIVE}", "Compute Workload Analysis: SM Busy"),
)
_ISSUE = _Names(
    (f"sm__inst_issued{_ELAPSED}",), (f"sm__inst_issued{_ACTIVE}", "Compute Workload Analysis: Issue Slots Busy")
)
_PIPE = re.compile(r"(sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active(?:_v\d)?)?)\.avg\.pct_of_peak_sustained_\w+")
# How names of pipes begin, the longest first, and what the pipe is called.
_CALLED = {"fma_type_fp16": "FP16", "tensor": "tensor", "fp16": "FP16", "fp64": "FP64", "fma": "FMA", "alu": "ALU",
           "lsu": "LSU", "tc": "tensor", "xu": "SFU"}  # fmt: skip

_OCCUPANCY: Mapping[str, _Names] = {
    "achieved_occupancy": _Names((f"sm__warps_active{_ACTIVE}", "Occupancy: Achieved Occupancy")),
    "theoretical_occupancy": _Names(("sm__maximum_warps_per_active_cycle_pct", "Occupancy: Theoretical Occupancy")),
}
_WAVES = ("launch__waves_per_multiprocessor", "Launch Statistics: Waves Per SM")
# Blocks that fit on an SM by each resource: the lowest limits the occupancy (ncu's rule Occupancy).
_BLOCKS = {
    "registers": ("launch__occupancy_limit_registers", "Occupancy: Block Limit Registers"),
    "shared memory": ("launch__occupancy_limit_shared_mem", "Occupancy: Block Limit Shared Mem"),
    "warps per block": ("launch__occupancy_limit_warps", "Occupancy: Block Limit Warps"),
    "blocks": ("launch__occupancy_limit_blocks", "Occupancy: Block Limit SM"),
    "barriers": ("launch__occupancy_limit_barriers", "Occupancy: Block Limit Barriers"),
}
_FULL = 99.5  # % of the warps: no resource limits such a kernel
# Conflicts over wavefronts, the share that ncu's own rule prints.
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared{}.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared{}.sum"


def memory_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return, for those of LEVELS and MEMORY (all of it, as ncu sums it up) in the file, the percentage per kernel."""
    import pandas as pd

    whole = _percent(counters, _THROUGHPUTS[MEMORY])
    if whole is None:
        parts = [part for names in _PARTS_OF_MEMORY if (part := _percent(counters, names)) is not None]
        whole = pd.concat(parts, axis=1).max(axis=1, skipna=False) if len(parts) == len(_PARTS_OF_MEMORY) else None
    found = {level: _percent(counters, _THROUGHPUTS[level]) for level in LEVELS}
    return {name: values for name, values in {**found, MEMORY: whole}.items() if values is not None}


def sm_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return the percentage per kernel of SM (all of it, as ncu sums it up) and of every pipe in the file, by name.

    A pipe has several counts, of the cycles in which it worked and of instructions against the highest rate: the larger
    one says how near it is to its limit. ncu's rule HighPipeUtilization goes by the cycles, for an instruction can take
    several of them.
    """
    import pandas as pd

    whole = _percent(counters, _THROUGHPUTS[SM])
    whole = _percent(counters, _SM_BUSY) if whole is None else whole
    bases: dict[str, dict[str, None]] = {}
    for column in map(str, counters.kernels.columns):
        if match := _PIPE.fullmatch(column):
            called = next((name for start, name in _CALLED.items() if match[2].startswith(start)), match[2].upper())
            bases.setdefault(called, {})[match[1]] = None
    names = {
        pipe: [_Names((f"{base}{_ELAPSED}",), (f"{base}{_ACTIVE}",)) for base in own] for pipe, own in bases.items()
    }
    found = {SM: whole}
    for pipe, each in {**names, "issue slots": [_ISSUE]}.items():
        columns = [values for one in each if (values := _percent(counters, one)) is not None]
        found[pipe] = pd.concat(columns, axis=1).max(axis=1) if columns else None
    return {name: values for name, values in found.items() if values is not None}


def occupancy_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return achieved_occupancy and theoretical_occupancy, in % of the warps an SM can hold; those in the file."""
    found = {name: _percent(counters, names) for name, names in _OCCUPANCY.items()}
    return {name: values for name, values in found.items() if values is not None}


def occupancy_limits(counters: KernelCounters) -> "pd.Series[str]":
    """Return what limits each kernel's occupancy: "registers", "shared memory", two with " and "; "" unknown, none."""
    import pandas as pd

    frame = counters.kernels
    found = {name: _first(frame, columns) for name, columns in _BLOCKS.items()}
    known = {name: values for name, values in found.items() if values is not None}
    nothing = pd.Series("", frame.index, dtype="object")
    if not known or frame.empty:
        return nothing
    blocks = pd.DataFrame(known)
    lowest = blocks.eq(blocks.min(axis=1), axis=0)
    names = lowest.apply(lambda row: " and ".join(str(name) for name, is_lowest in row.items() if is_lowest), axis=1)
    theoretical = occupancy_percents(counters).get("theoretical_occupancy")
    return names if theoretical is None else names.where(~(theoretical >= _FULL), "")


def waves(counters: KernelCounters) -> "pd.Series[float] | None":
    """Return how often each kernel's grid fills the GPU; below 1 there is room for more blocks; None: not known."""
    return _first(counters.kernels, _WAVES)


def bank_conflicts(counters: KernelCounters) -> "tuple[pd.Series[float], pd.Series[float]] | None":
    """Return bank conflicts and wavefronts of shared memory of each kernel; None where they are not in the file."""
    frame = counters.kernels
    for counts, totals, parts in (
        (_CONFLICTS, _WAVEFRONTS, ("",)),
        (_CONFLICTS, _WAVEFRONTS, ("_op_ld", "_op_st")),
        (RULE_CONFLICTS, RULE_WAVEFRONTS, ("loads", "stores")),  # the rule speaks of those with conflicts alone
    ):
        there = [part for part in parts if counts.format(part) in frame and totals.format(part) in frame]
        if there:
            found = (frame[[name.format(part) for part in there]].sum(axis=1, min_count=1) for name in (counts, totals))
            return next(found), next(found)
    return None


def _first(frame: "pd.DataFrame", columns: Sequence[str]) -> "pd.Series[float] | None":
    found = None
    for name in columns:
        if name in frame and frame[name].notna().any():
            found = frame[name] if found is None else found.fillna(frame[name])
    return found


def _percent(counters: KernelCounters, names: _Names) -> "pd.Series[float] | None":
    """Return a percentage of all cycles: as it is, or one of active cycles x active / all cycles.

    Where the file does not tell those cycles it is not known: a grid on a few SMs keeps these busy and the GPU idle.
    """
    frame = counters.kernels
    usable = [name for name in frame.columns if counters.units.get(name, "%") in ("%", "")]
    found = _first(frame[usable], names.elapsed)
    if found is not None:
        return found
    active, share = _first(frame[usable], names.active), active_share(frame)
    return None if active is None or share is None else active * share
