"""The achievable peaks: the fastest of a short sweep of square GEMMs, and the memory bandwidth, the faster of
a copy and a triad over arrays that no cache holds."""

import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

from bench.run.stopwatch import Stopwatch, stopwatch
from bert.speed.fp8 import FORMATS, INPUT, scales_of

# For one peak, in all.
_SECONDS = 0.4
# Sizes that fill a device without long runs; the largest that fits the time limit is used.
_SIZES = (1024, 2048, 4096, 8192)
# How many sizes could have the whole time at most: a GPU has reached the smaller ones' best at once, and needs the
# largest for its own, where a CPU may not come beyond the second.
_SHARES = {"cpu": 3, "cuda": 2 * len(_SIZES)}
# Factors plain and transposed: the GEMMs of a linear layer's input gradient, forward and weight gradient.
_LAYOUTS = ((False, False), (False, True), (True, False))
_LAYOUT_SIZE = 256
# Layouts nearer to each other than this are one speed.
_LAYOUT_GAIN = 1.2
# STREAM's rule: an array is at least four times as large as the caches.
_ARRAY_BYTES = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}


def peak_dtype(model: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> tuple[torch.dtype, str]:
    """Return the type in which the peak of a model's GEMMs is measured, and the name of the type that they have.

    `dtype` is that of its precision. They differ for FP8 on a CPU, which only imitates FP8, more slowly than bf16: that
    rate is no peak.
    """
    products = dtype if scales_of(model.parameters()) is None else FORMATS[INPUT]
    return products if device.type == "cuda" else dtype, str(products).removeprefix("torch.")


def matmul_peak(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the best FLOP/s of [n, n] x [n, n] GEMMs (2 n^3 FLOPs each) that 0.4 s allow.

    The factors have the fastest layout of a linear layer's GEMMs: where a CPU emulates bf16, one layout is
    twenty times as fast as another. Those of torch.float8_e4m3fn give bf16, with the fast sums that NVIDIA's rates are
    of. The result is {"flops_per_second", "dtype", "shape"}: the rate of a dense GEMM now, on this device with these
    threads; a reference for training, not a data-sheet value.
    """
    watch = stopwatch(device.type)
    best_rate, best_size = 0.0, 0
    # The first product of a process loads libraries, which is no part of the sweep.
    _product(device, dtype, 64)()
    watch.synchronize()
    layout = _quickest_layout(device, dtype)
    share = _SECONDS / _SHARES[device.type]
    deadline = time.perf_counter() + _SECONDS
    for size in _SIZES:
        multiply = _product(device, dtype, size, layout)
        multiply()
        watch.synchronize()
        batch = 10 if device.type == "cuda" else 1
        least = _least_seconds(watch, multiply, min(deadline, time.perf_counter() + share), batch)
        best_rate, best_size = max((best_rate, best_size), (2 * size**3 / least, size))
        # The next size takes eight times as long; it is run four times, the first of them to warm up.
        if time.perf_counter() + 8 * (1 + 3 * batch) * least > deadline:
            break
    name = str(dtype).removeprefix("torch.")
    return {"flops_per_second": best_rate, "dtype": name, "shape": [best_size] * 3}


def _least_seconds(watch: Stopwatch, run: Callable[[], object], until: float, batch: int = 1) -> float:
    """Return the least time of one of `batch` runs one after another, of three batches or all until `until`."""
    times: list[float] = []
    while len(times) < 3 or time.perf_counter() < until:
        begin = watch.mark()
        for _ in range(batch):
            run()
        end = watch.mark()
        watch.synchronize()
        times.append(watch.elapsed_ms(begin, end) / 1000 / batch)
    return min(times)


def _quickest_layout(device: torch.device, dtype: torch.dtype) -> tuple[bool, bool]:
    """Return which factors are transposed in the quickest product; none where that gains little."""
    if device.type != "cpu":
        return _LAYOUTS[0]
    times = {}
    for layout in _LAYOUTS:
        multiply = _product(device, dtype, _LAYOUT_SIZE, layout)
        multiply()
        times[layout] = min(timeit.repeat(multiply, number=1, repeat=3))
    best = min(_LAYOUTS, key=times.__getitem__)
    return best if times[_LAYOUTS[0]] > _LAYOUT_GAIN * times[best] else _LAYOUTS[0]


def _product(
    device: torch.device, dtype: torch.dtype, size: int, layout: tuple[bool, bool] = _LAYOUTS[0]
) -> Callable[[], Any]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    if dtype.itemsize == 1:  # the factors lie in rows and in columns, as FP8's kernels want them
        one = torch.ones((), device=device, dtype=torch.float32)
        into = torch.empty(size, size, device=device, dtype=torch.bfloat16)
        return lambda: torch._scaled_mm(
            left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=into
        )
    out = torch.empty(size, size, device=device, dtype=dtype)
    first, second = (factor.t() if turned else factor for factor, turned in zip((left, right), layout, strict=True))
    return lambda: torch.mm(first, second, out=out)


def memory_bandwidth(device: torch.device) -> dict[str, Any]:
    """Return the best bytes/s of two kernels of STREAM (McCalpin 1995), in float32, that 0.4 s allow.

    Copy (c = a) moves 2 arrays, triad (c = a + s b) 3; what a cache reads before it writes is not counted, as there.
    The result is {"bytes_per_second", "kernel", "array_bytes"}.
    """
    watch = stopwatch(device.type)
    left, right, out = (torch.ones(_ARRAY_BYTES[device.type] // 4, device=device) for _ in range(3))
    kernels: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: out.copy_(left)),
        "triad": (3, lambda: torch.add(left, right, alpha=3.0, out=out)),
    }
    best_rate, best_kernel = 0.0, ""
    for name, (arrays, run) in kernels.items():
        run()
        watch.synchronize()
        least = _least_seconds(watch, run, time.perf_counter() + _SECONDS / len(kernels))
        best_rate, best_kernel = max((best_rate, best_kernel), (arrays * left.nbytes / least, name))
    return {"bytes_per_second": best_rate, "kernel": best_kernel, "array_bytes": left.nbytes}
