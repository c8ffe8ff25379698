"""Nsight Systems: one report per node with all its ranks, exported to SQLite and summary CSVs.

`nsys profile` wraps the launcher of the node and records the capture range, marked by cudaProfilerStart/Stop on GPUs
and by an NVTX range on a CPU. Its switches follow its --help, so that versions 2022.4 to 2026 work.
"""

import contextlib
import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from bench.profilers.base import Scope, written
from bench.profilers.ranges import CAPTURE, DOMAIN, check_ranges
from bench.profilers.tool import ToolProfiler, run_tool
from common.errors import Code, InputError, MissingToolError, UsageError
from common.nsys import EXPORT_SECONDS, export_arguments, switches
from common.tools import Version, dotted
from records.trial import Trial

OLDEST: Version = (2022, 4)
# The exported reports of `nsys stats`, by their name up to 2022 and since 2023.
REPORTS = {
    "gpukernsum": "cuda_gpu_kern_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "cudaapisum": "cuda_api_sum",
    "nvtxsum": "nvtx_sum",
    "osrtsum": "osrt_sum",
}
# Without these, nsys would record the wrong part of the run or write to another file.
_NEEDED = ("--trace", "--capture-range", "--capture-range-end", "--force-overwrite", "--output")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class NsightSystems(ToolProfiler):
    """Wraps the launcher of a node with `nsys profile`."""

    NAME: ClassVar[str] = "nsys"
    REMEDY: ClassVar[str] = (
        "install Nsight Systems 2022.4 or newer (NVIDIA's apt repository; Debian non-free: nsight-systems), or start "
        "the container with start_container.sh; --profiler torch needs no tool"
    )
    HELP: ClassVar[tuple[str, ...]] = ("profile", "--help")
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **ToolProfiler.OPTIONS,
        "sampling": "also sample CPU stacks (off by default: it adds overhead, and hangs on some virtual machines)",
        "trace": "comma-separated APIs that nsys traces (cuda,nvtx,osrt,cublas,cudnn; on a CPU nvtx,osrt)",
    }

    @cached_property
    def _switches(self) -> frozenset[str]:
        return switches(self._help)

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if nsys cannot profile here."""
        check_ranges(self.ranges, trial.device)
        self._check_version(OLDEST, "", _NEEDED)
        _check_importer(self._path)
        _check_nvtx(self._version)
        if "sampling" in self.options:
            _check_sampling()
        if self.options.get("trace"):
            _check_trace(self.options["trace"], traceable(self._help))

    def environment(self, scope: Scope) -> dict[str, str]:
        """Allow unregistered strings as the capture range, since Python's nvtx sends them."""
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return `nsys profile ... argv`."""
        on_gpu = scope.trial.device == "cuda"
        trace = self.options.get("trace") or ("cuda,nvtx,osrt,cublas,cudnn" if on_gpu else "nvtx,osrt")
        wanted = {
            "--trace": trace,
            "--sample": "process-tree" if "sampling" in self.options else "none",
            "--cpuctxsw": "process-tree" if "sampling" in self.options else "none",
            "--capture-range": "cudaProfilerApi" if on_gpu else "nvtx",
            "--nvtx-capture": None if on_gpu else f"{CAPTURE}@{DOMAIN}",
            "--capture-range-end": "stop",
            "--cuda-graph-trace": "node" if on_gpu else None,
            "--cuda-memory-usage": "false" if on_gpu else None,
            "--kill": "none",  # the run continues and records all steps
            "--force-overwrite": "true",
            "--output": str(_report(scope.directory)).replace("%", "%%"),  # nsys expands %h, %p and others
        }
        options = [f"{name}={value}" for name, value in wanted.items() if value is not None and name in self._switches]
        return [str(self._path), "profile", *options, *argv]

    def collect(self, scope: Scope) -> list[Path]:
        """Export the report of the node; return it, the SQLite file and the non-empty CSVs.

        Raises:
            InputError: there is no report, or it cannot be exported.
        """
        report = _report(scope.directory)
        if not report.exists():
            raise _no_report(scope)
        written([report], "report", scope.directory)
        database = report.with_suffix(".sqlite")
        nsys = str(self._path)
        help_text = run_tool([nsys, "export", "--help"], timeout_seconds=60, any_exit_code=True)
        run_tool([nsys, *export_arguments(help_text, report, database)], EXPORT_SECONDS)
        written([database], "SQLite export", scope.directory)
        _forget_environment(database)
        return [report, database, *self._summaries(database)]

    def _summaries(self, database: Path) -> list[Path]:
        """Write the summary CSVs; empty tables make no file, and failed summaries are skipped."""
        nsys, base = str(self._path), database.with_suffix("")
        names: list[str] = []
        with contextlib.suppress(InputError):  # the CSVs are only a convenience; the export is complete
            names = report_names(run_tool([nsys, "stats", "--help-reports"], timeout_seconds=60, any_exit_code=True))
            options = ["--quiet", "--force-overwrite=true", "--format=csv", f"--report={','.join(names)}"]
            if names:
                run_tool([nsys, "stats", *options, f"--output={base}", str(database)], EXPORT_SECONDS)
        files = [base.with_name(f"{base.name}_{name}.csv") for name in names]
        for file in files:
            if file.exists() and file.stat().st_size == 0:
                file.unlink()
        return [file for file in files if file.exists()]


def _forget_environment(database: Path) -> None:
    """Remove the environment variables of the program from an export."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")
        connection.commit()
        connection.execute("VACUUM")


