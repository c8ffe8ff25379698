"""One small run of two processes as ncu writes it on both pages; the sums were worked by hand.

Cycles 6,000 + 1,000 + 3,000 + 10,000 = 20,000; durations 3 + 1 + 1 + 5 = 10 us.
FMA (6000 x 10 + 1000 x 40 + 3000 x 20 + 10000 x 5) / 20000 = 10.5; FP16, without the kernel that has none,
(3000 x 4 + 10000 x 2) / 19000 = 32 / 19; tensor (6000 x 80 + 3000 x 50) / 20000 = 31.5;
SFU (1000 x 20 + 10000 x 60) / 20000 = 31. In a window of 10 us, once per process: FMA (30 + 40 + 20 + 25) / 20 = 5.75,
tensor (240 + 50) / 20 = 14.5, SFU (20 + 300) / 20 = 16; FP16 unknown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.counters import KernelCounters

SUFFIX = ".avg.pct_of_peak_sustained_elapsed"
METRICS = tuple(f"sm__inst_executed_pipe_{pipe}{SUFFIX}" for pipe in ("fma", "fp16", "tensor", "xu"))
PERCENTS = {"fma": 10.5, "fp16": 32 / 19, "tensor": 31.5, "sfu": 31.0}
IN_WINDOW = {"fma": 5.75, "fp16": None, "tensor": 14.5, "sfu": 16.0}
WINDOW_NS = 10_000.0
# process, id, name, cycles, duration in us, four pipes
KERNELS = (
    (7, 0, "void sm90_gemm<int, int>(float *, int)", "6,000", "3.00", ("10", "0", "80.00", "0")),
    (7, 1, "elementwise_kernel", "1,000", "1.00", ("40", "n/a", "0", "20")),
    (8, 0, "void sm90_gemm<int, int>(float *, int)", "3,000.00", "1.00", ("20", "4", "50", "0")),
    (8, 1, "softmax_warp_forward", "10,000", "5.00", ("5", "2.00", "0", "60")),
)
NVTX = (
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
)


def counters(
    *kernels: dict[str, Any], device: str | None = None, capability: tuple[int, int] | None = None
) -> KernelCounters:
    """Return kernels by their name, duration_ns, cycles and metrics; what is left out is unknown."""
    base = {"process": 1, "name": "k", "device": 0, "duration_ns": None, "cycles": None}
    frame = pd.DataFrame([{**base, "kernel_id": number, **kernel} for number, kernel in enumerate(kernels)])
    first = ["process", "kernel_id", "name", "device", "duration_ns", "cycles"]
    frame = frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])
    numbers = [name for name in frame.columns if name not in first[:4]]
    return KernelCounters(frame.astype(dict.fromkeys(numbers, "float64")), {}, device, capability, ())


def _line(fields: Sequence[str]) -> str:
    quoted = (field.replace('"', '""') for field in fields)
    return ",".join(f'"{field}"' for field in quoted)


def ranges(*names: str) -> str:
    """Return a cell of NVTX ranges."""
    return "7  " + " ".join(f'"bertbench:{name}:none:none:none:none:none:none"' for name in names)


def details() -> str:
    """Return the details page with program output around it."""
    head = ["ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit"]
    lines = [
        "step 1 loss 10.3, it's \"fine",
        "==PROF== Connected to process 7",
        _line([*head, "Metric Value", "Rule Name"]),
    ]
    for place, (process, kernel, name, cycles, duration, pipes) in enumerate(KERNELS):
        own = [str(kernel), str(process), name]
        # Units differ by row, as ncu chooses them by value.
        time = ("nsecond", f"{float(duration) * 1000:,.0f}") if place % 2 else ("usecond", duration)
        rows = [("gpc__cycles_elapsed.max", "cycle", cycles), ("gpu__time_duration.sum", *time)]
        rows += [(metric, "%", value) for metric, value in zip(METRICS, pipes, strict=True)]
        lines += [_line([*own, "Command line profiler metrics", *row]) + "," for row in rows]
        lines.append(_line([*own, "SpeedOfLight", "", "", "", "SOLBottleneck"]))
    return "\n".join([*lines, "==PROF== Disconnected from process 7", "42 samples", ""])


def raw_page(kernels: Sequence[Mapping[str, object]], units: Mapping[str, str]) -> str:
    """Return a raw page of kernels, each as its cells by column."""
    columns = list(dict.fromkeys(column for kernel in kernels for column in kernel))
    rows = [columns, [units.get(column, "") for column in columns]]
    rows += [[str(kernel.get(column, "")) for column in columns] for kernel in kernels]
    return "".join(_line(row) + "\n" for row in rows)


def raw() -> str:
    """Return the raw page of the same kernels."""
    columns = ("Process ID", "ID", "Kernel Name", "gpc__cycles_elapsed.max", "gpu__time_duration.sum")
    kernels = [
        {"ID": one[1], **dict(zip(columns, one[:5], strict=True)), **dict(zip(METRICS, one[5], strict=True))}
        for one in KERNELS
    ]
    units = {"gpc__cycles_elapsed.max": "cycle", "gpu__time_duration.sum": "usecond", **dict.fromkeys(METRICS, "%")}
    return f"==PROF== Connected to process 7\n{raw_page(kernels, units)}==PROF== Disconnected\n"
