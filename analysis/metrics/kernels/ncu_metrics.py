"""Quantities of every kernel from ncu's counters, whatever ncu's version names them: operations by type, bytes,
utilization of pipes and memory levels, occupancy, cache hits, stalls.

A fused multiply-add is two operations. Metrics and formulas of operations and bytes are those of ncu's roofline
sections (SpeedOfLight_HierarchicalSingleRooflineChart and its siblings) and of "Hierarchical Roofline Analysis: How to
Collect Data using Performance Tools on Intel CPUs and NVIDIA GPUs" (Yang, 2020, arXiv:2009.02449, table III).
Percentages are of all cycles of a kernel, as ncu's own verdict (rule SOLBottleneck) takes them. Names are those of the
sections SpeedOfLight, ComputeWorkloadAnalysis, MemoryWorkloadAnalysis, LaunchStats and Occupancy of Nsight Compute
2022.3, on the raw page; then the labels of the details page, of that version, older and newer ones.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from analysis.counters import KernelCounters

if TYPE_CHECKING:
    import pandas as pd

THREAD_TYPES: Mapping[str, str] = {"fp32": "f", "fp64": "d", "fp16": "h"}
"""Types whose operations are counted outside the tensor cores, and their letter in the metrics' names. A packed fp16
instruction works on two values and counts once, so that fp16 is a lower bound, at least half of what was done."""
VOLTA_TENSOR_FLOP = 512
"""Operations of one tensor instruction of a warp on compute capability 7.0 (the factor in ncu's
SpeedOfLight_HierarchicalTensorRooflineChart section). Later chips have instructions of several sizes."""
TENSOR_INSTRUCTIONS = ("sm__inst_executed_pipe_tensor", "smsp__inst_executed_pipe_tensor")
_TENSOR = re.compile(
    r"(?P<base>sm__ops_path_tensor_src_(?P<kind>(?:tf|fp|bf)\d+)\w*?_dst_(?:fp|bf)\d+)(?P<sparsity>_sparsity_(?:on|off))?"
    r"\.sum(?:\.per_cycle_elapsed|\.per_second)?"
)


def total(frame: "pd.DataFrame", base: str) -> "pd.Series[float] | None":
    """Return a counter's sum per kernel, or its rate x time; None where the file has neither.

    Args:
        frame: kernels of KernelCounters.
        base: the counter without its suffix, such as "lts__t_bytes".
    """
    clock = f"{base.partition('__')[0]}__cycles_elapsed.avg.per_second"
    if f"{base}.sum" in frame:
        return frame[f"{base}.sum"]
    if f"{base}.sum.per_second" in frame:
        return frame[f"{base}.sum.per_second"] * frame["duration_ns"] / 1e9
    if f"{base}.sum.per_cycle_elapsed" in frame and clock in frame:
        return frame[f"{base}.sum.per_cycle_elapsed"] * frame[clock] * frame["duration_ns"] / 1e9
    return None


def thread_flop(frame: "pd.DataFrame", kind: str) -> "pd.Series[float] | None":
    """Return the operations of each kernel outside the tensor cores, of one of THREAD_TYPES; None where unknown."""
    for unit in ("sm", "smsp"):
        base = f"{unit}__sass_thread_inst_executed_op_{THREAD_TYPES[kind]}"
        add, mul, fma = (total(frame, f"{base}{operation}_pred_on") for operation in ("add", "mul", "fma"))
        if add is not None and mul is not None and fma is not None:
            return add + mul + 2 * fma
    return None


def tensor_counters(frame: "pd.DataFrame") -> dict[str, list[str]]:
    """Return the counters of the tensor cores' operations by type of the inputs: of a whole, else with and without
    sparsity, which are parts of it."""
    bases: dict[str, dict[str, str]] = {}
    for name in map(str, frame.columns):
        if match := _TENSOR.fullmatch(name):
            bases.setdefault(match["kind"], {})[match["base"] + (match["sparsity"] or "")] = match["base"]
    return {
        kind: sorted(name for name, base in names.items() if name == base or base not in names)
        for kind, names in sorted(bases.items())
    }


def tensor_flop(frame: "pd.DataFrame", capability: tuple[int, int] | None = None) -> "dict[str, pd.Series[float]]":
    """Return the operations of the tensor cores of each kernel by type of the inputs; empty where unknown.

    Args:
        frame: kernels of KernelCounters.
        capability: compute capability; instructions tell operations only on (7, 0), where all have one size.
    """
    sums: dict[str, pd.Series[float]] = {}
    for kind, bases in tensor_counters(frame).items():
        for base in bases:
            if (counted := total(frame, base)) is not None:
                sums[kind] = sums[kind].add(counted) if kind in sums else counted
    if not sums and capability == (7, 0):
        for base in TENSOR_INSTRUCTIONS:
            if (instructions := total(frame, base)) is not None:
                return {"fp16": instructions * VOLTA_TENSOR_FLOP}
    return sums


def dram_bytes(frame: "pd.DataFrame") -> "pd.Series[float] | None":
    """Return the bytes each kernel moved to and from the GPU's memory; None where the file does not have them."""
    read, written, rate = "dram__bytes_read.sum", "dram__bytes_write.sum", "Memory Workload Analysis: Memory Throughput"
    if read in frame and written in frame and "dram__bytes.sum" not in frame:
        return frame[read] + frame[written]
    if (moved := total(frame, "dram__bytes")) is not None:
        return moved
    return frame[rate] * frame["duration_ns"] / 1e9 if rate in frame else None


