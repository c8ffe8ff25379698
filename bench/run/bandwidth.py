"""The achievable memory bandwidth: the faster of a copy and a triad over arrays that no cache holds."""

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.run.clock import stopwatch

# STREAM's rule: an array is at least four times as large as the caches.
_ARRAY_BYTES = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}


def memory_bandwidth(device: torch.device, seconds: float = 0.4, array_bytes: int | None = None) -> dict[str, Any]:
    """Return the best bytes/s of two kernels of STREAM (McCalpin 1995), in float32, that `seconds` allow.

    Copy (c = a) moves 2 arrays, triad (c = a + s b) 3; what a cache reads before it writes is not counted, as there.

    Args:
        device: where.
        seconds: for both kernels together, but three times each are made in any case.
        array_bytes: size of one of three arrays; None is 128 MiB on a CPU and 512 MiB on a GPU.

    Returns:
        {"bytes_per_second", "kernel", "array_bytes"}.
    """
    watch = stopwatch(device.type)
    size = array_bytes or _ARRAY_BYTES.get(device.type, _ARRAY_BYTES["cpu"])
    left, right, out = (torch.ones(size // 4, dtype=torch.float32, device=device) for _ in range(3))
    kernels: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: out.copy_(left)),
        "triad": (3, lambda: torch.add(left, right, alpha=3.0, out=out)),
    }
    best_rate, best_kernel = 0.0, ""
    for name, (arrays, run) in kernels.items():
        run()
        watch.synchronize()
        times: list[float] = []
        until = time.perf_counter() + seconds / len(kernels)
        while len(times) < 3 or time.perf_counter() < until:
            begin = watch.mark()
            run()
            end = watch.mark()
            watch.synchronize()
            times.append(watch.elapsed_ms(begin, end) / 1000)
        best_rate, best_kernel = max((best_rate, best_kernel), (arrays * left.nbytes / min(times), name))
    return {"bytes_per_second": best_rate, "kernel": best_kernel, "array_bytes": left.nbytes}
