"""NVTX ranges and nothing else: for a tool that the user starts around `bertbench` himself."""

from typing import ClassVar

from bench.profilers.base import Scope
from bench.profilers.ranges import RangeProfiler, check_ranges
from records.trial import Trial


class NvtxOnly(RangeProfiler):
    """Makes the ranges and marks the window; starts no tool and collects nothing."""

    NAME: ClassVar[str] = "nvtx"
    LEAVES_FILES: ClassVar[bool] = False

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError where such ranges cannot be made here."""
        check_ranges(self.ranges, trial.device)

    def environment(self, scope: Scope) -> dict[str, str]:
        """Let the --capture-range=nvtx of an nsys that the user starts match strings that are not registered, too."""
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
