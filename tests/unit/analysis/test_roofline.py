"""The roofline: by hand, with each source of ceilings, and on real files."""

import csv
import gzip
import math
from typing import Any

import pandas as pd
import pytest
from support import shared_files

from analysis.counters import KernelCounters
from analysis.diagnose import cores as core_findings
from analysis.metrics.kernels.roofline import (
    _TABLE,
    DRAM,
    LATENCY,
    UNKNOWN,
    ceilings,
    device_peaks,
    measured_ceiling,
    roofline,
)
from analysis.readers.ncu.reader import read

TRACES = shared_files.TRACES / "ncu"
PERCENT = ".avg.pct_of_peak_sustained_elapsed"
TENSOR_OPS = "sm__ops_path_tensor_src_{}_dst_fp32.sum"
TENSOR = f"sm__inst_executed_pipe_tensor{PERCENT}"


def ops(letter: str, add: float, mul: float, fma: float, unit: str = "sm") -> dict[str, float]:
    name = unit + "__sass_thread_inst_executed_op_{}_pred_on.sum"
    return {name.format(letter + op): value for op, value in (("add", add), ("mul", mul), ("fma", fma))}


def counters(*kernels: dict[str, Any], device: str | None = None, cc: tuple[int, int] | None = None) -> KernelCounters:
    base = {"process": 1, "name": "k", "device": 0, "duration_ns": 1000.0, "cycles": math.nan}
    frame = pd.DataFrame([{**base, "kernel_id": place, **kernel} for place, kernel in enumerate(kernels)])
    first = ["process", "kernel_id", "name", "device", "duration_ns", "cycles"]
    frame = frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])
    return KernelCounters(frame, {}, device, cc, ())


def only(found: KernelCounters, measured: dict[str, float] | None = None) -> dict[str, Any]:
    (row,) = roofline(found, measured).kernels.to_dict("records")
    return {str(key): value for key, value in row.items()}


# What ncu's verdict goes by, of a kernel that keeps nothing busy.
IDLE = {f"{unit}__throughput{PERCENT}": 4.0 for unit in ("l1tex", "lts", "sm")}


# 1 us, 1000 + 500 + 2 x 4250 = 10,000 operations, 2,000 bytes: 5 operations per byte, 10 GFLOP/s, 2 GB/s.
ONE = {**ops("f", 1000, 500, 4250), TENSOR: 0.0, "dram__bytes.sum": 2000.0}


def test_intensity_rates_and_the_attainable_rate_worked_by_hand() -> None:
    row = only(counters({**ONE, **IDLE}), {DRAM: 4e9, "fp32": 100e9})
    assert (row["flop"], row["dram_bytes"], row["flop_type"]) == (10_000, 2000, "fp32")
    assert row["intensity_flop_per_byte"] == 5 and row["achieved_flops"] == pytest.approx(1e10)
    assert row["dram_gb_s"] == pytest.approx(2.0)
    assert row["attainable_flops"] == pytest.approx(20e9)  # 5 x 4 GB/s, below 100 GFLOP/s
    assert row["attainable_fraction"] == pytest.approx(0.5) == row["memory_fraction"]
    assert row["compute_fraction"] == pytest.approx(0.1) and row["bound"] == LATENCY


@pytest.mark.parametrize(
    ("dram", "fp32", "bound"),
    [(3e9, 1e12, "DRAM"), (1e12, 12e9, "compute (fp32)"), (1e12, 1e12, LATENCY), (3.2e9, 11e9, "compute (fp32)")],
)
def test_what_holds_a_kernel_back(dram: float, fp32: float, bound: str) -> None:
    assert only(counters({**ONE, **IDLE}), {DRAM: dram, "fp32": fp32})["bound"] == bound


def test_launches_of_one_name_are_summed_and_the_longest_comes_first() -> None:
    other = {**ONE, "name": "other", "duration_ns": 5000.0}
    table = roofline(counters(ONE, other, ONE)).kernels
    assert table["name"].tolist() == ["other", "k"] and table["launches"].tolist() == [1, 2]
    assert table["flop"].tolist() == [10_000, 20_000] and table["time_share"].tolist() == pytest.approx([5 / 7, 2 / 7])


def test_families_hold_the_same_sums() -> None:
    found = roofline(
        counters({**ONE, "name": "sm80_gemm"}, {**ONE, "name": "ampere_sgemm"}, {**ONE, "name": "softmax"})
    )
    assert found.families["family"].tolist() == ["GEMM", "softmax and loss"]
    assert found.families["flop"].tolist() == [20_000, 10_000] and found.kernels["family"].tolist().count("GEMM") == 2


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


# ---- tensor cores ----


def test_operations_of_the_tensor_cores_count_under_their_type() -> None:
    work = {**ONE, TENSOR: 50.0, TENSOR_OPS.format("bf16"): 1e6, TENSOR_OPS.format("tf32"): 0.0}
    row = only(counters(work), {DRAM: 1e12, "fp32": 1e12, "tensor_bf16": 1.25e12})
    assert row["flop"] == 1_010_000 and row["flop_type"] == "tensor_bf16"
    assert row["compute_fraction"] == pytest.approx(0.8) and row["bound"] == "compute (tensor bf16)"


