"""nvprof, for GPUs older than compute capability 8.0: one .nvvp file (SQLite) and one log per process.

`nvprof` wraps the launcher of a node, follows it into the ranks, and records between cudaProfilerStart and
cudaProfilerStop. CUDA toolkits up to 12 include it; it supports no GPU from Ampere on (CUDA Profiler User's Guide).
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from bench.machine.environment import first_gpu_capability
from bench.profilers.base import Scope
from bench.profilers.permission import ALLOW, DENIED
from bench.profilers.ranges import RangeProfiler, check_ranges
from common.errors import Code, InputError, UsageError
from common.tools import dotted, find_tool
from records.trial import Trial

NEWER: tuple[int, int] = (8, 0)
"""The first compute capability that nvprof does not support."""

_INSTEAD = "use --profiler nsys (timeline) or --profiler ncu (counters)"
_REMEDY = f"install a CUDA toolkit before 13 and add its bin folder to PATH, or {_INSTEAD}"


class Nvprof(RangeProfiler):
    """Wraps the launcher of a node with `nvprof`."""

    NAME: ClassVar[str] = "nvprof"

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError, with the remedy, if nvprof cannot profile `trial` here."""
        if trial.device != "cuda":
            raise UsageError(
                "option-not-applicable",
                f"--profiler nvprof needs a GPU, but this trial runs on the CPU: {_INSTEAD} on a GPU, or "
                "--profiler torch for CPU operators",
            )
        capability = first_gpu_capability()
        if isinstance(capability, str):
            raise UsageError(
                "device-missing",
                f"nvprof needs a GPU older than compute capability {dotted(NEWER)}, but that of this GPU is unknown "
                f"({capability}): {_INSTEAD}",
            )
        if capability >= NEWER:
            raise UsageError(
                "device-unsupported",
                f"this GPU has compute capability {dotted(capability)}, but nvprof needs less than {dotted(NEWER)}: "
                f"{_INSTEAD}",
            )
        find_tool("nvprof", _REMEDY)
        check_ranges(self.ranges, trial.device)

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return `nvprof ... argv`."""
        nvprof = str(find_tool("nvprof", _REMEDY))
        folder = str(scope.directory).replace("%", "%%")  # nvprof replaces %p by the process id
        return [
            nvprof,
            "--profile-child-processes",
            *("--profile-from-start", "off"),
            *("--unified-memory-profiling", "off"),  # fails on GPUs without peer access; BERT does not use it
            "--force-overwrite",
            *("--export-profile", f"{folder}/nvprof-%p.nvvp"),
            *("--log-file", f"{folder}/nvprof-%p.log"),
            *argv,
        ]

    def collect(self, scope: Scope) -> list[Path]:
        """Return the .nvvp file of every rank; processes without GPU work are skipped.

        Raises:
            InputError: the driver denied permission, or a rank has no complete file.
        """
        logs = sorted(scope.directory.glob("nvprof-*.log"))
        texts = {log: log.read_text(encoding="utf-8", errors="replace") for log in logs}
        for log, text in texts.items():
            if DENIED in text:
                raise InputError(
                    "permission-missing",
                    f"nvprof has no permission to profile the GPU ({DENIED} in {log}): {ALLOW}",
                )
        found = {file: _activities(file) for file in sorted(scope.directory.glob("nvprof-*.nvvp"))}
        good = [file for file, activities in found.items() if isinstance(activities, int) and activities > 0]
        if len(good) < scope.trial.ranks:
            raise _too_few(scope, len(good), found, texts)
        return good


_EMPTY = "is empty"


def _activities(file: Path) -> int | str:
    if file.stat().st_size == 0:
        return _EMPTY
    wanted = ("KERNEL", "CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            present = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            tables = [f"CUPTI_ACTIVITY_KIND_{name}" for name in wanted]
            counts = [f"SELECT count(*) FROM {name}" for name in tables if name in present]  # noqa: S608 # nosec B608 # constants
            return sum(int(database.execute(count).fetchone()[0]) for count in counts)
    except sqlite3.Error as error:
        return f"is damaged ({error})"


def _too_few(scope: Scope, good: int, found: Mapping[Path, int | str], texts: Mapping[Path, str]) -> InputError:
    damaged = [f"{file.name} {problem}" for file, problem in found.items() if isinstance(problem, str)]
    complaints = [
        line for text in texts.values() for line in text.splitlines() if "Error:" in line or "Warning:" in line
    ]
    code: Code
    if damaged:
        code = (
            "file-empty"
            if all(problem == _EMPTY for problem in found.values() if isinstance(problem, str))
            else "file-damaged"
        )
        why = f"{', '.join(damaged)}: the disk was full, or nvprof was killed while writing; record again"
    elif found:
        code = "trace-without-work"
        why = "the others have no GPU work: the run ended before the window, or the ranks ran on the CPU"
    else:
        code = "run-incomplete"
        why = "nvprof wrote no file: the run ended before the end of the window"
    said = f"; nvprof reported: {' | '.join(complaints[:3])}" if complaints else ""
    ranks = f"{scope.trial.ranks} rank{'' if scope.trial.ranks == 1 else 's'}"
    log = scope.directory.parent / "log.txt"
    return InputError(code, f"{scope.directory} has {good} usable .nvvp for {ranks}; {why}{said}; see {log}")
