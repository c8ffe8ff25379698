"""The roofline: by hand, with each source of ceilings, and on real files."""

import math
from typing import Any

import pytest
from support import ncu_csv
from support.ncu_csv import SUFFIX

from analysis.counters import KernelCounters
from analysis.diagnose import cores as core_findings
from analysis.metrics.kernels.ncu_metrics import DRAM
from analysis.metrics.kernels.roofline import LATENCY, UNKNOWN, ceilings, roofline

TENSOR_OPS = "sm__ops_path_tensor_src_{}_dst_fp32.sum"
TENSOR = f"sm__inst_executed_pipe_tensor{SUFFIX}"


def ops(letter: str, add: float, mul: float, fma: float, unit: str = "sm") -> dict[str, float]:
    name = unit + "__sass_thread_inst_executed_op_{}_pred_on.sum"
    return {name.format(letter + op): value for op, value in (("add", add), ("mul", mul), ("fma", fma))}


def counters(*kernels: dict[str, Any], **more: Any) -> KernelCounters:
    """Return kernels of 1 us."""
    return ncu_csv.counters(*({"duration_ns": 1000.0, **kernel} for kernel in kernels), **more)


def only(found: KernelCounters) -> dict[str, Any]:
    (row,) = roofline(found).kernels.to_dict("records")
    return {str(key): value for key, value in row.items()}


# What ncu's verdict goes by, of a kernel that keeps nothing busy.
IDLE = {f"{unit}__throughput{SUFFIX}": 4.0 for unit in ("l1tex", "lts", "sm")}


# 1 us, 1000 + 500 + 2 x 4250 = 10,000 operations, 2,000 bytes: 5 operations per byte, 10 GFLOP/s, 2 GB/s.
ONE = {**ops("f", 1000, 500, 4250), TENSOR: 0.0, "dram__bytes.sum": 2000.0}


FFMA_PEAK = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"
# Peaks of every level, at 1 GHz: 40 GB/s of L1/TEX, 6 of L2 and 4 of DRAM; 2 x 50 = 100 GFLOP/s of fp32.
PEAKS = {
    "l1tex__t_bytes.sum.peak_sustained": 40, "lts__t_bytes.sum.peak_sustained": 6, "dram__bytes.sum.peak_sustained": 4,
    FFMA_PEAK: 50,
    **{f"{unit}__cycles_elapsed.avg.per_second": 1e9 for unit in ("l1tex", "lts", "dram", "sm")},
}  # fmt: skip


def test_intensity_rates_and_the_attainable_rate_worked_by_hand() -> None:
    row = only(counters({**ONE, **IDLE, **PEAKS}))
    assert (row["flop"], row["dram_bytes"], row["flop_type"]) == (10_000, 2000, "fp32")
    assert row["dram_flop_per_byte"] == 5 and row["achieved_flops"] == pytest.approx(1e10)
    assert row["dram_gb_s"] == pytest.approx(2.0)
    assert row["attainable_flops"] == pytest.approx(20e9)  # 5 x 4 GB/s, below 100 GFLOP/s
    assert row["attainable_fraction"] == pytest.approx(0.5) == row["memory_fraction"]
    assert row["compute_fraction"] == pytest.approx(0.1) and row["bound"] == LATENCY


def test_every_level_has_its_intensity_and_the_lowest_roof_counts() -> None:
    """10,000 operations with 20,000 bytes of L1/TEX, 4,000 of L2 and 2,000 of DRAM: roofs of 20, 15 and 20 GFLOP/s."""
    row = only(counters({**ONE, **PEAKS, "l1tex__t_bytes.sum": 20_000.0, "lts__t_bytes.sum": 4000.0}))
    assert [row[f"{level}_flop_per_byte"] for level in ("l1", "l2")] == [0.5, 2.5]
    assert row["dram_flop_per_byte"] == 5
    assert [row[f"{level}_gb_s"] for level in ("l1", "l2", "dram")] == pytest.approx([20, 4, 2])
    assert (row["attainable_flops"], row["attainable_by"]) == (pytest.approx(15e9), "L2")
    assert row["attainable_fraction"] == pytest.approx(10 / 15) == row["l2_fraction"]
    assert row["bound"] == "L2" and row["dram_fraction"] == pytest.approx(0.5)
    assert math.isnan(row["l1_fraction"]), "half of the bytes says nothing of the other limits of L1/TEX"
    found = roofline(counters({**ONE, **PEAKS, "l1tex__t_bytes.sum": 20_000.0, "lts__t_bytes.sum": 4000.0}))
    assert found.ceilings == pytest.approx({"l1": 40e9, "l2": 6e9, "dram": 4e9, "fp32": 100e9})


def test_a_compute_roof_counts_where_it_is_the_lowest() -> None:
    row = only(counters({**ONE, **PEAKS, "dram__bytes.sum": 10.0, FFMA_PEAK: 6}))
    assert (row["attainable_flops"], row["attainable_by"]) == (12e9, "fp32")


