"""Core utilisation: formulas by hand, and against a second, plain computation on real files."""

import csv
import gzip
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.counters import KernelCounters
from analysis.names import family
from analysis.metrics.core_utilization import PIPES, core_use, core_use_by_family, rows
from analysis.readers.ncu import read

TRACES = Path(__file__).parents[3].parent / "shared" / "traces" / "ncu"
SUFFIX = ".avg.pct_of_peak_sustained_elapsed"
FMA, FP16, TENSOR, SFU = (f"sm__inst_executed_pipe_{pipe}{SUFFIX}" for pipe in ("fma", "fp16", "tensor", "xu"))


def counters(*kernels: dict[str, Any], **more: Any) -> KernelCounters:
    """Return kernels; each is given by name, duration_ns, cycles and metrics, what is left out is unknown."""
    base = {"process": 1, "name": "k", "device": 0, "duration_ns": None, "cycles": None}
    table = [{**base, "kernel_id": number, **kernel} for number, kernel in enumerate(kernels)]
    columns = ["process", "kernel_id", "name", "device", "duration_ns", "cycles"]
    frame = pd.DataFrame(table, columns=[*columns, *dict.fromkeys(k for row in table for k in row if k not in columns)])
    numbers = [name for name in frame.columns if name not in ("name", "process", "kernel_id", "device")]
    return KernelCounters(frame.astype(dict.fromkeys(numbers, "float64")), {}, more.get("device"), None, ())


EXAMPLE = counters(
    {"name": "sm90_gemm", "duration_ns": 3000, "cycles": 6000, FMA: 10, TENSOR: 80, SFU: 0},
    {"name": "elementwise_kernel", "duration_ns": 1000, "cycles": 1000, FMA: 40, TENSOR: 0, SFU: 20},
    {"name": "sm90_gemm", "duration_ns": 1000, "cycles": 3000, FMA: 20, TENSOR: 50, SFU: 0},
    device="NVIDIA H200",
)


def test_pipes_are_weighted_by_cycles_and_the_last_kernel_counts() -> None:
    use = core_use(EXAMPLE)
    assert use.kernels == 3 and use.weight == "cycles" and use.kernel_time_ms == pytest.approx(0.005)
    assert use.pipes["fma"].percent == pytest.approx((6000 * 10 + 1000 * 40 + 3000 * 20) / 10000)
    assert use.pipes["tensor"].percent == pytest.approx((6000 * 80 + 3000 * 50) / 10000)
    assert use.pipes["sfu"].percent == pytest.approx(2.0)
    assert use.pipes["fma"].metric == "sm__inst_executed_pipe_fma" and use.pipes["fma"].reason == ""


def test_with_the_window_idle_time_counts_as_nothing() -> None:
    use = core_use(EXAMPLE, window_ns=10_000)
    assert use.pipes["tensor"].in_window_percent == pytest.approx((3000 * 80 + 1000 * 50) / 10_000)
    assert use.pipes["tensor"].percent == pytest.approx(63.0)  # as without a window
    assert core_use(EXAMPLE).pipes["tensor"].in_window_percent is None


def test_the_window_counts_once_per_process() -> None:
    two = counters(*({"process": rank, "duration_ns": 1000, "cycles": 1, FMA: 50} for rank in (1, 2)))
    assert core_use(two, window_ns=2000).pipes["fma"].in_window_percent == pytest.approx(25.0)


def test_kernels_that_took_longer_than_the_window_give_no_share_of_it_and_say_so() -> None:
    pipe = core_use(EXAMPLE, window_ns=4_999).pipes["fma"]
    assert pipe.in_window_percent is None
    assert "took 0.005 ms under ncu, the window has 0.005 ms" in pipe.reason and "clock-control=none" in pipe.reason
    assert core_use(EXAMPLE, window_ns=5_000).pipes["fma"].in_window_percent == pytest.approx(18.0)


def test_without_cycles_kernels_are_weighted_by_duration() -> None:
    use = core_use(counters({"duration_ns": 3000, FMA: 10}, {"duration_ns": 1000, FMA: 50}))
    assert use.weight == "duration" and use.pipes["fma"].percent == pytest.approx(20.0)


def test_two_units_are_never_mixed() -> None:
    use = core_use(counters({"duration_ns": 3000, "cycles": 9, FMA: 10}, {"duration_ns": 1000, FMA: 50}))
    assert use.weight == "duration" and use.pipes["fma"].percent == pytest.approx(20.0)
    use = core_use(counters({"cycles": 9, FMA: 10}, {"duration_ns": 1000, FMA: 50}, {"cycles": 1, FMA: 20}))
    assert use.weight == "cycles" and use.pipes["fma"].percent == pytest.approx(11.0)
    assert use.pipes["fma"].reason == "1 of 3 kernels have no value and are left out"
    assert use.kernel_time_ms is None


def test_neither_cycles_nor_durations_give_no_number() -> None:
    pipe = core_use(counters({FMA: 10})).pipes["fma"]
    assert pipe.percent is None and "cannot be weighted" in pipe.reason


def test_a_pipe_without_a_metric_is_unknown_with_a_reason_and_a_zero_is_zero() -> None:
    use = core_use(counters({"cycles": 1, FMA: 0}))
    assert use.pipes["fma"].percent == 0.0
    assert use.pipes["fp16"].percent is None and "no such metric" in use.pipes["fp16"].reason


def test_no_kernel_is_unknown_not_zero() -> None:
    use = core_use(counters())
    assert (use.kernels, use.weight, use.kernel_time_ms, use.dram_bytes) == (0, None, None, None)
    assert all(pipe.percent is None and pipe.reason == "no kernel was profiled" for pipe in use.pipes.values())
    assert core_use_by_family(counters()) == {}


