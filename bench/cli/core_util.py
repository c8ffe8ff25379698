"""`bertbench core-util FILE...`: how busy the kinds of cores were, from CSVs and reports of Nsight Compute."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view
from bench.profilers.ncu import metrics_of
from bench.sweep.options import POSITIVE
from common.errors import InputError
from common.flags import Positional

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


OPTIONS = {"core-util FILE.csv...": CoreUtilOptions}


def run(options: CoreUtilOptions) -> Result:
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