_ELAPSED, _ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
# Cycles in which an SM had work, and all cycles: their ratio brings a percentage of the first to one of the second.
_CYCLES_PAIRS = (
    ("sm__cycles_active.avg", "sm__cycles_elapsed.avg"),
    ("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
    ("GPU Speed Of Light Throughput: SM Active Cycles", "GPU Speed Of Light Throughput: Elapsed Cycles"),
    ("GPU Speed Of Light: SM Active Cycles", "GPU Speed Of Light: Elapsed Cycles"),
    ("sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
)
_TENSOR_ACTIVE = (
    "sm__pipe_tc_cycles_active",
    "sm__pipe_tensor_cycles_active_v2",
    "sm__pipe_tensor_cycles_active",
    "sm__pipe_tensor_op_hmma_cycles_active",
)
PIPES: Mapping[str, tuple[str, ...]] = {
    "fma": ("sm__inst_executed_pipe_fma",),
    "fp16": ("sm__inst_executed_pipe_fp16", "sm__inst_executed_pipe_fma_type_fp16"),
    "tensor": (
        "sm__inst_executed_pipe_tensor",
        "sm__inst_executed_pipe_tensor_op_gmma",
        *_TENSOR_ACTIVE[:3],
        "sm__inst_executed_pipe_tensor_op_hmma",
        _TENSOR_ACTIVE[3],
    ),
    "sfu": ("sm__inst_executed_pipe_xu",),
    "fma_active": ("sm__pipe_fma_cycles_active",),
    "tensor_active": _TENSOR_ACTIVE,
}
"""Metrics of each pipe, best first: the first that the file has is used. `..._active` counts cycles in which the pipe
worked, the others instructions against the highest rate."""
_LARGE_INSTRUCTIONS = (9, 0)
"""Compute capability from which one instruction of a warp group keeps the tensor pipe busy for many cycles: counted
against the rate of small ones, a pipe that never rests is at a few percent."""


def metrics_of(pipe: str, capability: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the metrics of one of PIPES on a GPU of this compute capability (None: not known), best first."""
    if pipe == "tensor" and capability is not None and capability >= _LARGE_INSTRUCTIONS:
        return tuple(dict.fromkeys((*PIPES["tensor_active"], *PIPES["tensor"])))
    return PIPES[pipe]


def pipe_percent(frame: "pd.DataFrame", metrics: Sequence[str]) -> "tuple[pd.Series[float], str] | None":
    """Return a pipe's percentage of its peak over all cycles of each kernel, and the metric; None where there is none.

    A file that has it over active cycles only (`ncu --set full`) gives it x active cycles / elapsed cycles of the SMs.
    """
    for base in metrics:
        if base + _ELAPSED in frame and frame[base + _ELAPSED].notna().any():
            return frame[base + _ELAPSED], base
    for base in metrics:
        name = base + _ACTIVE
        if name in frame and frame[name].notna().any() and (pair := _active_cycles(frame)) is not None:
            return frame[name] * (frame[pair[0]] / frame[pair[1]]), f"{base} (of active cycles, x {pair[0]})"
    return None


def _active_cycles(frame: "pd.DataFrame") -> tuple[str, str] | None:
    """Return the columns of active and of all cycles."""
    for active, elapsed in _CYCLES_PAIRS:
        if active in frame and elapsed in frame and (frame[active] / frame[elapsed]).notna().any():
            return active, elapsed
    return None


def no_metric(frame: "pd.DataFrame", metrics: Sequence[str]) -> str:
    """Return why a pipe has no percentage in a file."""
    if any(base + _ACTIVE in frame for base in metrics):
        return "only over active cycles: collect sm__cycles_active.avg and sm__cycles_elapsed.avg, or ..._elapsed"
    return "this GPU or version of ncu lacks the metric, or it was not collected"


L1, L2, DRAM_LEVEL, MEMORY, SM = "L1/TEX", "L2", "DRAM", "memory", "SM"
LEVELS = (L1, L2, DRAM_LEVEL)
"""Levels of the memory, the SM's own first."""
# Counters of a level's bytes, with the bytes of one count: of ncu's hierarchical rooflines of 2020 to 2022.3 first,
# then of later ones, which count reads of L2 alone. L1/TEX counts global, local, surface and texture accesses, only
# "lgds" those of shared memory too.
_TRAFFIC: Mapping[str, tuple[tuple[str, int], ...]] = {
    L1: (
        ("l1tex__t_bytes", 1),
        ("derived__l1tex__lsu_writeback_bytes_mem_lgds", 1),
        ("derived__l1tex__lsu_writeback_bytes_mem_lg", 1),
        ("derived__l1tex__lsu_writeback_bytes", 1),
    ),
    L2: (
        ("lts__t_bytes", 1),
        ("lts__t_sectors", 32),
        ("derived__lts__lts2xbar_bytes", 1),
        ("l1tex__m_xbar2l1tex_read_bytes", 1),
    ),
    DRAM_LEVEL: (("dram__bytes", 1),),
}
_CLOCKS = {L1: "l1tex", L2: "lts", DRAM_LEVEL: "dram"}


def peak_rate(frame: "pd.DataFrame", base: str, unit: str) -> "pd.Series[float] | None":
    """Return a counter's highest rate per second at the clock of each kernel, as ncu's rooflines have it, or None."""
    peak, clock = f"{base}.sum.peak_sustained", f"{unit}__cycles_elapsed.avg.per_second"
    return frame[peak] * frame[clock] if peak in frame and clock in frame else None


def level_traffic(frame: "pd.DataFrame", level: str) -> "tuple[pd.Series[float] | None, pd.Series[float] | None, str]":
    """Return the bytes of each kernel at one of LEVELS, the highest bytes per second there, and the counter of both.

    Bytes and peak are of one counter, for different counters see different parts of the traffic. Of several that the
    file has, one with a peak comes first. None where the file has none.
    """
    known: list[tuple[pd.Series[float] | None, pd.Series[float] | None, str]] = []
    for base, size in _TRAFFIC[level]:
        moved = dram_bytes(frame) if level == DRAM_LEVEL else total(frame, base)
        peak = peak_rate(frame, base, _CLOCKS[level])
        if moved is not None or peak is not None:
            known.append((None if moved is None else moved * size, None if peak is None else peak * size, base))
    return max(known, key=lambda one: (one[0] is not None, one[1] is not None), default=(None, None, ""))


class _Names(NamedTuple):
    """Columns of one percentage, best first: of all cycles, and of those in which the SMs had work."""

    elapsed: tuple[str, ...]
    active: tuple[str, ...] = ()


def _speed_of_light(*labels: str) -> tuple[str, ...]:
    sections = ("GPU Speed Of Light Throughput", "GPU Speed Of Light")  # the second until 2021
    return tuple(f"{section}: {label}" for section in sections for label in labels)


def _throughput(base: str, *labels: str) -> tuple[str, ...]:
    return (base + _ELAPSED, *_speed_of_light(*labels))


DRAM_PERCENTS = (
    f"dram__throughput{_ELAPSED}",
    f"gpu__dram_throughput{_ELAPSED}",
    "dram__bytes.sum.pct_of_peak_sustained_elapsed",
    *_speed_of_light("DRAM Throughput", "SOL DRAM", "SOL FB"),
)
"""Columns that say how near DRAM was to its peak, best first."""
_THROUGHPUTS: Mapping[str, _Names] = {
    # The label of L1/TEX is of active cycles, those of the others of all cycles (SpeedOfLight.section).
    L1: _Names(
        (f"l1tex__throughput{_ELAPSED}",),
        (f"l1tex__throughput{_ACTIVE}", *_speed_of_light("L1/TEX Cache Throughput", "SOL L1/TEX Cache", "SOL TEX")),
    ),
    L2: _Names(
        (
            *_throughput("lts__throughput", "L2 Cache Throughput", "SOL L2 Cache", "SOL L2"),
            f"lts__t_sectors{_ELAPSED}",
            f"lts__t_bytes{_ELAPSED}",
        )
    ),
    DRAM_LEVEL: _Names(DRAM_PERCENTS),
    MEMORY: _Names(_throughput("gpu__compute_memory_throughput", "Memory Throughput", "Memory [%]")),
    SM: _Names(_throughput("sm__throughput", "Compute (SM) Throughput", "Compute (SM) [%]", "SM [%]", "SOL SM")),
}
# Together they are the throughput of memory, where that itself is not in the file (its breakdown in ncu).
_PARTS_OF_MEMORY = (
    _Names((f"gpu__compute_memory_access_throughput{_ELAPSED}", "Memory Workload Analysis: Mem Busy")),
    _Names((f"gpu__compute_memory_request_throughput{_ELAPSED}", "Memory Workload Analysis: Max Bandwidth")),
)
# All pipes and the issue slots, the part of SM's throughput that replaces it.
_SM_BUSY = _Names(
    (f"sm__instruction_throughput{_ELAPSED}",),
    (f"sm__instruction_throughput{_ACTIVE}", "Compute Workload Analysis: SM Busy"),
)
_ISSUE = _Names(
    (f"sm__inst_issued{_ELAPSED}",), (f"sm__inst_issued{_ACTIVE}", "Compute Workload Analysis: Issue Slots Busy")
)
_PIPE = re.compile(r"(sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active(?:_v\d)?)?)\.avg\.pct_of_peak_sustained_\w+")
# How names of pipes begin, the longest first, and what the pipe is called.
_CALLED = {
    "fma_type_fp16": "FP16", "tensor": "tensor", "fp16": "FP16", "fp64": "FP64", "fma": "FMA", "alu": "ALU",
    "lsu": "LSU", "tc": "tensor", "xu": "SFU",
}  # fmt: skip


def memory_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return, for those of LEVELS and MEMORY (all of it, as ncu sums it up) in the file, the percentage per kernel."""
    import pandas as pd

    whole = _percent(counters, _THROUGHPUTS[MEMORY])
    if whole is None:
        parts = [part for names in _PARTS_OF_MEMORY if (part := _percent(counters, names)) is not None]
        whole = pd.concat(parts, axis=1).max(axis=1, skipna=False) if len(parts) == len(_PARTS_OF_MEMORY) else None
    return _known({**{level: _percent(counters, _THROUGHPUTS[level]) for level in LEVELS}, MEMORY: whole})


def sm_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return the percentage per kernel of SM (all of it, as ncu sums it up) and of every pipe in the file, by name.

    A pipe has several counts, of the cycles in which it worked and of instructions against the highest rate: the larger
    one says how near it is to its limit. ncu's rule HighPipeUtilization goes by the cycles, for an instruction can take
    several of them.
    """
    import pandas as pd

    whole = _percent(counters, _THROUGHPUTS[SM])
    names: dict[str, dict[str, _Names]] = {}
    for column in map(str, counters.kernels.columns):
        if match := _PIPE.fullmatch(column):
            called = next((name for start, name in _CALLED.items() if match[2].startswith(start)), match[2].upper())
            names.setdefault(called, {})[match[1]] = _Names((match[1] + _ELAPSED,), (match[1] + _ACTIVE,))
    pipes: dict[str, pd.Series[float] | None] = {SM: _percent(counters, _SM_BUSY) if whole is None else whole}
    for pipe, each in {**names, "issue slots": {"": _ISSUE}}.items():
        columns = [values for one in each.values() if (values := _percent(counters, one)) is not None]
        pipes[pipe] = pd.concat(columns, axis=1).max(axis=1) if columns else None
    return _known(pipes)


_OCCUPANCY: Mapping[str, _Names] = {
    "achieved_occupancy": _Names((f"sm__warps_active{_ACTIVE}", "Occupancy: Achieved Occupancy")),
    "theoretical_occupancy": _Names(("sm__maximum_warps_per_active_cycle_pct", "Occupancy: Theoretical Occupancy")),
    "l1_hit": _Names(
        (
            "l1tex__t_sector_hit_rate.pct",
            "Memory Workload Analysis: L1/TEX Hit Rate",
            "Memory Workload Analysis: L1 Hit Rate",
        )
    ),
    "l2_hit": _Names(("lts__t_sector_hit_rate.pct", "Memory Workload Analysis: L2 Hit Rate")),
}
# Blocks that fit on an SM by each resource: the lowest limits the occupancy (ncu's rule Occupancy).
_BLOCKS = {
    "registers": ("launch__occupancy_limit_registers", "Occupancy: Block Limit Registers"),
    "shared memory": ("launch__occupancy_limit_shared_mem", "Occupancy: Block Limit Shared Mem"),
    "warps per block": ("launch__occupancy_limit_warps", "Occupancy: Block Limit Warps"),
    "blocks": ("launch__occupancy_limit_blocks", "Occupancy: Block Limit SM"),
    "barriers": ("launch__occupancy_limit_barriers", "Occupancy: Block Limit Barriers"),
}
_FULL = 99.5  # % of the warps: no resource limits such a kernel


def occupancy_percents(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return achieved_occupancy and theoretical_occupancy, in % of the warps an SM can hold, l1_hit and l2_hit, in %
    of the sectors accessed there; those in the file."""
    return _known({name: _percent(counters, names) for name, names in _OCCUPANCY.items()})


def occupancy_limits(counters: KernelCounters) -> "pd.Series[str]":
    """Return what limits each kernel's occupancy: "registers", "shared memory", two with " and "; "" unknown, none."""
    import pandas as pd

    frame = counters.kernels
    known = _known({name: _first(frame, columns) for name, columns in _BLOCKS.items()})
    if not known or frame.empty:
        return pd.Series("", frame.index, dtype="object")
    blocks = pd.DataFrame(known)
    lowest = blocks.eq(blocks.min(axis=1), axis=0)
    names = lowest.apply(lambda row: " and ".join(str(name) for name, is_lowest in row.items() if is_lowest), axis=1)
    theoretical = occupancy_percents(counters).get("theoretical_occupancy")
    return names if theoretical is None else names.where(~(theoretical >= _FULL), "")


_LATENCY = (
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "Warp State Statistics: Warp Cycles Per Issued Instruction",
)
_STALL = re.compile(
    r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio|"
    r"smsp__average_warp_latency_issue_stalled_(\w+?)\.ratio"
)


def stall_cycles(counters: KernelCounters) -> "pd.DataFrame":
    """Return the cycles between two instructions of a warp by what it waited for, one column per reason of ncu.

    The reason "selected" is the cycle in which the instruction is issued. No column where the file has no metric.
    """
    import pandas as pd

    frame = counters.kernels
    columns: dict[str, pd.Series[float]] = {}
    for name in map(str, frame.columns):
        if match := _STALL.fullmatch(name):
            columns.setdefault(match[1] or match[2], frame[name])
    return pd.DataFrame(columns, index=frame.index)


def warp_latency(counters: KernelCounters) -> "pd.Series[float] | None":
    """Return the cycles between two instructions of a warp: what ncu's rule CPIStall divides by. None: not known."""
    return _first(counters.kernels, _LATENCY)


def waves(counters: KernelCounters) -> "pd.Series[float] | None":
    """Return how often each kernel's grid fills the GPU; below 1 there is room for more blocks; None: not known."""
    return _first(counters.kernels, ("launch__waves_per_multiprocessor", "Launch Statistics: Waves Per SM"))


def bank_conflicts(counters: KernelCounters) -> "tuple[pd.Series[float], pd.Series[float]] | None":
    """Return bank conflicts and wavefronts of shared memory of each kernel, whose ratio is what ncu's own rule prints;
    None where they are not in the file."""
    frame = counters.kernels
    kinds = ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared", "l1tex__data_pipe_lsu_wavefronts_mem_shared")
    for parts in (("",), ("_op_ld", "_op_st")):
        there = [part for part in parts if all(f"{kind}{part}.sum" in frame for kind in kinds)]
        if there:
            sums = [frame[[f"{kind}{part}.sum" for part in there]].sum(axis=1, min_count=1) for kind in kinds]
            return sums[0], sums[1]
    return None


def _known(columns: "Mapping[str, pd.Series[float] | None]") -> "dict[str, pd.Series[float]]":
    return {name: values for name, values in columns.items() if values is not None}


def _first(frame: "pd.DataFrame", columns: Sequence[str]) -> "pd.Series[float] | None":
    merged = None
    for name in columns:
        if name in frame and frame[name].notna().any():
            merged = frame[name] if merged is None else merged.fillna(frame[name])
    return merged


def _percent(counters: KernelCounters, names: _Names) -> "pd.Series[float] | None":
    """Return a percentage of all cycles: as it is, or one of active cycles x active / all cycles.

    Where the file does not have those cycles it is not known: a grid on a few SMs keeps these busy and the GPU idle.
    """
    frame = counters.kernels
    usable = frame[[name for name in frame.columns if counters.units.get(name, "%") in ("%", "")]]
    if (elapsed := _first(usable, names.elapsed)) is not None:
        return elapsed
    active, pair = _first(usable, names.active), _active_cycles(frame)
    return None if active is None or pair is None else active * (frame[pair[0]] / frame[pair[1]]).clip(upper=1.0)
