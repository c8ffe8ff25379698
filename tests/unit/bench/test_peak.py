"""The measured peak against matrix products timed by hand."""

import time

import torch

from bench.peak import matmul_peak


def test_no_product_of_the_same_size_is_much_faster_than_the_peak() -> None:
    for _ in range(3):  # a busy machine may hold either side up
        found = matmul_peak(torch.device("cpu"), torch.float32)
        ratio = found["flops_per_second"] / by_hand(found["shape"][0])
        if 0.5 < ratio < 2.0:
            break
    assert found["dtype"] == "float32" and found["shape"][0] >= 1024
    assert 0.5 < ratio < 2.0


def by_hand(size: int) -> float:
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def test_the_sweep_keeps_to_its_time() -> None:
    began = time.perf_counter()
    matmul_peak(torch.device("cpu"), torch.float32, seconds=0.2)
    assert time.perf_counter() - began < 2.0
