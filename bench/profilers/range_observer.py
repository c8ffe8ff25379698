"""NVTX ranges of a run, and the capture range [start, stop) that every tool records.

Domain `bertbench`: `run`, `step <n>` (payload n), the phases of the loop (`data`, `forward`, `backward`, `all-reduce`,
`optimizer`) and of the model (`layer.3`, `layer.3.attention`, ...). `bertbench:capture` (payload: the rank) spans the
recorded iterations; cudaProfilerStart and cudaProfilerStop mark the same span.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import nvtx
import torch

from bench.profilers.ranges import CAPTURE, DOMAIN
from bert.train.observer import Observer, StepResult


class RangeObserver(Observer):
    """Makes the ranges on one rank and opens and closes the capture.

    The capture opens before step `start` and closes after step stop - 1, once every rank has finished it, since a tool
    stops recording all ranks when the first one closes.
    """

    def __init__(self, rank: int, start: int, stop: int, kind: str = "bertbench") -> None:
        """Set the iterations [start, stop) to capture, and the ranges to make, one of bench.profilers.ranges.KINDS."""
        self.model_phases = kind != "off"
        self._rank, self._start, self._stop, self._kind = rank, start, stop, kind
        self._capture = ExitStack()
        self._all_reduce: Any = None

    def run_begin(self) -> None:
        """Begin the outermost range."""
        self._push("run")

    def step_begin(self, step: int) -> None:
        """Open the capture before its first step, then begin the step's range."""
        if step == self._start:
            self._open()
        self._push(f"step {step}", step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a range around a part of the step."""
        return self._phase(name) if self.model_phases else super().phase(name)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._push(name)
        try:
            yield
        finally:
            if name == "backward":
                self._end_all_reduce()
            self._pop()

    def mark(self, name: str) -> None:
        """Begin the range of the exposed all-reduce when the last gradients are ready; the end of backward ends it.

        It is a start/end range, since autograd's thread may begin it but does not end the phase.
        """
        if name == "gradients_ready" and self.model_phases:
            self._end_all_reduce()
            self._all_reduce = nvtx.start_range(message="all-reduce", domain=DOMAIN)

    def _end_all_reduce(self) -> None:
        if self._all_reduce is not None:
            nvtx.end_range(self._all_reduce)
            self._all_reduce = None

    def step_end(self, step: int, result: StepResult) -> None:
        """End the range of the step; close the capture after its last step."""
        if self.model_phases:
            _synchronize()  # the range of the step includes its kernels
        self._pop()
        if step == self._stop - 1:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.barrier()
            self._capture.close()

    def run_end(self) -> None:
        """Close all open ranges, also after a failure."""
        self._capture.close()
        self._pop()

    def _open(self) -> None:
        _synchronize()
        if torch.cuda.is_available():
            torch.cuda.cudart().cudaProfilerStart()
            self._capture.callback(torch.cuda.cudart().cudaProfilerStop)
        capture = nvtx.start_range(message=CAPTURE, domain=DOMAIN, payload=self._rank)
        if capture is not None:  # None if NVTX is disabled (NVTX_DISABLE)
            self._capture.callback(nvtx.end_range, capture)
        if self._kind == "emit":
            self._capture.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=True))
        self._capture.callback(_synchronize)

    def _push(self, name: str, payload: int | None = None) -> None:
        if self.model_phases:
            nvtx.push_range(message=name, domain=DOMAIN, payload=payload)

    def _pop(self) -> None:
        if self.model_phases:
            nvtx.pop_range(domain=DOMAIN)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