def traceable(help_text: str) -> tuple[str, ...]:
    """Return the APIs that `nsys profile --help` lists under --trace, such as "cuda", "nvtx"; () if it lists none."""
    part = re.search(r"^\s+-t, --trace\b[^\n]*$(.*?)(?=^\s+(?:-\w, )?--[a-z]|\Z)", help_text, re.MULTILINE | re.DOTALL)
    return tuple(dict.fromkeys(re.findall("'([a-z0-9-]+)'", part[1]))) if part else ()


def report_names(help_text: str) -> list[str]:
    """Return the names of REPORTS in this version, from the output of `nsys stats --help-reports`."""
    listed = set(re.findall(r"^\s+([a-z_0-9]+)(?:\[|\s--)", help_text, re.MULTILINE))
    return [name for pair in REPORTS.items() for name in reversed(pair) if name in listed]


def _report(directory: Path) -> Path:
    return directory / "node0.nsys-rep"


def _check_importer(path: Path) -> None:
    """Raise MissingToolError if the link that Debian's package lacks is missing; nsys then writes no report."""
    home = Path("/usr/lib/x86_64-linux-gnu/nsight-systems")
    debian = Path("/usr/lib/nsight-systems/host-linux-x64")
    if path == Path("/usr/bin/nsys") and debian.is_dir() and home.is_dir() and not (home / debian.name).exists():
        raise MissingToolError(
            "tool-missing",
            f"Debian's nsys needs a link to write reports: sudo ln -s {debian} {home / debian.name}",
        )


def _check_nvtx(version: Version) -> None:
    """Raise MissingToolError for nsys before 2023 with nvtx 0.2.12 or newer, whose ranges it does not see."""
    from importlib import metadata

    own = metadata.version("nvtx")
    if version[0] < 2023 and tuple(int(part) for part in re.findall(r"\d+", own)[:3]) >= (0, 2, 12):
        raise MissingToolError(
            "tool-version",
            f"nsys {dotted(version)} does not see the ranges of nvtx {own}: "
            "pip install nvtx==0.2.11, or install nsys 2023 or newer",
        )


def _check_sampling() -> None:
    try:
        level = int(_PARANOID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if level > 2:
        raise UsageError(
            "permission-missing",
            f"--with sampling needs {_PARANOID} of 2 or less, not {level}: "
            "sudo sysctl kernel.perf_event_paranoid=2, or omit the option",
        )


def _check_trace(given: str, known: Sequence[str]) -> None:
    names = given.split(",")
    unknown = [name for name in names if known and name not in known]
    if unknown:
        raise UsageError(
            "option-choice", f"--with trace={given}: nsys cannot trace '{unknown[0]}'; use one of {', '.join(known)}"
        )
    if "none" in names:
        raise UsageError(
            "option-value", f"--with trace={given} traces nothing: name at least one API, or omit the option"
        )


def _no_report(scope: Scope) -> InputError:
    code: Code = "run-incomplete"
    log = scope.directory.parent / "log.txt"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "Capture range started" not in text:
        code = "trace-without-work"
        why = "the capture did not begin: the run ended first, or nsys did not see its NVTX ranges"
    elif "No space left" in text:
        code, why = "disk-full", "the disk is full"
    else:
        why = "the capture began, but nsys was killed before it wrote the report"
    return InputError(code, f"nsys wrote no report into {scope.directory}: {why}; see {log}")