@pytest.mark.parametrize(
    ("base", "clock", "level"),
    [("derived__l1tex__lsu_writeback_bytes_mem_lgds", "l1tex", "l1"), ("derived__lts__lts2xbar_bytes", "lts", "l2"),
     ("l1tex__m_xbar2l1tex_read_bytes", "lts", "l2")],
)  # fmt: skip
def test_bytes_and_peak_of_a_level_are_of_one_counter(base: str, clock: str, level: str) -> None:
    """3 GB/s for 1 us are 3,000 bytes; sectors without a peak do not mix with it."""
    names = {f"{base}.sum.per_second": 3e9, f"{base}.sum.peak_sustained": 4.0, "lts__t_sectors.sum": 1e6}
    found = roofline(counters({**ONE, **names, f"{clock}__cycles_elapsed.avg.per_second": 2e9}))
    (row,) = found.kernels.to_dict("records")
    assert row[f"{level}_bytes"] == pytest.approx(3000) and found.ceilings[level] == pytest.approx(8e9)
    sectors = only(counters({**ONE, "lts__t_sectors.sum": 125.0}))
    assert sectors["l2_bytes"] == 4000 and "l2" not in roofline(counters({**ONE, "lts__t_sectors.sum": 1.0})).ceilings


@pytest.mark.parametrize("end", ["", "_sparsity_off"])
def test_operations_of_tensor_cores_are_read_as_rates_and_with_their_peak(end: str) -> None:
    """4 per cycle at 1 GHz for 1 us are 4,000; the parts by sparsity are not added to their whole."""
    base = f"sm__ops_path_tensor_src_fp16_dst_fp32{end}"
    parts = {f"{base}.sum.per_cycle_elapsed": 4.0, f"{base}.sum.peak_sustained": 64.0, TENSOR: 5.0}
    clock = {"sm__cycles_elapsed.avg.per_second": 1e9}
    whole = {} if end else {f"{base}_sparsity_off.sum": 1000.0, f"{base}_sparsity_on.sum": 3000.0}
    found = roofline(counters({**ONE, **parts, **clock, **whole}))
    (row,) = found.kernels.to_dict("records")
    assert row["tensor_flops"] == pytest.approx(4e9) and found.ceilings["tensor_fp16"] == 64e9


def test_other_names_of_the_same_counts_give_the_same_sums() -> None:
    by_rate = {f"{name}.per_cycle_elapsed": value / 2000 for name, value in ops("f", 1000, 500, 4250, "smsp").items()}
    by_rate["smsp__cycles_elapsed.avg.per_second"] = 2e9  # 2000 cycles in 1 us
    for work in (ops("f", 1000, 500, 4250, "smsp"), by_rate):
        bytes_ = {"dram__bytes_read.sum": 1500.0, "dram__bytes_write.sum": 500.0}
        row = only(counters({**work, TENSOR: 0.0, **bytes_}))
        assert (row["flop"], row["dram_bytes"]) == (pytest.approx(10_000), 2000)
    assert only(counters({**ONE, "dram__bytes.sum": 2000}))["dram_bytes"] == 2000
    rate = {key: value for key, value in ONE.items() if key != "dram__bytes.sum"} | {"dram__bytes.sum.per_second": 2e9}
    assert only(counters(rate))["dram_bytes"] == pytest.approx(2000)


def test_operations_of_the_tensor_cores_count_under_their_type() -> None:
    work = {**ONE, TENSOR: 50.0, TENSOR_OPS.format("bf16"): 1e6, TENSOR_OPS.format("tf32"): 0.0}
    row = only(counters({**work, **PEAKS, FFMA_PEAK: 500, f"{TENSOR_OPS.format('bf16')}.peak_sustained": 1250}))
    assert row["flop"] == 1_010_000 and row["flop_type"] == "tensor_bf16"
    assert row["compute_fraction"] == pytest.approx(0.8) and row["bound"] == "compute (tensor bf16)"


def test_tensor_operations_that_nothing_tells_leave_the_sum_unknown_and_the_pipe_decides() -> None:
    found = roofline(counters({**ONE, **PEAKS, TENSOR: 70.0}))
    (row,) = found.kernels.to_dict("records")
    assert math.isnan(row["flop"]) and math.isnan(row["dram_flop_per_byte"])
    assert row["compute_fraction"] == pytest.approx(0.7) and row["bound"] == "compute (tensor)"


def test_instructions_tell_operations_on_volta_only() -> None:
    work = {**ops("f", 0, 0, 0), "sm__inst_executed_pipe_tensor.sum": 10.0, "dram__bytes.sum": 1.0}
    assert only(counters(work, capability=(7, 0)))["flop"] == 5120
    assert math.isnan(only(counters(work, capability=(8, 0)))["flop"])


def test_what_is_not_in_the_file_is_unknown_with_a_reason_never_0() -> None:
    found = roofline(counters({"dram__bytes.sum": 5.0}))
    (row,) = found.kernels.to_dict("records")
    assert math.isnan(row["flop"]) and math.isnan(row["compute_fraction"]) and row["bound"] == UNKNOWN
    lacking = roofline(counters(ONE, {"dram__bytes.sum": 5.0})).kernels
    assert math.isnan(lacking["flop"][0]) and lacking["dram_bytes"][0] == 2005  # a part is no whole


def test_no_kernel_gives_empty_tables() -> None:
    empty = KernelCounters(counters(ONE).kernels.head(0), {}, None, None, ())
    found = roofline(empty)
    assert found.kernels.empty
    assert not len(core_findings.by_kernel(empty).table) and len(core_findings.findings(empty)) == 1


def test_a_percentage_of_the_peak_implies_the_peak() -> None:
    kernel = {**ONE, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 25.0}
    assert ceilings(counters(kernel))[DRAM] == pytest.approx(8e9)  # 2 GB/s are 25 %
    tiny = {**ONE, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.02}
    assert DRAM not in ceilings(counters(tiny))
