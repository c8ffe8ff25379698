"""Core utilization: formulas by hand, and against a second, plain computation on real files."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from support import ncu_csv
from support.ncu_csv import SUFFIX, counters

from analysis.counters import KernelCounters
from analysis.diagnose.cores import by_batch, by_family
from analysis.metrics.kernels.core_utilization import (
    FOUR,
    core_use,
    core_use_by_family,
    utilization_row,
)
from analysis.metrics.kernels.ncu_metrics import PIPES
from analysis.metrics.kernels.roofline import roofline
from analysis.readers.ncu import read

FMA, FP16, TENSOR, SFU = (f"sm__inst_executed_pipe_{pipe}{SUFFIX}" for pipe in ("fma", "fp16", "tensor", "xu"))


EXAMPLE = counters(
    {"name": "sm90_gemm", "duration_ns": 3000, "cycles": 6000, FMA: 10, TENSOR: 80, SFU: 0},
    {"name": "elementwise_kernel", "duration_ns": 1000, "cycles": 1000, FMA: 40, TENSOR: 0, SFU: 20},
    {"name": "sm90_gemm", "duration_ns": 1000, "cycles": 3000, FMA: 20, TENSOR: 50, SFU: 0},
    device="NVIDIA H200",
)


def pipe(part: KernelCounters, name: str, window_ns: float | None = None) -> Any:
    return core_use(part, window_ns).loc[name]


def test_the_window_counts_once_per_process() -> None:
    two = counters(*({"process": rank, "duration_ns": 1000, "cycles": 1, FMA: 50} for rank in (1, 2)))
    assert pipe(two, "fma", 2000).in_window_percent == pytest.approx(25.0)


def test_kernels_that_took_longer_than_the_window_give_no_share_of_it_and_a_reason() -> None:
    assert math.isnan(pipe(EXAMPLE, "fma", 4_999).in_window_percent) and pipe(EXAMPLE, "fma", 4_999).reason
    assert pipe(EXAMPLE, "fma", 5_000).in_window_percent == pytest.approx(18.0)


def test_two_units_are_never_mixed() -> None:
    part = counters({"duration_ns": 3000, "cycles": 9, FMA: 10}, {"duration_ns": 1000, FMA: 50})
    assert utilization_row(part)["weight"] == "duration" and pipe(part, "fma").percent == pytest.approx(20.0)
    part = counters({"cycles": 9, FMA: 10}, {"duration_ns": 1000, FMA: 50}, {"cycles": 1, FMA: 20})
    row = utilization_row(part)
    assert (row["weight"], row["kernel_time_ms"]) == ("cycles", 0.001) and row["fma_percent"] == pytest.approx(11.0)
    assert pipe(part, "fma").reason == "1 of 3 kernels have no value and are skipped"


def test_a_kernel_without_a_time_does_not_take_the_times_of_the_others() -> None:
    """3 and 1 us are known, of 3 kernels: shares of 4 us, and the count."""
    part = counters({"name": "sgemm", "duration_ns": 3000, FMA: 10}, {"name": "sgemm", FMA: 90},
                    {"name": "softmax", "duration_ns": 1000, FMA: 50})  # fmt: skip
    use = core_use_by_family(part)
    assert use.index.tolist() == ["GEMM", "softmax and loss"] and use["kernel_time_ms"].tolist() == [0.003, 0.001]
    assert use["kernels"].tolist() == [2, 1] and use["timed"].tolist() == [1, 1] and use["fma_percent"]["GEMM"] == 10
    for table in (by_family(part).table, roofline(part).kernels):
        assert table["time_share"].tolist() == [0.75, 0.25] and table["timed"].tolist() == [1, 1]
        assert table["launches"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("kernels", "name", "reason"),
    [
        ([{FMA: 10}], "fma", "cannot be weighted"),
        ([{"cycles": 1, FMA: 0}], "fp16", "lacks the metric"),
        ([], "tensor", "no kernel was profiled"),
        ([{"cycles": 1, FMA.replace("_elapsed", "_active"): 40}], "fma", "only over active cycles"),
    ],
)
def test_what_is_not_known_has_a_reason(kernels: list[dict[str, Any]], name: str, reason: str) -> None:
    unknown = pipe(counters(*kernels), name)
    assert math.isnan(unknown.percent) and reason in unknown.reason


@pytest.mark.parametrize(
    ("present", "name", "used"),
    [
        (("sm__inst_executed_pipe_fma_type_fp16",), "fp16", 0),
        (("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor"), "tensor", 1),
        (("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor_op_gmma"), "tensor", 1),
        (("sm__pipe_tensor_cycles_active", "sm__pipe_tc_cycles_active"), "tensor", 1),
        (("sm__inst_executed_pipe_tensor", "sm__pipe_tensor_cycles_active_v2"), "tensor_active", 1),
    ],
)
def test_each_architecture_s_name_is_used(present: tuple[str, ...], name: str, used: int) -> None:
    values = {metric + SUFFIX: 10 * number for number, metric in enumerate(present, 1)}
    use = pipe(counters({"cycles": 5, **values}), name)
    assert (use.metric, use.percent) == (present[used], 10 * (used + 1))


@pytest.mark.parametrize(
    ("capability", "percent"), [((9, 0), 90.0), ((10, 0), 90.0), ((8, 9), 4.3), ((7, 0), 4.3), (None, 4.3)]
)
def test_large_instructions_count_by_the_cycles_that_they_keep_the_pipe_busy(
    capability: tuple[int, int] | None, percent: float
) -> None:
    """A product of Hopper's warp groups: few instructions, of many cycles each."""
    one = {"cycles": 5, "duration_ns": 5, TENSOR: 4.3, f"sm__pipe_tensor_cycles_active{SUFFIX}": 90}
    part = dataclasses.replace(counters(one), compute_capability=capability)
    assert pipe(part, "tensor").percent == pytest.approx(percent)
    row = roofline(part).kernels.iloc[0]
    assert row["compute_fraction"] == pytest.approx(0.9), "the cycles, on any chip: they say how near the pipe is"
    only = {"cycles": 5, f"sm__inst_executed_pipe_tensor_op_gmma{SUFFIX}": 7}
    without = dataclasses.replace(counters(only), compute_capability=capability)
    assert pipe(without, "tensor").percent == pytest.approx(7), "what there is is better than nothing"