@pytest.mark.parametrize(
    ("present", "pipe", "used"),
    [
        (("sm__inst_executed_pipe_fma_type_fp16",), "fp16", "sm__inst_executed_pipe_fma_type_fp16"),
        (("sm__pipe_tensor_cycles_active",), "tensor", "sm__pipe_tensor_cycles_active"),
        (("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor"), "tensor", "sm__inst_executed_pipe_tensor"),
        (
            ("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor_op_gmma"),
            "tensor",
            "sm__inst_executed_pipe_tensor_op_gmma",
        ),
        (("sm__pipe_tensor_cycles_active", "sm__pipe_tc_cycles_active"), "tensor", "sm__pipe_tc_cycles_active"),
        (
            ("sm__inst_executed_pipe_tensor", "sm__pipe_tensor_cycles_active_v2"),
            "tensor_active",
            "sm__pipe_tensor_cycles_active_v2",
        ),
    ],
)
def test_each_architecture_s_name_is_used(present: tuple[str, ...], pipe: str, used: str) -> None:
    values = {name + SUFFIX: 10 * number for number, name in enumerate(present, 1)}
    found = core_use(counters({"cycles": 5, **values})).pipes[pipe]
    assert found.metric == used and found.percent == pytest.approx(values[used + SUFFIX])


def test_families_are_told_apart_and_the_longest_comes_first() -> None:
    by_family = core_use_by_family(EXAMPLE)
    assert list(by_family) == ["matrix product", "elementwise"]
    assert by_family["matrix product"].pipes["tensor"].percent == pytest.approx((6 * 80 + 3 * 50) / 9)
    assert by_family["elementwise"].pipes["sfu"].percent == 20.0
    assert sum(use.kernels for use in by_family.values()) == 3


def test_operations_count_a_fused_multiply_add_twice() -> None:
    name = "sm__sass_thread_inst_executed_op_{}_pred_on.sum".format
    one = {"cycles": 1, name("fadd"): 1, name("fmul"): 10, name("ffma"): 100, "dram__bytes.sum": 7}
    use = core_use(counters(one, one))
    assert use.fp32_flop == 2 * (1 + 10 + 2 * 100) and use.dram_bytes == 14
    assert use.fp16_flop is None  # a part would pass for the whole
    assert core_use(counters(one, {"cycles": 1})).fp32_flop is None


def test_tensor_operations_are_unknown_where_the_pipe_worked_and_none_were_counted() -> None:
    ops = {f"sm__ops_path_tensor_src_{kind}_dst_fp32.sum": value for kind, value in (("fp16", 0), ("bf16", 0))}
    assert core_use(counters({"cycles": 1, TENSOR: 50, **ops})).tensor_flop is None
    assert core_use(counters({"cycles": 1, TENSOR: 0, **ops})).tensor_flop == 0
    ops["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] = 640
    assert core_use(counters({"cycles": 1, TENSOR: 50, **ops})).tensor_flop == 640


def test_the_table_has_a_row_per_batch_size_with_units_and_reasons() -> None:
    small = counters({"cycles": 1, "duration_ns": 10, FMA: 7})
    table = rows({16: EXAMPLE, 4: small}, {16: 10_000})
    assert [row["micro_batch_size"] for row in table] == [4, 16]
    assert list(table[0]) == list(table[1])
    assert (table[1]["device"], table[1]["kernels"], table[1]["fma_percent"]) == ("NVIDIA H200", 3, pytest.approx(16.0))
    assert table[1]["tensor_in_window_percent"] == pytest.approx(29.0) and table[0]["fma_in_window_percent"] is None
    assert table[0]["tensor_percent"] is None and "tensor: this GPU or this ncu" in table[0]["reason"]
    assert "fma=sm__inst_executed_pipe_fma" in table[0]["metrics"] and "tensor=" not in table[0]["metrics"]
    assert {f"{name}_percent" for name in PIPES} <= set(table[0])


@pytest.mark.parametrize(
    "name", ["attention_5-9__bert_torch_nsight.csv.gz", "attention_5-9__bert_flashattn_nsight.csv.gz"]
)
def test_real_files_agree_with_a_plain_sum_over_their_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These files have no pipe in percent; another percentage of theirs stands in, so that the sums are real."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here: real traces are not part of the project")
    metric = "sm__throughput"
    monkeypatch.setitem(PIPES, "fma", (metric,))  # type: ignore[index]
    values: dict[str, dict[str, float]] = defaultdict(dict)
    names = {}
    for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()):
        if row["Metric Name"] in (metric + SUFFIX, "sm__cycles_elapsed.avg", "dram__bytes.sum"):
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(row["Metric Unit"], 1.0)
            values[row["ID"]][row["Metric Name"]] = float(row["Metric Value"].replace(",", "")) * scale
            names[row["ID"]] = row["Kernel Name"]
    found = read(path)
    use = core_use(found)
    cycles = sum(kernel["sm__cycles_elapsed.avg"] for kernel in values.values())
    busy = sum(kernel["sm__cycles_elapsed.avg"] * kernel[metric + SUFFIX] for kernel in values.values())
    assert use.kernels == len(values) and use.weight == "cycles"
    assert use.pipes["fma"].percent == pytest.approx(busy / cycles)
    assert use.dram_bytes == pytest.approx(sum(kernel["dram__bytes.sum"] for kernel in values.values()))
    for label, part in core_use_by_family(found).items():
        mine = [kernel for key, kernel in values.items() if family(names[key]) == label]
        total = sum(kernel["sm__cycles_elapsed.avg"] for kernel in mine)
        expected = sum(kernel["sm__cycles_elapsed.avg"] * kernel[metric + SUFFIX] for kernel in mine) / total
        assert part.kernels == len(mine) and part.pipes["fma"].percent == pytest.approx(expected)
