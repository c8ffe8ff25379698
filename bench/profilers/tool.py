"""Profilers that are programs of NVIDIA: find them, run them with a time limit, say why they left nothing.

Each records the capture range [start, stop), which bench.profilers.range_observer marks by NVTX and, on GPUs, by
cudaProfilerStart and cudaProfilerStop.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from bench.profilers import Profiler, window
from bert.observer import Observer
from common.errors import InputError, MissingToolError, UsageError
from common.tools import Version, dotted, find_tool, need, run_program, version_in
from records.trial import Trial

DOMAIN = "bertbench"
CAPTURE = "bertbench:capture"
DENIED = "ERR_NVGPUCTRPERM"
"""Error of NVIDIA's tools without permission: https://developer.nvidia.com/ERR_NVGPUCTRPERM."""
ALLOW = (
    "start the container with start_container.sh --profiling, have the administrator set "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root (docs/how-to/container.md)"
)
"""How to get permission."""
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
_COMPLAINT = re.compile(r"==ERROR==|==WARNING==|==\d+== (?:Error|Warning)|No space left|[Ii]mport(?:er|ation)")
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38


class ToolProfiler(Profiler):
    """A program that wraps the launcher of a node."""

    REMEDY: ClassVar[str]
    """How to get the tool."""
    OLDEST: ClassVar[Version] = ()
    GPU_ONLY: ClassVar[bool] = False
    # Nsight Systems ignores unregistered strings as the capture range otherwise; Python's nvtx sends them.
    ENVIRONMENT: ClassVar[Mapping[str, str]] = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}

    @cached_property
    def path(self) -> str:
        """Where it is. Raises MissingToolError."""
        return str(find_tool(self.NAME, self.REMEDY))

    @cached_property
    def version(self) -> Version:
        """Such as (2022, 4, 2); () if it is unknown."""
        return version_in(self.run("--version", timeout_seconds=60)) or ()

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if it cannot profile `trial` here."""
        if self.GPU_ONLY and trial.device != "cuda":
            raise UsageError(
                "option-not-applicable",
                f"--profiler {self.NAME} needs a GPU, but this trial runs on the CPU: use --profiler torch, or "
                "--profiler nsys for NVTX ranges",
            )
        need(f"--profiler {self.NAME}", "gpu", "nvtx")
        if self.version < self.OLDEST:
            found = f"{self.NAME} {dotted(self.version)} at {self.path}"
            raise MissingToolError("tool-version", f"{found} is too old: {self.REMEDY}")

    def observer(self, trial: Trial, folder: Path, rank: int) -> Observer:
        """Return the observer that makes the ranges and calls cudaProfilerStart and cudaProfilerStop."""
        from bench.profilers.range_observer import RangeObserver

        return RangeObserver(rank, *window(trial))

    def run(self, *words: str, timeout_seconds: float) -> str:
        """Run the tool and return its standard output. Raises InputError in its own words if it fails."""
        done = run_program([self.path, *words], timeout_seconds)
        if done.exit_code != 0:
            problem = f"{self.NAME} {words[0]} failed (exit code {done.exit_code})"
            raise InputError("tool-failed", f"{problem}: {done.message}")
        return done.stdout


def check_written(file: Path) -> None:
    """Raise InputError if a file is empty or not there."""
    if not file.exists() or file.stat().st_size == 0:
        raise InputError("file-empty", f"{file} is empty: the disk was full or the profiler was killed; record again")


def nothing_usable(folder: Path, what: str, logs: tuple[Path, ...] = ()) -> InputError:
    """Return why a tool left no `what`: the permission that it lacks, or its complaints in log.txt and `logs`."""
    log = folder.parent / "log.txt"
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in (log, *logs) if path.exists())
    lines = [line.strip() for text in texts for line in text.splitlines() if _COMPLAINT.search(line)]
    problem = f"{folder} has no {what}" + (f" ({'; '.join(dict.fromkeys(lines[-3:]))})" if lines else "")
    if any(DENIED in line for line in lines):
        return InputError("permission-missing", f"{problem}: {ALLOW}")
    return InputError("run-incomplete", f"{problem}: see {log}")


def counters_denied() -> str | None:
    """Return why this process may not read the GPUs' counters; None if it may, or if unknown."""
    driver, status = (path.read_text(encoding="utf-8") if path.exists() else "" for path in (DRIVER_PARAMETERS, STATUS))
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    if "RmProfilingAdminOnly: 1" not in driver or capabilities is None:
        return None
    allowed = int(capabilities[1], 16) & (1 << _CAP_SYS_ADMIN | 1 << _CAP_PERFMON)
    return None if allowed else "the driver restricts the counters to administrators (RmProfilingAdminOnly is 1)"
