"""The measured peak against matrix products timed by hand."""

import time

import torch

from bench.peak import matmul_peak


def test_no_product_of_the_same_size_is_much_faster_than_the_peak() -> None:
    found = matmul_peak(torch.device("cpu"), torch.float32)
    size = found["shape"][0]
    assert found["dtype"] == "float32" and size >= 1024
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - began)
    by_hand = 2 * size**3 / min(times)
    assert 0.5 < found["flops_per_second"] / by_hand < 2.0


def test_the_sweep_keeps_to_its_time() -> None:
    began = time.perf_counter()
    matmul_peak(torch.device("cpu"), torch.float32, seconds=0.2)
    assert time.perf_counter() - began < 2.0
