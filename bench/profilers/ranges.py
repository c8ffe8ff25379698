"""Profilers that record NVTX ranges and the capture range [start, stop); bench.profilers.range_observer makes them."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from bench.profilers.base import Profiler, Scope
from bert.train.observer import Observer
from common.errors import MissingToolError, UsageError
from records.trial import Trial

DOMAIN = "bertbench"
CAPTURE = "bertbench:capture"
KINDS = {
    "bertbench": "ranges of loop and model",
    "emit": "also one range per PyTorch operator (torch.autograd.profiler.emit_nvtx; CUDA only, slow)",
    "off": "only the capture range",
}


class RangeProfiler(Profiler):
    """A tool that records the capture range, marked by NVTX and by cudaProfilerStart and cudaProfilerStop."""

    OPTIONS: ClassVar[Mapping[str, str]] = {"nvtx": f"NVTX ranges: {', '.join(KINDS)}"}
    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {"nvtx": KINDS}

    @property
    def ranges(self) -> str:
        """The kind of ranges, one of KINDS."""
        return self.options.get("nvtx", "bertbench")

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError if the ranges are not available here."""
        try:
            import nvtx  # noqa: F401
        except ImportError as error:
            raise MissingToolError(
                "package-missing", f"NVTX ranges need the package nvtx ({error}): pip install 'bertbench[gpu]'"
            ) from error
        if self.ranges == "emit" and trial.device != "cuda":
            raise UsageError(
                "option-not-applicable",
                "--nvtx emit needs CUDA, but this trial runs on the CPU: use --nvtx bertbench",
            )

    def waits_at_step_ends(self, trial: Trial) -> bool:
        """Return whether the ranges of steps wait for their kernels."""
        return trial.device == "cuda" and self.ranges != "off"

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return the observer that makes the ranges and calls cudaProfilerStart and cudaProfilerStop."""
        from bench.profilers.range_observer import RangeObserver

        return RangeObserver(rank, *scope.window, self.ranges)


class NvtxOnly(RangeProfiler):
    """Makes the ranges and marks the window for a tool under which the user runs `bertbench`."""

    NAME: ClassVar[str] = "nvtx"
    LEAVES_FILES: ClassVar[bool] = False

    def environment(self, scope: Scope) -> dict[str, str]:
        """Allow unregistered strings for --capture-range=nvtx of the user's nsys."""
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
