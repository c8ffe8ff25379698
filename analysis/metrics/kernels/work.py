"""What each counted kernel did: floating-point operations by type, and bytes moved to and from the GPU's memory.

A fused multiply-add is two operations. Metrics and formulas are those of ncu's roofline sections
(SpeedOfLight_HierarchicalSingleRooflineChart and its siblings) and of "Hierarchical Roofline Analysis: How to Collect
Data using Performance Tools on Intel CPUs and NVIDIA GPUs" (Yang, 2020, arXiv:2009.02449, table III).
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

THREAD_TYPES: Mapping[str, str] = {"fp32": "f", "fp64": "d", "fp16": "h"}
"""Types whose operations are counted outside the tensor cores, and their letter in the metrics' names. A packed fp16
instruction works on two values and counts once, so that fp16 is a lower bound, at least half of what was done."""
VOLTA_TENSOR_FLOP = 512
"""Operations of one tensor instruction of a warp on compute capability 7.0 (the factor in ncu's
SpeedOfLight_HierarchicalTensorRooflineChart section). Later chips have instructions of several sizes."""

_THREADS = "{unit}__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum"
_TENSOR = re.compile(r"sm__ops_path_tensor_src_((?:tf|fp|bf)\d+)\w*?_dst_((?:fp|bf)\d+)\.sum")
_TENSOR_INSTRUCTIONS = ("sm__inst_executed_pipe_tensor.sum", "smsp__inst_executed_pipe_tensor.sum")
_BYTES = "dram__bytes.sum"
_BYTES_READ, _BYTES_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_BYTE_RATES = ("dram__bytes.sum.per_second", "Memory Workload Analysis: Memory Throughput")


def thread_flop(frame: "pd.DataFrame", kind: str) -> "pd.Series[float] | None":
    """Return the operations of each kernel outside the tensor cores; None where the file has not all three kinds.

    Args:
        frame: kernels of KernelCounters.
        kind: one of THREAD_TYPES.
    """
    letter = THREAD_TYPES[kind]
    for unit in ("sm", "smsp"):
        add, mul, fma = (_THREADS.format(unit=unit, letter=letter, op=op) for op in ("add", "mul", "fma"))
        if all(name in frame for name in (add, mul, fma)):
            return frame[add] + frame[mul] + 2 * frame[fma]
        add, mul, fma = (f"{name}.per_cycle_elapsed" for name in (add, mul, fma))
        rate = f"{unit}__cycles_elapsed.avg.per_second"
        if all(name in frame for name in (add, mul, fma, rate)):
            return (frame[add] + frame[mul] + 2 * frame[fma]) * frame[rate] * frame["duration_ns"] / 1e9
    return None


def tensor_flop(frame: "pd.DataFrame", capability: tuple[int, int] | None = None) -> "dict[str, pd.Series[float]]":
    """Return the operations of the tensor cores of each kernel by type of the inputs; empty where nothing tells them.

    Args:
        frame: kernels of KernelCounters.
        capability: compute capability; instructions tell operations only on (7, 0), where all have one size.
    """
    found: dict[str, pd.Series[float]] = {}
    for name in map(str, frame.columns):
        if match := _TENSOR.fullmatch(name):
            found[match[1]] = found[match[1]].add(frame[name]) if match[1] in found else frame[name]
    if found or capability != (7, 0):
        return found
    for name in _TENSOR_INSTRUCTIONS:
        if name in frame:
            return {"fp16": frame[name] * VOLTA_TENSOR_FLOP}
    return {}


def dram_bytes(frame: "pd.DataFrame") -> "pd.Series[float] | None":
    """Return the bytes each kernel moved to and from the GPU's memory; None where the file does not tell them."""
    if _BYTES in frame:
        return frame[_BYTES]
    if _BYTES_READ in frame and _BYTES_WRITTEN in frame:
        return frame[_BYTES_READ] + frame[_BYTES_WRITTEN]
    for name in _BYTE_RATES:
        if name in frame:
            return frame[name] * frame["duration_ns"] / 1e9
    return None
