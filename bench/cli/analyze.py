"""`bertbench analyze PATH...` finds out what it is, prints the right tables; `core-util`, `allreduce`: views of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view, when_writable
from bench.profilers.ncu import metrics_of
from bench.sweep.options import POSITIVE
from common.errors import InputError, UsageError
from common.flags import Positional
from records.run import is_run


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyzeOptions(Tables):
    """Explain what a profiler recorded. PATH is a trace, a table of counters, a log, a folder of ranks, a tar, a
    profiled trial, or a run directory. The kind is detected from the content.

    Examples:
        bertbench analyze runs/profile
        bertbench analyze trace.json.gz --window range:forward  # only what ran while this range was open
        bertbench analyze runs/profile --perfetto timeline.json.gz  # every event, for https://ui.perfetto.dev
    """

    paths: Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""
    window: str = "steps"
    """Part of a trace to analyze: steps is the marked steps; kernels extends to the end of the last GPU kernel; step:5
    and step:5..8 choose steps, range:NAME a named range (* matches any text), 1.2s..3.4s a time (s, ms or us)."""
    perfetto: Path | None = None
    """Also write all ranks to this file (.json.gz or .json) for https://ui.perfetto.dev, with tracks for steps, phases,
    computation, communication, exposed communication and idle time; default no file."""


def run_analyze(options: AnalyzeOptions) -> Result:
    """Read and explain; exit code 3 when some trials of a run directory could not be read."""
    from analysis import run_views
    from analysis.views import analyze, write_timeline

    (path, *more), output = options.paths, options.perfetto
    for given in options.paths if output else ():  # the output would replace it, or join it as another rank
        if output and given.resolve() in (output.resolve(), *output.resolve().parents):
            raise UsageError("option-conflict", f"--perfetto {output} is part of {given}: write it to another folder")
    one_run = not more and is_run(path)
    view = run_views.analyze(path, options.window) if one_run else analyze(options.paths, options.window)
    written, failure = when_writable(lambda: write_timeline(view, path, output)) if output else ((), None)
    several = f"One profile: bertbench analyze {path}/trials/ID. " if view.document.get("profiles") else ""
    rest = f"{several}{ALL_TABLES} As a page: bertbench report {path}"
    result = of_view(view, options, f"bertbench analyze {path}", rest, 3 if view.verdict == "incomplete" else 0)
    return replace(result, written=[*result.written, *written], failure=result.failure or failure)


_SIZE = re.compile(r"batch[_-]?(?:size[_-]?)?(\d{1,9})(?!\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreUtilOptions(Tables):
    """Print the utilization of the FMA, FP16, Tensor and SFU pipelines: the fraction of their peak rate while kernels
    ran, weighted by cycles. FILE is the output of `ncu --csv` (details or raw page) or a report (.ncu-rep, needs the
    package ncu-report), also as .gz. Several files get a block each, and one block for all of them where they can
    belong to one run: the same device and batch size. A folder stands for its batch_*.csv, with a row per batch size.

    Examples:
        bertbench core-util batch_16.csv
        bertbench core-util batch_16.csv batch_32.csv --by batch  # a row per batch size
        bertbench core-util pretrain_profiled_data_ncu  # the same for all batch_*.csv of a folder
    """

    files: Positional[tuple[Path, ...]]
    """CSV files or reports of Nsight Compute, or folders of them."""
    by: Literal["kernel", "family", "batch"] | None = None
    """Print a table by kernel, kernel family, or batch size (from names such as batch_16.csv); default a line per
    pipeline."""
    window_ms: Annotated[float | None, POSITIVE] = None
    """Duration of the same steps without the profiler, in ms: adds the utilization over that time, idle time included;
    default utilization while kernels ran only."""


def run_core_util(options: CoreUtilOptions) -> Result:
    """Read the counters; show four lines per file with the largest kernels, or the table that --by names."""
    from analysis.views import core_utilization

    window_ns = None if options.window_ms is None else options.window_ms * 1e6
    by = "batch" if options.by is None and any(path.is_dir() for path in options.files) else options.by
    view = core_utilization(_files(options.files), by, window_ns, lambda chip: metrics_of(chip or (8, 0)))
    return of_view(view, options, "bertbench core-util", ALL_TABLES)


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, of a folder those of batch sizes."""
    files: list[Path] = []
    for path in paths:
        sizes = {file: int(match[1]) for file in path.glob("batch_*") if (match := _SIZE.search(file.name))}
        if path.is_dir() and not sizes:
            raise InputError("file-empty", f"{path} has no file batch_<size>.csv: name the files of Nsight Compute")
        files += sorted(sizes, key=lambda file: (sizes[file], file)) or [path]
    return files


@dataclass(frozen=True, kw_only=True, slots=True)
class AllreduceOptions(Tables):
    """Break down the cost of communication: per rank and collective, overlapped and exposed time, transfer and waiting,
    and stragglers. PATH is a trace, a folder of ranks, a tar, an nsys export, a profiled trial or a run directory; of
    an nsys summary of kernels (CSV), the share of communication in the kernels' time.

    Examples:
        bertbench allreduce runs/profile
        bertbench allreduce rank0.json rank1.json  # separates transfer from waiting
    """

    paths: Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""


def run_allreduce(options: AllreduceOptions) -> Result:
    """Read the traces and break down communication; a trace without any is no error."""
    from analysis.views import allreduce

    path, view = options.paths[0], allreduce(options.paths)
    return of_view(view, options, f"bertbench allreduce {path}", f"{ALL_TABLES} As a page: bertbench report {path}")


OPTIONS = {
    "analyze PATH...": AnalyzeOptions,
    "core-util FILE...": CoreUtilOptions,
    "allreduce PATH...": AllreduceOptions,
}
