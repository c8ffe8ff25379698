"""NVTX ranges and nothing else: for a tool that the user starts around `bertbench` himself."""

from collections.abc import Mapping
from typing import ClassVar

from analysis.records import Trial
from bench.profilers.base import Profiler, Scope
from bench.profilers.ranges import RangeObserver, check_ranges
from bert.observer import Observer


class NvtxOnly(Profiler):
    """Makes the ranges and marks the window; starts no tool and collects nothing."""

    LEAVES_FILES: ClassVar[bool] = False
    OPTIONS: ClassVar[Mapping[str, str]] = {"nvtx": "which NVTX ranges: bertbench, emit, dlprof, off"}

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError where such ranges cannot be made here."""
        check_ranges(self._kind, trial.device)

    def environment(self, scope: Scope) -> dict[str, str]:
        """Let the --capture-range=nvtx of an nsys that the user starts match strings that are not registered, too."""
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return what makes the ranges."""
        return RangeObserver(rank, scope.start, scope.stop, self._kind)

    @property
    def _kind(self) -> str:
        return self.options.get("nvtx", "bertbench")
