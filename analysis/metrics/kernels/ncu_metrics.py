"""Quantities of every kernel from ncu's counters, whatever ncu's version names them: operations by type, bytes,
utilization of pipes and memory levels, occupancy. What the file does not have is NaN.

A fused multiply-add is two operations. Metrics and formulas of operations and bytes are those of ncu's roofline
sections (SpeedOfLight_HierarchicalSingleRooflineChart and its siblings) and of "Hierarchical Roofline Analysis: How to
Collect Data using Performance Tools on Intel CPUs and NVIDIA GPUs" (Yang, 2020, arXiv:2009.02449, table III).
Percentages are of all cycles of a kernel, as ncu's own verdict (rule SOLBottleneck) takes them. Names are those of the
sections SpeedOfLight, ComputeWorkloadAnalysis, MemoryWorkloadAnalysis, LaunchStats and Occupancy of Nsight Compute
2022.3, on the raw page; then the labels of the details page since 2021.2.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.counters import KernelCounters

_ELAPSED, _ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
_SOL = "GPU Speed Of Light Throughput: "
# Cycles in which an SM had work, and all cycles: their ratio brings a percentage of the first to one of the second.
_CYCLES_PAIRS = (
    ("sm__cycles_active.avg", "sm__cycles_elapsed.avg"),
    ("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
    (f"{_SOL}SM Active Cycles", f"{_SOL}Elapsed Cycles"),
    ("sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
)
# Labels of percentages of active cycles; those of the others are of all cycles (SpeedOfLight.section).
_OF_ACTIVE_CYCLES = ("L1/TEX Cache Throughput", "SM Busy", "Issue Slots Busy")
PIPES = ("fma", "fp16", "tensor", "sfu", "fma_active", "tensor_active")
"""Pipes of the SMs: `..._active` counts cycles in which the pipe worked, the others instructions against the highest
rate."""
_LARGE_INSTRUCTIONS = (9, 0)
"""Compute capability from which one instruction of a warp group keeps the tensor pipe busy for many cycles: counted
against the rate of small ones, a pipe that never rests is at a few percent."""


@cache
def _metrics(kind: str) -> Mapping[str, Mapping[str, int]]:
    """Return the metrics of each quantity by ncu_metrics.csv, best first, with the size of one count.

    Kinds: "pipe", percentages of PIPES without their ending; "percent", memory_<level> and sm_<part>; "bytes" at the
    levels, of ncu's hierarchical rooflines until 2022.3 first, then of later ones, which count reads of L2 alone.
    L1/TEX counts global, local, surface and texture accesses, only "lgds" those of shared memory too.
    """
    table = pd.read_csv(Path(__file__).with_name("ncu_metrics.csv"))
    groups = table[table["kind"] == kind].groupby("quantity", sort=False)
    return {str(name): dict(zip(part["metric"], part["size"], strict=True)) for name, part in groups}


def metrics_of(pipe: str, capability: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the metrics of one of PIPES on a GPU of this compute capability (None: not known), best first."""
    if pipe == "tensor" and capability is not None and capability >= _LARGE_INSTRUCTIONS:
        return tuple({**_metrics("pipe")["tensor_active"], **_metrics("pipe")["tensor"]})
    return tuple(_metrics("pipe")[pipe])


def pipe_percent(frame: pd.DataFrame, metrics: Sequence[str]) -> "tuple[pd.Series[float], str | None]":
    """Return a pipe's percentage of its peak over all cycles of each kernel, and the metric; None where there is none.

    A file that has it over active cycles only (`ncu --set full`) gives it x active cycles / elapsed cycles of the SMs.
    """
    values, name, cycles = _percent(frame, [base + end for end in (_ELAPSED, _ACTIVE) for base in metrics])
    base = None if name is None else name.removesuffix(_ELAPSED).removesuffix(_ACTIVE)
    return values, f"{base} (of active cycles, x {cycles})" if cycles else base


