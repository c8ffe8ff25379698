"""The measured peak against matrix products timed by hand."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.run import peak
from bench.run.peak import matmul_peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_product_of_any_layout_is_much_faster_than_the_peak(dtype: torch.dtype) -> None:
    found = matmul_peak(torch.device("cpu"), dtype)
    assert found["dtype"] == str(dtype).removeprefix("torch.") and found["shape"][0] >= 1024
    left, right = (torch.randn(512, 512).to(dtype) for _ in range(2))
    rates = []
    for first, second in ((left, right), (left, right.t()), (left.t(), right)):
        for _ in range(8):
            began = time.perf_counter()
            first @ second
            rates.append(2 * 512**3 / (time.perf_counter() - began))
    assert 0.4 < found["flops_per_second"] / max(rates) < 5.0


_RATES = {64: 1e12, 1024: 350e12, 2048: 560e12, 4096: 680e12, 8192: 730e12}


class _Gpu:
    """A clock that products move on, each size at a rate of its own, the first one of the process much slower."""

    def __init__(self, loading_seconds: float) -> None:
        self.now, self.loading = 0.0, loading_seconds

    def matrix(self, size: int, *_: Any, **__: Any) -> Any:
        found = SimpleNamespace(size=size)
        found.to = lambda dtype: found
        return found

    def product(self, left: Any, right: Any, out: Any = None) -> None:
        self.now += self.loading + max(6e-6, 2 * left.size**3 / _RATES[left.size])
        self.loading = 0.0

    def watch(self, device_type: str) -> Any:
        return SimpleNamespace(
            synchronize=lambda: None, mark=lambda: self.now, elapsed_ms=lambda begin, end: 1000 * (end - begin)
        )


@pytest.mark.parametrize("loading_seconds", [0.0, 0.1, 0.3, 2.0])
def test_a_gpu_reaches_the_largest_product_however_long_its_libraries_load(
    loading_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = _Gpu(loading_seconds)
    made = {"randn": gpu.matrix, "empty": gpu.matrix, "mm": gpu.product, "float32": torch.float32}
    monkeypatch.setattr(peak, "torch", SimpleNamespace(**made))
    monkeypatch.setattr(peak, "stopwatch", gpu.watch)
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: gpu.now))
    found = matmul_peak(torch.device("cuda"), torch.bfloat16)
    assert found["shape"] == [8192] * 3 and found["flops_per_second"] == pytest.approx(730e12)
    assert gpu.now - loading_seconds < 0.6
