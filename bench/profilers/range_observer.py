"""NVTX ranges of a run, and the capture range [start, stop) that every tool records.

Domain `bertbench`: `run`, `step <n>` (payload n), the phases of the loop (`data`, `forward`, `backward`, `all-reduce`,
`optimizer`) and of the model (`layer.3`, `layer.3.attention`, ...). `bertbench:capture` (payload: the rank) spans the
recorded iterations; cudaProfilerStart and cudaProfilerStop mark the same span.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import nvtx
import torch

from bench.profilers.tool import CAPTURE, DOMAIN
from bert.observer import Observer, StepResult


class RangeObserver(Observer):
    """Makes the ranges on one rank and opens and closes the capture.

    The capture opens before step `start` and closes after step stop - 1, once every rank has finished it, since a tool
    stops recording all ranks when the first one closes.
    """

    model_phases = True

    def __init__(self, rank: int, start: int, stop: int) -> None:
        """Set the iterations [start, stop) to capture."""
        self._rank, self._start, self._stop = rank, start, stop
        self._capture = ExitStack()
        self._all_reduce: Any = None

    def run_begin(self) -> None:
        """Begin the outermost range."""
        nvtx.push_range(message="run", domain=DOMAIN)

    def step_begin(self, step: int) -> None:
        """Open the capture before its first step, then begin the step's range."""
        if step == self._start:
            _synchronize()
            if torch.cuda.is_available():
                torch.cuda.cudart().cudaProfilerStart()
                self._capture.callback(torch.cuda.cudart().cudaProfilerStop)
            capture = nvtx.start_range(message=CAPTURE, domain=DOMAIN, payload=self._rank)
            self._capture.callback(nvtx.end_range, capture)
        nvtx.push_range(message=f"step {step}", domain=DOMAIN, payload=step)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Make a range around a part of the step."""
        nvtx.push_range(message=name, domain=DOMAIN)
        try:
            yield
        finally:
            if name == "backward":
                self._end_all_reduce()
            nvtx.pop_range(domain=DOMAIN)

    def mark(self, name: str) -> None:
        """Begin the range of the exposed all-reduce when the last gradients are ready; the end of backward ends it.

        It is a start/end range, since autograd's thread may begin it but does not end the phase.
        """
        if name == "gradients_ready":
            self._end_all_reduce()
            self._all_reduce = nvtx.start_range(message="all-reduce", domain=DOMAIN)

    def _end_all_reduce(self) -> None:
        if self._all_reduce is not None:
            nvtx.end_range(self._all_reduce)
            self._all_reduce = None

    def step_end(self, step: int, result: StepResult) -> None:
        """End the range of the step; close the capture after its last step."""
        _synchronize()  # the range of the step includes its kernels
        nvtx.pop_range(domain=DOMAIN)
        if step == self._stop - 1:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.barrier()
            self._capture.close()

    def run_end(self) -> None:
        """Close all open ranges, also after a failure."""
        self._capture.close()
        nvtx.pop_range(domain=DOMAIN)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
