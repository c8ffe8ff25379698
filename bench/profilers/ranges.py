"""NVTX ranges of a run, and the capture range [start, stop) that every tool records.

Domain `bertbench`: `run`, `step <n>` (payload n), the phases of the loop (`data`, `forward`, `backward`, `all-reduce`,
`optimizer`) and of the model (`layer.3`, `layer.3.attention`, ...). `bertbench:capture` (payload: the rank) spans the
recorded iterations; cudaProfilerStart and cudaProfilerStop mark the same span.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from bench.profilers.base import Profiler, Scope
from bert.train.observer import Observer, StepResult
from common.errors import MissingToolError, UsageError
from records.trial import Trial

DOMAIN = "bertbench"
CAPTURE = "bertbench:capture"
KINDS = {
    "bertbench": "ranges of loop and model",
    "emit": "also one range per PyTorch operator (torch.autograd.profiler.emit_nvtx; CUDA only, slow)",
    "dlprof": "also annotations of DLProf (needs nvidia_dlprof_pytorch_nvtx; CUDA only, slow)",
    "off": "only the capture range",
}


def check_ranges(kind: str, device: str) -> None:
    """Raise UsageError or MissingToolError if ranges of this kind are not available here."""
    if kind not in KINDS:
        raise UsageError("option-choice", f"--nvtx {kind}: choose one of {', '.join(KINDS)}")
    try:
        import nvtx  # noqa: F401
    except ImportError as error:
        raise MissingToolError(
            "package-missing", f"NVTX ranges need the package nvtx ({error}): pip install 'bertbench[gpu]'"
        ) from error
    if kind in ("emit", "dlprof") and device != "cuda":
        raise UsageError(
            "option-not-applicable",
            f"--nvtx {kind} needs CUDA, but this trial runs on the CPU: use --nvtx bertbench",
        )
    if kind == "dlprof" and importlib.util.find_spec("nvidia_dlprof_pytorch_nvtx") is None:
        raise MissingToolError(
            "package-missing",
            "--nvtx dlprof needs nvidia_dlprof_pytorch_nvtx: pip install --index-url https://pypi.ngc.nvidia.com "
            "nvidia-dlprof-pytorch-nvtx, or build the image with WITH_DLPROF=1; --nvtx emit is similar",
        )


class RangeProfiler(Profiler):
    """A tool that records the capture range, marked by NVTX and by cudaProfilerStart and cudaProfilerStop."""

    OPTIONS: ClassVar[Mapping[str, str]] = {"nvtx": f"NVTX ranges: {', '.join(KINDS)}"}

    @property
    def ranges(self) -> str:
        """The kind of ranges, one of KINDS."""
        return self.options.get("nvtx", "bertbench")

    def waits_at_step_ends(self, trial: Trial) -> bool:
        """Return whether the ranges of steps wait for their kernels."""
        return trial.device == "cuda" and self.ranges != "off"

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return the observer that makes the ranges and calls cudaProfilerStart and cudaProfilerStop."""
        return RangeObserver(rank, scope.start, scope.stop, self.ranges)


class NvtxOnly(RangeProfiler):
    """Makes the ranges and marks the window for a tool under which the user runs `bertbench`."""

    NAME: ClassVar[str] = "nvtx"
    LEAVES_FILES: ClassVar[bool] = False

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError if the ranges are not available here."""
        check_ranges(self.ranges, trial.device)

    def environment(self, scope: Scope) -> dict[str, str]:
        """Allow unregistered strings for --capture-range=nvtx of the user's nsys."""
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


class RangeObserver(Observer):
    """Makes the ranges on one rank and opens and closes the capture.

    The capture opens before step `start` and closes after step stop - 1, once every rank has finished it, since a tool
    stops recording all ranks when the first one closes.
    """

    def __init__(self, rank: int, start: int, stop: int, kind: str = "bertbench") -> None:
        """Set the iterations [start, stop) to capture, and the ranges to make, one of KINDS."""
        self.model_phases = kind != "off"
        self._ranges = kind != "off"
        self._rank, self._start, self._stop, self._kind = rank, start, stop, kind
        self._capture: Any = None
        self._all_reduce: Any = None
        self._opened = False
        self._emit: AbstractContextManager[Any] | None = None

    def run_begin(self) -> None:
        """Begin the outermost range."""
        if self._kind == "dlprof":
            importlib.import_module("nvidia_dlprof_pytorch_nvtx").init(enable_function_stack=True)
        if self._ranges:
            _push("run")

    def step_begin(self, step: int) -> None:
        """Open the capture before its first step, then begin the step's range."""
        if step == self._start:
            self._open()
        if self._ranges:
            _push(f"step {step}", step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a range around a part of the step."""
        return self._phase(name) if self._ranges else super().phase(name)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        _push(name)
        try:
            yield
        finally:
            if name == "backward":
                self._end_all_reduce()
            _pop()

    def mark(self, name: str) -> None:
        """Begin the range of the exposed all-reduce when the last gradients are ready; the end of backward ends it.

        It is a start/end range, since autograd's thread may begin it but does not end the phase.
        """
        if name == "gradients_ready" and self._ranges:
            import nvtx

            self._end_all_reduce()
            self._all_reduce = nvtx.start_range(message="all-reduce", domain=DOMAIN)

    def _end_all_reduce(self) -> None:
        if self._all_reduce is not None:
            import nvtx

            nvtx.end_range(self._all_reduce)
            self._all_reduce = None

    def step_end(self, step: int, result: StepResult) -> None:
        """End the range of the step; close the capture after its last step."""
        if self._ranges:
            _synchronize()  # the range of the step includes its kernels
            _pop()
        if step == self._stop - 1:
            _wait_for_all_ranks()
            self._close()

    def run_end(self) -> None:
        """Close all open ranges, also after a failure."""
        self._close()
        if self._ranges:
            _pop()

    def _open(self) -> None:
        import nvtx
        import torch

        self._opened = True
        _synchronize()
        if torch.cuda.is_available():
            torch.cuda.cudart().cudaProfilerStart()
        self._capture = nvtx.start_range(message=CAPTURE, domain=DOMAIN, payload=self._rank)
        if self._kind in ("emit", "dlprof"):
            self._emit = torch.autograd.profiler.emit_nvtx(record_shapes=True)
            self._emit.__enter__()

    def _close(self) -> None:
        import nvtx
        import torch

        if not self._opened:
            return
        self._opened = False
        _synchronize()
        if self._emit is not None:
            self._emit.__exit__(None, None, None)
            self._emit = None
        if self._capture is not None:  # None if NVTX is disabled (NVTX_DISABLE)
            nvtx.end_range(self._capture)
        self._capture = None
        if torch.cuda.is_available():
            torch.cuda.cudart().cudaProfilerStop()


def _wait_for_all_ranks() -> None:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _push(name: str, payload: int | None = None) -> None:
    import nvtx

    nvtx.push_range(message=name, domain=DOMAIN, payload=payload)


def _pop() -> None:
    import nvtx

    nvtx.pop_range(domain=DOMAIN)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