def no_metric(frame: pd.DataFrame, metrics: Sequence[str]) -> str:
    """Return why a pipe has no percentage in a file."""
    if any(base + _ACTIVE in frame for base in metrics):
        return "only over active cycles: collect sm__cycles_active.avg and sm__cycles_elapsed.avg, or ..._elapsed"
    return "this GPU or version of ncu lacks the metric, or it was not collected"


def _percent(frame: pd.DataFrame, names: Sequence[str]) -> "tuple[pd.Series[float], str | None, str]":
    """Return the first of these percentages of all cycles, its column, and the active cycles that brought it there.

    Without the cycles a percentage of active ones is not known: a grid on a few SMs keeps these busy and the GPU idle.
    """
    for name in names:
        if name not in frame or frame[name].isna().all():
            continue
        if not name.endswith((_ACTIVE, *_OF_ACTIVE_CYCLES)):
            return frame[name], name, ""
        for busy, whole in _CYCLES_PAIRS:
            if busy in frame and whole in frame and (frame[busy] / frame[whole]).notna().any():
                return frame[name] * (frame[busy] / frame[whole]), name, busy
    return _column(frame), None, ""


def _known(frame: pd.DataFrame, candidates: "Iterable[pd.Series[float]]") -> "pd.Series[float]":
    """Return the first that has a value of a kernel; NaN without one."""
    return next((values for values in candidates if values.notna().any()), pd.Series(math.nan, frame.index))


def _column(frame: pd.DataFrame, *names: str) -> "pd.Series[float]":
    return _known(frame, (frame[name] for name in names if name in frame))


# ---- operations ----

THREAD_TYPES: Mapping[str, str] = {"fp32": "f", "fp64": "d", "fp16": "h"}
"""Types whose operations are counted outside the tensor cores, and their letter in the metrics' names. A packed fp16
instruction works on two values and counts once, so that fp16 is a lower bound, at least half of what was done."""
_VOLTA_TENSOR_FLOP = 512
"""Operations of one tensor instruction of a warp on compute capability 7.0 (the factor in ncu's
SpeedOfLight_HierarchicalTensorRooflineChart section). Later chips have instructions of several sizes."""
_TENSOR_INSTRUCTIONS = ("sm__inst_executed_pipe_tensor", "smsp__inst_executed_pipe_tensor")
_TENSOR = re.compile(
    r"(?P<base>sm__ops_path_tensor_src_(?P<kind>(?:tf|fp|bf)\d+)\w*?_dst_(?:fp|bf)\d+)(?P<sparsity>_sparsity_(?:on|off))?"
    r"\.sum(?:\.per_cycle_elapsed|\.per_second)?"
)


def _total(frame: pd.DataFrame, base: str) -> "pd.Series[float]":
    """Return the sum per kernel, or rate x time, of a counter without its suffix, such as "lts__t_bytes"."""
    seconds = frame["duration_ns"] / 1e9
    clock = _column(frame, f"{base.partition('__')[0]}__cycles_elapsed.avg.per_second")
    ends: Mapping[str, Any] = {".sum": 1.0, ".sum.per_second": seconds, ".sum.per_cycle_elapsed": clock * seconds}
    return _known(frame, (frame[base + end] * times for end, times in ends.items() if base + end in frame))


def _peak_rate(frame: pd.DataFrame, base: str) -> "pd.Series[float]":
    """Return a counter's highest rate per second at the clock of each kernel, as ncu's rooflines have it."""
    unit = base.removeprefix("derived__").partition("__")[0]
    clock = "lts" if base == "l1tex__m_xbar2l1tex_read_bytes" else unit
    return _column(frame, f"{base}.sum.peak_sustained") * _column(frame, f"{clock}__cycles_elapsed.avg.per_second")


def _tensor_counters(frame: pd.DataFrame) -> dict[str, list[str]]:
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


