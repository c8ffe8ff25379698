"""`bertbench core-util FILE...`: how busy the kinds of cores were, from CSVs and reports of Nsight Compute."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from analysis.counters import KernelCounters, joined
from analysis.diagnose.explain import explain, to_do
from analysis.open import Source, open_sources
from analysis.render.tables import Plain, Table, of_frame
from analysis.render.terminal import Screen
from bench.cli.options import Tables
from bench.cli.result import REST, Result, findings_result, on_screen
from bench.profilers import ncu_metrics
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import pandas as pd

_MOST_FILES = 3  # a screen has no room for the lines of many
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

    files: tyro.conf.Positional[tuple[Path, ...]]
    """CSV files or reports of Nsight Compute, or folders of them."""
    by: Literal["kernel", "family", "phase", "batch"] | None = None
    """Print a table by kernel, kernel family, phase of the step (from NVTX ranges), or batch size (from names such as
    batch_16.csv); default a line per pipeline."""
    window_ms: float | None = None
    """Duration of the same steps without the profiler, in ms: adds the utilization over that time, idle time included;
    default utilization while kernels ran only."""

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if not self.files:
            raise UsageError("option-missing", "core-util needs the output of `ncu --csv`: core-util FILE.csv")
        if self.window_ms is not None and not 0 < self.window_ms < 1e15:
            raise UsageError("option-value", f"--window-ms {self.window_ms}: give the length of the steps in ms")


OPTIONS = {"core-util FILE.csv...": CoreUtilOptions}


def run(options: CoreUtilOptions) -> Result:
    """Read the counters; show four lines per file with the largest kernels, or the table that --by names."""
    from analysis.diagnose import cores
    from analysis.metrics.kernels.core_utilization import FOUR, core_use

    window_ns = None if options.window_ms is None else options.window_ms * 1e6
    by = "batch" if options.by is None and any(path.is_dir() for path in options.files) else options.by
    read = open_sources(*_files(options.files))
    if not read.counters:
        what = f"{options.files[0]} holds {' and '.join(read.kinds)} and no counters of Nsight Compute"
        raise InputError("file-format", f"{what}: give the output of `ncu --csv`, or a report")
    files, counters = read.counter_files, read.counters
    uses = [core_use(part, window_ns).loc[[*FOUR]] for part in counters]
    if all(use["metric"].isna().all() for use in uses):
        raise _without_pipes(files, counters[0].compute_capability)
    sizes = [int(match[1]) for file in files if (match := _SIZE.search(file.name))]
    sized, devices = len(sizes) == len(files), {(part.device_name, part.compute_capability) for part in counters}
    if by == "batch" and not sized:
        raise InputError("option-missing", "--by batch needs the size of every file: name them batch_<size>.csv")
    is_one_run = len(counters) > 1 and len(devices) == 1 and not (sized and len(set(sizes)) > 1)
    whole = joined(counters) if is_one_run else None
    parts = counters if whole is None else (whole,)
    source = Source(path=files[0], counters=parts, counter_files=files[: len(parts)])
    findings = explain(source, window_ns)
    advice = to_do(source, findings)
    if by == "batch" or (sized and len(set(sizes)) > 1):
        findings.append(cores.by_batch(counters, sizes, window_ns))
    if by is not None:
        name = "kernels" if by == "kernel" else f"core_utilization_by_{by}"
        findings = [one for one in findings if one.name.startswith(name)]
        findings = findings or [cores.by_phase(counters[0])]  # which says why there is none
    problems = [text for text in read.problems if not any(text in part.problems for part in counters)]
    for file, part, use in zip(files, counters, uses, strict=True):
        groups = use.groupby("reason", sort=False).groups
        texts = [*part.problems, *(f"{', '.join(pipes)}: {reason}" for reason, pipes in groups.items() if reason)]
        problems += [f"{file.name}: {text}" for text in texts] if len(files) > 1 else texts
    result = findings_result(findings, list(dict.fromkeys(problems)), options, advice, title="bertbench core-util")
    if by is not None:
        return result
    blocks = [_block(use, str(file) if len(files) > 1 else "") for file, use in zip(files, uses, strict=True)]
    if whole is not None:
        blocks[_MOST_FILES:] = [_block(core_use(whole, window_ns), f"all {len(counters)} files")]
    screen = Screen(advice=advice, details=_kernels(whole or counters[0], window_ns), rest=REST)
    height = sum(block.count("\n") + 2 for block in blocks)
    rest = result.blocks if options.full else on_screen(screen, result.problems, height)
    return dataclasses.replace(result, blocks=[*map(Plain, blocks), *rest])


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, of a folder those of batch sizes."""
    files: list[Path] = []
    for path in paths:
        sizes = {file: int(match[1]) for file in path.glob("batch_*") if (match := _SIZE.search(file.name))}
        files += sorted(sizes, key=lambda file: (sizes[file], file)) if path.is_dir() else [path]
        if path.is_dir() and not sizes:
            raise InputError("file-empty", f"{path} has no file batch_<size>.csv: name the files of Nsight Compute")
    return files


def _without_pipes(files: Sequence[Path], capability: tuple[int, int] | None) -> InputError:
    from analysis.metrics.kernels.core_utilization import FOUR
    from analysis.metrics.kernels.ncu_metrics import metrics_of

    pipes = {metric for pipe in FOUR for metric in metrics_of(pipe, capability)}
    collected, _ = ncu_metrics.metrics_of(capability or (8, 0))
    wanted = ",".join(one for one in collected if one == "gpu__time_duration.sum" or one.partition(".")[0] in pipes)
    named = ", ".join(map(str, files))
    return InputError(
        "metrics-missing", f"{named}: no metric of the four pipes; collect them with ncu --csv --metrics {wanted}"
    )


def _kernels(counters: KernelCounters, window_ns: float | None) -> Table:
    """Return the pipes of the kernels that take longest, in percent: all four fit 80 characters."""
    from analysis.diagnose import cores

    kernels = cores.by_kernel(counters, window_ns)
    table = kernels.table.drop(columns=["launches", "timed", "time_ms"], errors="ignore")
    for name in [str(name) for name in table if str(name).endswith("utilization")]:
        table[f"{name.partition('_')[0]}_percent"] = 100 * table.pop(name)
    return of_frame(kernels.name, table, "Utilization of the pipes by kernel")


def _block(use: "pd.DataFrame", title: str) -> str:
    """Return a line for each pipe; unknown is one that was counted without a result."""
    from analysis.diagnose.cores import NOT_IN_FILE
    from analysis.metrics.kernels.core_utilization import FOUR

    lines = [title] if title else []
    for name in FOUR:
        percent, in_window = (float(use[column][name]) for column in ("percent", "in_window_percent"))
        unknown = "unknown" if isinstance(use["metric"][name], str) else NOT_IN_FILE
        text = f"{percent:.2f} %" if percent >= 0 else unknown
        lines.append(f"{name} {text}" + (f" ({in_window:.2f} % of the window)" if in_window >= 0 else ""))
    return "\n".join(lines)
