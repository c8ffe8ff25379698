"""Instants on a device's own time line, and the time between them. Without torch on a CPU."""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Stopwatch:
    """Marks instants on the time line of a CPU, where a call returns when its work is done: perf_counter."""

    def mark(self) -> Any:
        """Note the present instant without waiting for the device."""
        return time.perf_counter_ns()

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        """Milliseconds between two marks that have passed."""
        return float((end - begin) / 1e6)

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached `mark`."""
        return True

    def synchronize(self) -> None:
        """Wait until the device has reached every mark."""

    def fetch(self, scalar: "torch.Tensor") -> "torch.Tensor":
        """Return `scalar` on the host; its value is there once a later mark has passed."""
        return scalar


class _CudaStopwatch(Stopwatch):
    """CUDA events on the current stream: times of the device, read later, so that measuring never stalls it."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def mark(self) -> "torch.cuda.Event":
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, begin: "torch.cuda.Event", end: "torch.cuda.Event") -> float:
        return float(begin.elapsed_time(end))

    def passed(self, mark: "torch.cuda.Event") -> bool:
        return bool(mark.query())

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def fetch(self, scalar: "torch.Tensor") -> "torch.Tensor":
        # Reading pinned memory later does not make the device wait.
        host = self._torch.empty(scalar.shape, dtype=scalar.dtype, pin_memory=True)
        return host.copy_(scalar, non_blocking=True)


def stopwatch(device_type: str) -> Stopwatch:
    """Return the stopwatch of a device type."""
    return _CudaStopwatch() if device_type == "cuda" else Stopwatch()