def _operations(counters: KernelCounters) -> "dict[str, pd.Series[float]]":
    """Return the operations of each kernel: of THREAD_TYPES, tensor_<type of the inputs>, and `tensor`, which is 0 of
    a kernel whose tensor operations are known or none, NaN of one whose operations nothing tells."""
    frame = counters.kernels
    counts: dict[str, pd.Series[float]] = {}
    tensor: dict[str, pd.Series[float]] = {}
    for kind, letter in THREAD_TYPES.items():
        sums = []
        for unit in ("sm", "smsp"):
            base = f"{unit}__sass_thread_inst_executed_op_{letter}"
            add, mul, fma = (_total(frame, f"{base}{operation}_pred_on") for operation in ("add", "mul", "fma"))
            sums.append(add + mul + 2 * fma)
        counts[kind] = _known(frame, sums)
    for kind, bases in _tensor_counters(frame).items():
        if known := [values for base in bases if (values := _total(frame, base)).notna().any()]:
            tensor[f"tensor_{kind}"] = reduce(operator.add, known)
    if not tensor and counters.compute_capability == (7, 0):
        instructions = _known(frame, (_total(frame, base) for base in _TENSOR_INSTRUCTIONS))
        tensor = {"tensor_fp16": _VOLTA_TENSOR_FLOP * instructions} if instructions.notna().any() else {}
    # What is 0 where the tensor cores stood still, whatever the file has.
    worked, _ = pipe_percent(frame, metrics_of("tensor", None))
    if base := next((base for base in _TENSOR_INSTRUCTIONS if f"{base}.sum" in frame), ""):
        # A chip that runs packed fp16 on this pipe (GA100) counts those warps here: 32 threads each, and no matrix.
        packed = _column(frame, f"{base.partition('__')[0]}__sass_thread_inst_executed_op_hfma_pred_on.sum")
        worked = frame[f"{base}.sum"].where(frame[f"{base}.sum"] * 32 != packed, 0.0)
    if tensor:
        # 0 of a pipe that worked is no count: some chips' metric misses some instructions.
        missed = (pd.DataFrame(tensor).fillna(0.0).sum(axis=1) == 0) & (worked > 0)
        return {**counts, **tensor, "tensor": 0.0 * worked.fillna(0.0).mask(missed)}
    return {**counts, "tensor": worked.where(worked == 0)} if worked.notna().any() else counts


# ---- memory ----

L1, L2, DRAM_LEVEL, MEMORY, SM = "L1/TEX", "L2", "DRAM", "memory", "SM"
DRAM = "dram"
LEVEL_KINDS: Mapping[str, str] = {L1: "l1", L2: "l2", DRAM_LEVEL: DRAM}
"""Levels of the memory, the SM's own first, and the kind of the ceiling of each, in bytes/s."""


def level_traffic(frame: pd.DataFrame, level: str) -> "tuple[pd.Series[float], pd.Series[float]]":
    """Return the bytes of each kernel at one of LEVEL_KINDS, and the highest bytes per second there.

    Bytes and peak are of one counter, for different counters see different parts of the traffic. Of several that the
    file has, one with a peak comes first.
    """
    counters = _metrics("bytes")[level]
    pairs = [(size * _total(frame, base), size * _peak_rate(frame, base)) for base, size in counters.items()]
    moved, peak = max(pairs, key=lambda pair: (pair[0].notna().any(), pair[1].notna().any()))
    if level == DRAM_LEVEL and "dram__bytes.sum" not in frame:
        both = _column(frame, "dram__bytes_read.sum") + _column(frame, "dram__bytes_write.sum")
        rate = _column(frame, "Memory Workload Analysis: Memory Throughput") * frame["duration_ns"] / 1e9
        moved = _known(frame, (both, moved, rate))
    return moved, peak


# ---- percentages ----


_LEAST_PERCENT = 5.0  # a smaller percentage, rounded to two decimals, implies no peak
_PIPE = re.compile(r"(sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active(?:_v\d)?)?)\.avg\.pct_of_peak_sustained_\w+")
# How names of pipes begin, the longest first, and what the pipe is called.
_CALLED = {
    "fma_type_fp16": "FP16", "tensor": "tensor", "fp16": "FP16", "fp64": "FP64", "fma": "FMA", "alu": "ALU",
    "lsu": "LSU", "tc": "tensor", "xu": "SFU",
}  # fmt: skip