def test_tensor_operations_that_nothing_tells_leave_the_sum_unknown_and_the_pipe_decides() -> None:
    found = roofline(counters({**ONE, TENSOR: 70.0}), {DRAM: 1e12, "fp32": 1e12})
    (row,) = found.kernels.to_dict("records")
    assert math.isnan(row["flop"]) and math.isnan(row["intensity_flop_per_byte"]) and "tensor" in row["reason"]
    assert row["compute_fraction"] == pytest.approx(0.7) and row["bound"] == "compute (tensor)"
    assert any("judged by the utilization of the pipe alone" in problem for problem in found.problems)


def test_a_count_of_0_of_a_pipe_that_worked_is_no_count() -> None:
    assert math.isnan(only(counters({**ONE, TENSOR: 70.0, TENSOR_OPS.format("fp16"): 0.0}))["flop"])
    assert only(counters({**ONE, TENSOR: 0.0, TENSOR_OPS.format("fp16"): 0.0}))["flop"] == 10_000


def test_instructions_tell_operations_on_volta_only() -> None:
    work = {**ops("f", 0, 0, 0), "sm__inst_executed_pipe_tensor.sum": 10.0, "dram__bytes.sum": 1.0}
    assert only(counters(work, cc=(7, 0)))["flop"] == 5120
    assert math.isnan(only(counters(work, cc=(8, 0)))["flop"])


def test_packed_fp16_on_the_tensor_pipe_is_no_matrix_work() -> None:
    work = {**ONE, **ops("h", 0, 0, 320)}
    del work[TENSOR]
    assert only(counters({**work, "sm__inst_executed_pipe_tensor.sum": 10.0}))["flop"] == 10_640
    assert math.isnan(only(counters({**work, "sm__inst_executed_pipe_tensor.sum": 11.0}))["flop"])


def test_what_is_not_in_the_file_is_unknown_with_a_reason_never_0() -> None:
    found = roofline(counters({"dram__bytes.sum": 5.0}))
    (row,) = found.kernels.to_dict("records")
    assert math.isnan(row["flop"]) and math.isnan(row["compute_fraction"]) and row["bound"] == UNKNOWN
    assert "fp32, tensor" in row["reason"] and "L1/TEX, L2, DRAM and SM" in row["reason"]
    assert any("lacks operations (fp32, fp64, fp16, tensor)" in text for text in found.problems)
    lacking = roofline(counters(ONE, {"dram__bytes.sum": 5.0})).kernels
    assert math.isnan(lacking["flop"][0]) and lacking["dram_bytes"][0] == 2005  # a part is no whole


def test_no_kernel_gives_empty_tables() -> None:
    empty = KernelCounters(counters(ONE).kernels.head(0), {}, None, None, ())
    found = roofline(empty)
    assert found.kernels.empty and found.families.empty and found.problems == ("no kernel was profiled",)
    assert core_findings.findings(empty)[0].sentence.startswith("No kernel was counted")


# ---- ceilings ----


def test_measured_ceilings_come_before_implied_ones_and_these_before_the_table() -> None:
    implied = {"dram__bytes.sum.peak_sustained": 2000.0, "dram__cycles_elapsed.avg.per_second": 1e9,
               "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 10_000.0,
               "sm__cycles_elapsed.avg.per_second": 1.5e9}  # fmt: skip
    found = ceilings(counters({**ONE, **implied}, device="NVIDIA A100-SXM4-40GB"), {"fp64": 9e12})
    assert found[DRAM].rate == 2e12 and found[DRAM].source.startswith("counters")
    assert found["fp32"].rate == 2 * 10_000 * 1.5e9 and found["fp32"].source.startswith("counters")
    assert (found["fp64"].rate, found["fp64"].source) == (9e12, "measured")
    assert found["tensor_bf16"].rate == 312e12 and "A100" in found["tensor_bf16"].source


def test_a_percentage_of_the_peak_implies_the_peak() -> None:
    kernel = {**ONE, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 25.0}
    assert ceilings(counters(kernel))[DRAM].rate == pytest.approx(8e9)  # 2 GB/s are 25 %
    tiny = {**ONE, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.02}
    assert DRAM not in ceilings(counters(tiny))


def test_a_measured_peak_of_products_is_a_ceiling_of_its_type() -> None:
    assert measured_ceiling("bfloat16", 5e14) == {"tensor_bf16": 5e14} and measured_ceiling("int8", 1e12) == {}
    assert measured_ceiling("float8_e4m3fn", 1.4e15) == {"tensor_fp8": 1.4e15}
    assert ceilings(counters(ONE), measured_ceiling("float32", 3e13))["fp32"].source == "measured"


