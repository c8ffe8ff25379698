"""nvprof, for GPUs older than compute capability 8.0: one .nvvp file (SQLite) and one log per process.

`nvprof` wraps the launcher of a node, follows it into the ranks, and records between cudaProfilerStart and
cudaProfilerStop. CUDA toolkits up to 12 include it; it supports no GPU from Ampere on (CUDA Profiler User's Guide).
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from bench.machine.devices import first_gpu_capability
from bench.profilers.tool import ToolProfiler, nothing_usable
from common.errors import UsageError
from records.trial import Trial

_INSTEAD = "use --profiler nsys (timeline) or --profiler ncu (counters)"


class Nvprof(ToolProfiler):
    """Wraps the launcher of a node with `nvprof`."""

    NAME: ClassVar[str] = "nvprof"
    REMEDY: ClassVar[str] = f"install a CUDA toolkit before 13 and add its bin folder to PATH, or {_INSTEAD}"
    GPU_ONLY: ClassVar[bool] = True

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError, with the remedy, if nvprof cannot profile `trial` here."""
        super().check(trial)
        capability = first_gpu_capability()
        if isinstance(capability, str) or capability >= (8, 0):
            problem = f"nvprof needs a GPU of compute capability below 8.0, but this one has {capability}"
            raise UsageError("device-unsupported", f"{problem}: {_INSTEAD}")

    def wrap(self, argv: list[str], trial: Trial, folder: Path) -> list[str]:
        """Return `nvprof ... argv`."""
        place = str(folder).replace("%", "%%")  # nvprof replaces %p by the process id
        return [
            self.path,
            "--profile-child-processes",
            *("--profile-from-start", "off"),
            *("--unified-memory-profiling", "off"),  # fails on GPUs without peer access; BERT does not use it
            "--force-overwrite",
            *("--export-profile", f"{place}/nvprof-%p.nvvp"),
            *("--log-file", f"{place}/nvprof-%p.log"),
            *argv,
        ]

    def collect(self, trial: Trial, folder: Path) -> list[Path]:
        """Return the .nvvp file of every rank; processes without GPU work are skipped. Raises InputError."""
        files = [file for file in sorted(folder.glob("nvprof-*.nvvp")) if _has_kernels(file)]
        if len(files) < trial.ranks:
            what = f".nvvp with GPU work of {trial.ranks - len(files)} of {trial.ranks} ranks"
            raise nothing_usable(folder, what, tuple(sorted(folder.glob("nvprof-*.log"))))
        return files


def _has_kernels(file: Path) -> bool:
    """Return whether a file is whole and has kernels: nvprof names their table by whether they may run side by side."""
    try:
        with closing(sqlite3.connect(file)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI_%_KERNEL'").fetchall()
            counts = (f"SELECT count(*) FROM {name}" for (name,) in tables)  # noqa: S608 # nosec B608 # constants
            return any(database.execute(count).fetchone()[0] for count in counts)
    except sqlite3.Error:  # cut short: the disk was full, or nvprof was killed
        return False