def _percents(frame: pd.DataFrame) -> "dict[str, pd.Series[float]]":
    """Return the percentages of levels, of the SM and of every pipe in the file (sm_<pipe>), and the occupancy.

    A pipe has several counts, of the cycles in which it worked and of instructions against the highest rate: the larger
    one says how near it is to its limit. ncu's rule HighPipeUtilization goes by the cycles, for an instruction can take
    several of them.
    """
    percents = {name: _percent(frame, tuple(columns))[0] for name, columns in _metrics("percent").items()}
    percents["occupancy"] = _column(frame, f"sm__warps_active{_ACTIVE}", "Occupancy: Achieved Occupancy")
    for match in filter(None, map(_PIPE.fullmatch, map(str, frame.columns))):
        called = next((name for start, name in _CALLED.items() if match[2].startswith(start)), match[2].upper())
        counts = [pipe_percent(frame, [match[1]])[0], percents.get(f"sm_{called}", _column(frame))]
        percents[f"sm_{called}"] = pd.concat(counts, axis=1).max(axis=1)
    return percents


def launch_table(counters: KernelCounters) -> pd.DataFrame:
    """Return one row per launch with what the file has of it, so that sums over launches can be divided by each other.

    duration_ns, bytes_<kind of level>, flop_<type>, and products of the time with shares of 1: busy_memory_<level>,
    busy_sm_<pipe>, busy_occupancy.
    """
    frame = counters.kernels
    columns = {f"bytes_{kind}": level_traffic(frame, level)[0] for level, kind in LEVEL_KINDS.items()}
    columns |= {f"flop_{kind}": values for kind, values in _operations(counters).items()}
    columns |= {f"busy_{name}": frame["duration_ns"] * values / 100 for name, values in _percents(frame).items()}
    known = {name: values for name, values in columns.items() if name == "flop_tensor" or values.notna().any()}
    return pd.DataFrame({"duration_ns": frame["duration_ns"], **known})


def implied_ceilings(counters: KernelCounters) -> dict[str, float]:
    """Return the ceilings that the counters imply: FLOP/s by type as in Device.flops, bytes/s of LEVEL_KINDS.

    That is peak per cycle x cycles per second, as ncu's rooflines have it, or what a percentage of the peak says.
    Clocks differ from kernel to kernel: the median counts.
    """
    frame, known = counters.kernels, dict[str, float]()
    implied: list[tuple[str, pd.Series[float]]] = []
    for kind, letter in THREAD_TYPES.items():
        sm, smsp = (f"{unit}__sass_thread_inst_executed_op_{letter}fma_pred_on" for unit in ("sm", "smsp"))
        derived = _column(frame, f"derived__{sm}_x2") * _column(frame, "sm__cycles_elapsed.avg.per_second")
        implied += [(kind, 2 * _peak_rate(frame, sm)), (kind, derived), (kind, 2 * _peak_rate(frame, smsp))]
    for kind, bases in _tensor_counters(frame).items():
        # Accumulating in fp16 can be twice as fast: the peak is of what most operations did.
        most_first = sorted(bases, key=lambda base: -_total(frame, base).sum())
        implied += [(f"tensor_{kind}", _peak_rate(frame, base)) for base in most_first]
    if counters.compute_capability == (7, 0):
        implied += [("tensor_fp16", _VOLTA_TENSOR_FLOP * _peak_rate(frame, base)) for base in _TENSOR_INSTRUCTIONS]
    implied += [(kind, level_traffic(frame, level)[1]) for level, kind in LEVEL_KINDS.items()]
    rate = level_traffic(frame, DRAM_LEVEL)[0] / (frame["duration_ns"] / 1e9)
    percents = [frame[name] for name in _metrics("percent")[f"memory_{DRAM_LEVEL}"] if name in frame]
    implied += [(DRAM, rate / (percent.where(percent >= _LEAST_PERCENT) / 100)) for percent in percents]
    for kind, rates in implied:
        positive = rates[(rates > 0) & (rates < math.inf)]
        if kind not in known and len(positive):
            known[kind] = float(positive.median())
    return known