def test_an_unknown_device_has_no_ceiling() -> None:
    assert ceilings(counters(ONE, device="NVIDIA Z9000")) == {} == ceilings(counters(ONE))
    assert only(counters(ONE, device="NVIDIA Z9000"))["bound"] == UNKNOWN
    assert ceilings(counters(ONE), {"fp32": math.nan, DRAM: -1.0, "fp64": 0.0}) == {}


def test_without_a_ceiling_the_type_is_that_of_most_operations() -> None:
    row = only(counters({**ONE, **ops("d", 0, 0, 100)}))
    assert (row["flop"], row["flop_type"]) == (10_200, "fp32")


def test_a_kernel_without_operations_computes_nothing() -> None:
    row = only(counters({**ONE, **ops("f", 0, 0, 0)}))
    assert (row["flop"], row["flop_type"], row["compute_fraction"]) == (0, "", 0)


@pytest.mark.parametrize(
    ("name", "kind", "rate", "memory"),
    [
        ("NVIDIA H200", "tensor_bf16", 989.4e12, 4.8e12),
        ("NVIDIA H100 80GB HBM3", "tensor_tf32", 494.7e12, 3.35e12),
        ("NVIDIA A100-SXM4-80GB", "tensor_fp16", 312e12, 2.039e12),
        ("A100-SXM4-40GB", "fp32", 19.5e12, 1.555e12),
        ("Tesla V100-SXM2-16GB", "tensor_fp16", 125e12, 0.9e12),
        ("Tesla T4", "fp32", 8.1e12, 0.32e12),
        ("NVIDIA L4", "tensor_fp16", 121e12, 0.3e12),
        ("NVIDIA L40S", "tensor_bf16", 362.05e12, 0.864e12),
        ("NVIDIA GeForce RTX 3090", "tensor_bf16", 71e12, 0.936e12),
    ],
)
def test_the_table_knows_a_device_by_its_name(name: str, kind: str, rate: float, memory: float) -> None:
    peaks = device_peaks(name)
    assert peaks is not None and peaks.flops[kind] == rate and peaks.bytes_per_second == memory


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10G", "NVIDIA L40", "NVIDIA H100 NVL", "T4G",
     "NVIDIA GeForce RTX 3090 Ti", "", "NVIDIA", None],
)  # fmt: skip
def test_a_variant_that_nobody_listed_is_unknown(name: str | None) -> None:
    assert device_peaks(name) is None


def test_every_row_of_the_table_is_dense() -> None:
    """A value with sparsity is twice the dense one; then tf32, half the rate of fp16, would be equal to it."""
    for _, peaks in _TABLE:
        tensor = {kind: rate for kind, rate in peaks.flops.items() if kind.startswith("tensor_")}
        if "tensor_tf32" in tensor and "tensor_fp16" in tensor:
            assert tensor["tensor_fp16"] / tensor["tensor_tf32"] == pytest.approx(2, rel=0.02), peaks.name
        if "tensor_fp8" in tensor:
            assert tensor["tensor_fp8"] / tensor["tensor_fp16"] == pytest.approx(2, rel=0.03), peaks.name
        assert tensor.get("tensor_bf16", tensor.get("tensor_fp16")) == tensor.get("tensor_fp16"), peaks.name


# ---- real files ----


def real(name: str) -> KernelCounters:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here: real traces are not part of the project")
    return read(path)


def test_the_peak_that_a_real_file_implies_is_that_of_its_memory() -> None:
    found = real("tests__copy_blocked.csv")  # capability 7.5: 256 bit, two transfers per cycle of the DRAM's clock
    clock = found.kernels["GPU Speed Of Light Throughput: DRAM Frequency"][0]
    assert ceilings(found)[DRAM].rate == pytest.approx(clock * 2 * 256 / 8, rel=1e-3)
    assert only(found)["bound"] == "DRAM" and only(found)["memory_fraction"] == pytest.approx(0.6184)


def test_a_real_matrix_product_has_the_operations_of_its_shape() -> None:
    table = roofline(real("attention_5-9__bert_torch_nsight.csv.gz"), {DRAM: 1.4e12, "fp32": 19.5e12}).kernels
    name = "ampere_sgemm_32x32_sliced1x4_tn"
    row = table.set_index("name").loc[name]
    assert row["launches"] == 4
    assert row["flop"] == counted(name, "fadd") + counted(name, "fmul") + 2 * counted(name, "ffma") > 0
    assert row["bound"] == LATENCY and row["flop_type"] == "fp32" and row["time_ms"] == table["time_ms"].max()


def counted(kernel: str, instruction: str) -> int:
    """Sum of an instruction's counts of the kernels of a name, read without the reader."""
    text = gzip.decompress((TRACES / "attention_5-9__bert_torch_nsight.csv.gz").read_bytes()).decode()
    metric = f"sm__sass_thread_inst_executed_op_{instruction}_pred_on.sum"
    rows = csv.DictReader(text.splitlines())
    found = [row["Metric Value"] for row in rows if (row["Kernel Name"], row["Metric Name"]) == (kernel, metric)]
    return sum(int(value.replace(",", "")) for value in found)
