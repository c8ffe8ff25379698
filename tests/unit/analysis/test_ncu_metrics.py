"""Which level of the memory or which pipe holds a kernel back: pages of ncu with known answers, and ncu's own verdicts.

What is busy is compared in % of all cycles of the kernel; the details page has L1/TEX in % of active cycles.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ncu_csv import raw_page

from analysis.counters import KernelCounters
from analysis.metrics.kernels.roofline import LATENCY, UNKNOWN, roofline
from analysis.readers.ncu import read

SOL = "GPU Speed Of Light Throughput"
ELAPSED, ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
MEMORY, SM, L1, L2, DRAM = (
    f"{name}{ELAPSED}"
    for name in ("gpu__compute_memory_throughput", "sm__throughput", "l1tex__throughput", "lts__throughput",
                 "dram__throughput")
)  # fmt: skip
Row = tuple[str, str, str, str]


def page(tmp_path: Path, rows: Sequence[Row]) -> KernelCounters:
    """Write and read a details page of one kernel: (section, metric, unit, value) per row."""
    path = tmp_path / "details.csv"
    head = ["ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(head)
        writer.writerows([["0", "7", "flash_kernel", *row] for row in rows])
    return read(path)


def raw(tmp_path: Path, *kernels: Mapping[str, float], names: Sequence[str] = ("k",)) -> KernelCounters:
    """Write and read a raw page, times in ms."""
    path = tmp_path / "raw.csv"
    about = [{"ID": n, "Process ID": 7, "Kernel Name": names[n % len(names)]} for n in range(len(kernels))]
    rows = [{**one, **kernel} for one, kernel in zip(about, kernels, strict=True)]
    path.write_text(raw_page(rows, {"gpu__time_duration.sum": "msecond"}))
    return read(path)


def only(counters: KernelCounters) -> dict[str, Any]:
    (row,) = roofline(counters).kernels.to_dict("records")
    return {str(key): value for key, value in row.items()}


def speed_of_light(
    memory: str, l1: str, l2: str, dram: str, sm: str, cycles: tuple[str, str], ms: str = "250"
) -> list[Row]:
    """Return a section of version 2023 on; cycles: active, elapsed."""
    values = [("Memory Throughput", memory), ("L1/TEX Cache Throughput", l1), ("L2 Cache Throughput", l2),
              ("DRAM Throughput", dram), ("Compute (SM) Throughput", sm)]  # fmt: skip
    rows = [(SOL, name, "%", value) for name, value in values]
    named = [("SM Active Cycles", cycles[0]), ("Elapsed Cycles", cycles[1])]
    return [*rows, *((SOL, name, "cycle", value) for name, value in named), (SOL, "Duration", "msecond", ms)]


# 336,000,000 of 350,000,000 cycles are active, 0.96: L1/TEX at 92.5 % of these is at 88.8 % of all.
BUSY_L1 = [*speed_of_light("88.80", "92.50", "12.00", "3.00", "41.00", ("336,000,000.00", "350,000,000")),
           ("Occupancy", "Achieved Occupancy", "%", "8.30")]  # fmt: skip


def test_a_long_kernel_that_l1_holds_back(tmp_path: Path) -> None:
    row = only(page(tmp_path, BUSY_L1))
    assert row["bound"] == "L1/TEX" and row["time_ms"] == 250
    assert row["l1_fraction"] == pytest.approx(0.888) == row["memory_fraction"]
    assert (row["l2_fraction"], row["dram_fraction"]) == (pytest.approx(0.12), pytest.approx(0.03))
    assert row["occupancy_share"] == pytest.approx(0.083)


@pytest.mark.parametrize(
    ("levels", "bound"),
    [
        ({MEMORY: 61.8, L1: 30, L2: 61.8, DRAM: 25, SM: 40}, "L2"),
        ({MEMORY: 70, L1: 30, L2: 40, DRAM: 70, SM: 65}, "DRAM"),
        ({MEMORY: 70, L1: 30, L2: 40, DRAM: 20, SM: 65}, "memory"),  # none of the levels accounts for 70 %
        ({MEMORY: 50, L1: 30, L2: 40, DRAM: 50, SM: 75}, "compute (SM)"),
        ({MEMORY: 50, SM: 75, f"sm__inst_executed_pipe_lsu{ELAPSED}": 74}, "compute (LSU)"),
        ({MEMORY: 50, SM: 75, f"sm__inst_issued{ELAPSED}": 72, f"sm__pipe_alu_cycles_active{ELAPSED}": 75},
         "compute (ALU)"),
        ({MEMORY: 50, SM: 75, f"sm__inst_executed_pipe_fma{ELAPSED}": 20}, "compute (SM)"),
        # A product of large instructions: the cycles in which the pipe worked say how near its limit is.
        ({MEMORY: 50, f"sm__inst_executed_pipe_tensor{ELAPSED}": 9, f"sm__pipe_tensor_cycles_active{ELAPSED}": 88},
         "compute (tensor)"),
        ({L1: 59.9, L2: 30, DRAM: 40, SM: 59.9}, LATENCY),
        ({MEMORY: 72, L1: 94, L2: 56, DRAM: 72, SM: 37}, "L1/TEX"),  # ncu's sum leaves parts of L1/TEX out
        ({MEMORY: 40, SM: 50}, UNKNOWN),  # so that it alone does not tell, but of DRAM
        ({MEMORY: 40, L1: 20, L2: 30, SM: 50}, LATENCY),
        ({L2: 30, DRAM: 40, SM: 50}, UNKNOWN),
        ({MEMORY: 40, f"sm__inst_executed_pipe_fma{ELAPSED}": 20}, UNKNOWN),  # another pipe may be busy
        ({L2: 66, SM: 50}, "L2"),
    ],
)  # fmt: skip
def test_the_highest_level_or_pipe_is_the_bound_and_latency_needs_all_of_them(
    tmp_path: Path, levels: dict[str, float], bound: str
) -> None:
    assert only(raw(tmp_path, {"gpu__time_duration.sum": 250, **levels}))["bound"] == bound


def test_shares_of_several_launches_are_weighted_by_their_time(tmp_path: Path) -> None:
    """1 ms at 90 % and 3 ms at 10 %: (0.9 + 0.3) / 4 = 30 %; with two names, two bounds."""
    rest = {L2: 5, DRAM: 5, SM: 5}
    busy = f"sm__warps_active{ACTIVE}"
    kernels = [
        {"gpu__time_duration.sum": 1, L1: 90, busy: 10, **rest}, {"gpu__time_duration.sum": 3, L1: 10, busy: 50, **rest}
    ]  # fmt: skip
    assert only(raw(tmp_path, *kernels))["l1_fraction"] == pytest.approx(0.3)
    assert only(raw(tmp_path, *kernels))["occupancy_share"] == pytest.approx(0.4)
    table = roofline(raw(tmp_path, *kernels, names=("first", "second"))).kernels
    assert table[["name", "bound", "time_share"]].values.tolist() == [
        ["second", LATENCY, 0.75], ["first", "L1/TEX", 0.25]]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "bound", "l1"),
    [
        # 92.13 % of active cycles are 92.13 x 2,175,737.91 / 2,184,141 = 91.78 % of all, which is what ncu has as
        # Memory [%]. Its rule says that the kernel uses more than 80 %.
        (("91.78", "92.13", "26.39", "9.08", "41.95", "2,175,737.91", "2,184,141"), "L1/TEX", 0.9178),
        # 61.33 % of active cycles are 59.92 % of all, Memory [%] is 60.03: "Memory is more heavily utilized".
        (("60.03", "61.33", "36.73", "43.34", "44.05", "148,450.91", "151,948"), "L1/TEX", 0.5992),
        # A grid of 32 blocks on 80 SMs: 68.34 % where there are blocks, 27.34 % of 40 % of the cycles.
        # Its rule: "typically indicate latency issues".
        (("26.05", "68.34", "6.70", "6.97", "9.93", "40", "100"), LATENCY, 0.2734),
        (("26.05", "68.34", "6.70", "6.97", "9.93"), UNKNOWN, math.nan),  # the listing itself has no cycles
    ],
)
def test_published_listings_of_ncu_give_the_verdict_that_ncu_gave(
    tmp_path: Path, values: tuple[str, ...], bound: str, l1: float
) -> None:
    """Listings of versions 2020 and 2021, with the labels of later ones."""
    rows = speed_of_light(*values[:5], (*values[5:], "", "")[:2], "2.86")
    row = only(page(tmp_path, [row for row in rows if row[-1]]))
    assert row["bound"] == bound and row["l1_fraction"] == pytest.approx(l1, abs=1e-4, nan_ok=True)
    assert row["time_ms"] == pytest.approx(2.86)
