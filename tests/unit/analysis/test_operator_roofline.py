"""FLOPs and bytes by sizes: PyTorch's own counter, calculations by hand, and a public trace by brute force."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.timelines import call, event, write
from support.timelines import kernel as gpu_kernel

from analysis.diagnose import rules_time
from analysis.metrics.kernels.operator_roofline import operator_roofline, work_of
from analysis.readers.kineto.reader import read

FLASH, BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
HALF = "c10::Half"


def inputs(sizes: list[list[int]], kind: str = HALF, values: list[str] | None = None) -> str:
    return json.dumps([sizes, [kind if size else "Scalar" for size in sizes], values or ["" for _ in sizes]])


Q, K, V = [2, 8, 128, 64], [2, 8, 256, 64], [2, 8, 256, 32]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mm", [[128, 64], [64, 32]]),
        ("addmm", [[32], [128, 64], [64, 32]]),
        ("bmm", [[4, 128, 64], [4, 64, 32]]),
        ("baddbmm", [[4, 128, 32], [4, 128, 64], [4, 64, 32]]),
        (FLASH, [Q, K, V]),
        (BACKWARD, [[2, 8, 128, 32], Q, K, V]),
    ],
)
def test_flops_are_those_of_the_counter_of_pytorch(name: str, sizes: list[list[int]]) -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").flop_registry[getattr(torch.ops.aten, name)]
    tensors = [torch.empty(size, device="meta") for size in sizes]
    values = ["" for _ in sizes] + ["False"] * 12
    work = work_of(f"aten::{name}", inputs(sizes + [[]] * 12, values=values if "scaled" in name else None))
    out = torch.empty(128, 32, device="meta")
    assert work is not None and work.dtype == "fp16" and work.flop == counter(*tensors, out_val=out)


def test_bytes_by_hand() -> None:
    work = work_of("aten::addmm", inputs([[32], [128, 64], [64, 32], [], []], values=["", "", "", "1", "1"]))
    assert work is not None and work.bytes == 2 * (32 + 128 * 64 + 64 * 32 + 128 * 32)
    unadded = work_of(
        "aten::baddbmm", inputs([[9, 2, 4], [9, 2, 3], [9, 3, 4], [], []], values=["", "", "", "0.", "1"])
    )
    assert unadded is not None and unadded.bytes == 2 * 9 * (2 * 3 + 3 * 4 + 2 * 4)


def test_causal_attention_needs_the_pairs_on_and_below_the_diagonal() -> None:
    def flop(values: list[str], query: int = 4, key: int = 4) -> float:
        sizes = [[1, 1, query, 8], [1, 1, key, 8], [1, 1, key, 8], [], []]
        work = work_of(f"aten::{FLASH}", inputs(sizes, values=values))
        assert work is not None
        return work.flop

    for query, key in ((4, 4), (6, 3), (3, 6)):
        pairs = sum(min(row + 1, key) for row in range(query))
        assert flop(["", "", "", "0.", "True"], query, key) == 2 * pairs * (8 + 8)
    assert flop(["", "", "", "0.", "False"]) == 2 * 16 * 16
    assert math.isnan(flop(["", "", ""]))  # nothing says whether it is


@pytest.mark.parametrize(
    "broken", ["", "[", "[[],[],[]]", inputs([[2, 3], [4, 5]]), inputs([[2, 3], [3, 4]], "odd"), "[[1,2],[3],[4]]"]
)
def test_inputs_that_do_not_fit_are_no_work(broken: str) -> None:
    assert work_of("aten::mm", broken) is None


def trace(path: Path, kernel: str, kind: str = "float", device: str = "NVIDIA A100-SXM4-80GB") -> Any:
    shapes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": [kind, kind], "Concrete Inputs": ["", ""]}
    events = [event("aten::matmul", 0, 100, args={}), event("aten::mm", 5, 50, args=shapes)]
    events += [call(10, 2, 1), gpu_kernel(kernel, 100, 50, correlation=1)]
    events += [call(80, 2, 2), gpu_kernel("after", 200, 50, correlation=2)]
    return read(write(path / "trace.json", events, deviceProperties=[{"id": 0, "name": device}]))


@pytest.mark.parametrize(
    ("kernel", "kind", "dtype", "peak"),
    [
        ("ampere_sgemm_128x64_nn", "float", "fp32", 19.5e12),
        ("cutlass_80_tensorop_s1688gemm_128x128", "float", "tf32", 156e12),
        ("ampere_fp16_s16816gemm_fp16_128x128", HALF, "fp16", 312e12),
    ],
)
def test_the_peak_is_that_of_the_type_that_ran(tmp_path: Path, kernel: str, kind: str, dtype: str, peak: float) -> None:
    (row,) = operator_roofline([trace(tmp_path, kernel, kind)]).itertuples()
    assert (row.operator, row.sizes, row.dtype) == ("aten::mm", "1024x1024 1024x1024", dtype)
    assert row.time_ms == 0.05 and row.time_share == 0.5 and row.calls == 1
    assert row.achieved_flops == pytest.approx(2 * 1024**3 / 50e-6)
    moved = 3 * 1024**2 * (2 if kind == HALF else 4)
    least = {"compute": 2 * 1024**3 / peak, "memory": moved / 2039e9}
    assert row.bound == max(least, key=lambda one: least[one])
    assert row.attainable_fraction == pytest.approx(max(least.values()) / 50e-6)


def test_the_peak_of_an_unknown_gpu_is_unknown(tmp_path: Path) -> None:
    found = trace(tmp_path, "sgemm", device="NVIDIA X1")
    (row,) = operator_roofline([found]).itertuples()
    assert row.bound == "" and math.isnan(row.attainable_fraction) and row.achieved_flops > 0
    assert "operator_roofline" in {one.name for one in rules_time.findings([found])}