@pytest.mark.parametrize("page", [ncu_csv.details, ncu_csv.raw])
def test_both_pages_of_a_run_worked_by_hand_give_the_stated_percentages(tmp_path: Path, page: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text(page())
    use, row = core_use(read(path), ncu_csv.WINDOW_NS), utilization_row(read(path))
    assert (row["kernels"], row["weight"], row["kernel_time_ms"]) == (4, "cycles", 0.01)
    for name in FOUR:
        assert use["percent"][name] == pytest.approx(ncu_csv.PERCENTS[name], rel=1e-12)
        share = ncu_csv.IN_WINDOW[name]
        expected = pytest.approx(math.nan if share is None else share, rel=1e-12, nan_ok=True)
        assert use["in_window_percent"][name] == expected
    assert "1 of 4 kernels have no value" in use["reason"]["fp16"]


def test_percentages_of_active_cycles_are_brought_to_all_cycles() -> None:
    active = FMA.replace("_elapsed", "_active")
    kernels = (
        {"cycles": 1000, active: 40, "sm__cycles_active.avg": 500, "sm__cycles_elapsed.avg": 1000},
        {"cycles": 3000, active: 20, "sm__cycles_active.avg": 3000, "sm__cycles_elapsed.avg": 3000},
    )
    use = pipe(counters(*kernels), "fma")
    assert use.percent == pytest.approx((1000 * 20 + 3000 * 20) / 4000) and "of active cycles" in use.metric
    assert pipe(counters({"cycles": 1, active: 40, FMA: 7}), "fma").percent == 7, "of all cycles comes first"


def test_the_table_has_a_row_per_batch_size_with_units_and_reasons() -> None:
    small = counters({"cycles": 1, "duration_ns": 10, FMA: 7})
    few, many = by_batch([EXAMPLE, small], [16, 4], 10_000).table.to_dict("records")
    assert (few["micro_batch_size"], many["micro_batch_size"]) == (4, 16)
    assert {f"{name}_percent" for name in PIPES} <= set(utilization_row(small))
    assert (many["device"], many["kernels"], many["fma_percent"]) == ("NVIDIA H200", 3, pytest.approx(16.0))
    assert many["tensor_in_window_percent"] == pytest.approx(29.0)
    assert math.isnan(few["tensor_percent"]) and "tensor: this GPU or version of ncu" in few["reason"]
    assert "fma=sm__inst_executed_pipe_fma" in few["metrics"] and "tensor=" not in few["metrics"]
