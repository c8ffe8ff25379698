"""Nsight Systems: one report per node with all its ranks, exported to SQLite.

`nsys profile` wraps the launcher of the node and records the capture range, marked by cudaProfilerStart/Stop on GPUs
and by an NVTX range on a CPU. Its switches are those of the versions 2022.4 to 2026.
"""

import contextlib
import re
import sqlite3
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from bench.profilers.tool import CAPTURE, DOMAIN, ToolProfiler, check_written, nothing_usable
from common.errors import MissingToolError
from common.nsys import EXPORT_SECONDS, export_arguments
from common.tools import Version, dotted
from records.trial import Trial

_REPORT = "node0.nsys-rep"


class NsightSystems(ToolProfiler):
    """Wraps the launcher of a node with `nsys profile`."""

    NAME: ClassVar[str] = "nsys"
    REMEDY: ClassVar[str] = (
        "install Nsight Systems 2022.4 or newer (NVIDIA's apt repository; Debian non-free: nsight-systems), or start "
        "the container with start_container.sh; --profiler torch needs no tool"
    )
    OLDEST: ClassVar[Version] = (2022, 4)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "sampling": "also sample CPU stacks (off by default: it adds overhead, and hangs on some virtual machines)",
        "trace": "comma-separated APIs that nsys traces (cuda,nvtx,osrt,cublas,cudnn; on a CPU nvtx,osrt)",
    }

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if nsys cannot profile here."""
        super().check(trial)
        nvtx = metadata.version("nvtx")
        if self.version[0] < 2023 and tuple(int(part) for part in re.findall(r"\d+", nvtx)[:3]) >= (0, 2, 12):
            raise MissingToolError(
                "tool-version",
                f"nsys {dotted(self.version)} does not see the ranges of nvtx {nvtx}: pip install nvtx==0.2.11, or "
                "install nsys 2023 or newer",
            )

    def wrap(self, argv: list[str], trial: Trial, folder: Path) -> list[str]:
        """Return `nsys profile ... argv`."""
        on_gpu = trial.device == "cuda"
        trace = self.options.get("trace") or ("cuda,nvtx,osrt,cublas,cudnn" if on_gpu else "nvtx,osrt")
        sampling = "process-tree" if "sampling" in self.options else "none"
        capture = ["--capture-range=cudaProfilerApi"]
        if not on_gpu:
            capture = ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE}@{DOMAIN}"]
        return [
            *(self.path, "profile", f"--trace={trace}", f"--sample={sampling}", f"--cpuctxsw={sampling}"),
            *(*capture, "--capture-range-end=stop"),
            *(["--cuda-graph-trace=node", "--cuda-memory-usage=false"] if on_gpu else []),
            "--kill=none",  # the run continues and records all steps
            "--force-overwrite=true",
            f"--output={folder / _REPORT}".replace("%", "%%"),  # nsys expands %h, %p and others
            *argv,
        ]

    def collect(self, trial: Trial, folder: Path) -> list[Path]:
        """Export the report of the node; return it and the SQLite file. Raises InputError."""
        report = folder / _REPORT
        if not report.exists():
            raise nothing_usable(folder, "report of nsys, which may not have seen the NVTX range of the window")
        check_written(report)
        database = report.with_suffix(".sqlite")
        self.run(*export_arguments(report, database), timeout_seconds=EXPORT_SECONDS)
        check_written(database)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")  # the program's environment
            connection.commit()
            connection.execute("VACUUM")
        return [report, database]
