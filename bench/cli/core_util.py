"""`bertbench core-util FILE...`: how busy the kinds of cores were, from CSVs and reports of Nsight Compute."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from analysis.counters import KernelCounters, joined
from analysis.diagnose import cores as core_findings
from analysis.diagnose.advice import ranked
from analysis.diagnose.finding import Finding, distinct, file_stem
from analysis.metrics.kernels.core_utilization import FOUR, CoreUse, core_use, rows
from analysis.metrics.kernels.ncu_metrics import metrics_of
from analysis.render.tables import Plain, finding_blocks, of_frame
from bench.cli.options import Tables
from bench.cli.result import REST, Result, document, findings_result, markdown_into, on_screen, tables_into
from bench.profilers import ncu_metrics
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from analysis.render.screen import Screen

# Whose metrics are named for a file that does not tell the GPU.
_ANY_CAPABILITY = (8, 0)
_MOST_FILES = 3
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
            raise UsageError(
                "option-missing", "core-util needs files: give the output of `ncu --csv`, as in core-util FILE.csv"
            )
        if self.window_ms is not None and not 0 < self.window_ms < 1e15:
            raise UsageError(
                "option-value", f"--window-ms {self.window_ms}: give the length of the steps in ms, above 0"
            )


OPTIONS = {"core-util FILE.csv...": CoreUtilOptions}


def run(options: CoreUtilOptions) -> Result:
    """Read the counters; show four lines per file with the largest kernels, or the table that --by names."""
    from analysis.readers.ncu import reader as ncu

    window_ns = None if options.window_ms is None else options.window_ms * 1e6
    options = _with_folders(options)
    counters = [ncu.read(file) for file in options.files]
    _check_pipes(options.files, counters)
    sizes = _batch_sizes(options)
    whole = joined(counters) if _of_one_run(counters, sizes) else None
    problems = _problems(options.files, counters, window_ns)
    found = _findings(options, counters, whole, sizes, window_ns)
    about = _advice(options, found, counters if whole is None else [whole], window_ns) if options.json else {}
    if options.by is not None and not options.json:
        return findings_result(found, problems, options, title="bertbench core-util")
    uses = [_as_json(file, part, window_ns) for file, part in zip(options.files, counters, strict=True)]
    joint = None if whole is None else _as_json(None, whole, window_ns)
    blocks = [_lines(core_use(part, window_ns)) for part in counters]
    if len(blocks) > 1:
        blocks = [[str(file), *lines] for file, lines in zip(options.files, blocks, strict=True)]
        if whole is not None:
            # A screen has no room for the lines of many files.
            blocks = [*blocks[:_MOST_FILES], [f"all {len(counters)} files", *_lines(core_use(whole, window_ns))]]
    written, left, failure = tables_into(found, options.csv)
    failure = failure or markdown_into(options.markdown, "bertbench core-util", lambda: finding_blocks(found))
    notes = [f"{len(written)} tables are in {options.csv}"] if written else []
    texts = [Plain("\n".join(lines)) for lines in blocks]
    height = sum(len(lines) + 1 for lines in blocks)
    tables = on_screen(_screen(whole or counters[0], window_ns), problems, height)
    return Result(
        document=document(found, problems, files=uses, joint=joint, **about),
        blocks=[*texts, *(finding_blocks(found) if options.full else tables)],
        notes=[*notes, *left],
        problems=problems,
        failure=failure,
    )


def _with_folders(options: CoreUtilOptions) -> CoreUtilOptions:
    """Replace each folder by its files of batch sizes, which a table by batch size is then made of by default."""
    folders = [path for path in options.files if path.is_dir()]
    if not folders:
        return options
    found: list[Path] = []
    for path in options.files:
        inside = [file for file in path.glob("batch_*") if _SIZE.search(file.name)] if path in folders else [path]
        if not inside:
            raise InputError("file-empty", f"{path} has no file batch_<size>.csv: name the files of Nsight Compute")
        found += sorted(inside, key=lambda file: (int(match[1]) if (match := _SIZE.search(file.name)) else 0, file))
    return dataclasses.replace(options, files=tuple(found), by=options.by or "batch")


def _check_pipes(files: Sequence[Path], counters: Sequence[KernelCounters]) -> None:
    if any(core_use(part).pipes[name].metric is not None for part in counters for name in FOUR):
        return
    capability = counters[0].compute_capability
    pipes = {metric for pipe in FOUR for metric in metrics_of(pipe, capability)}
    collected, _ = ncu_metrics.metrics_of(capability or _ANY_CAPABILITY)
    names = [name for name in collected if name == "gpu__time_duration.sum" or name.partition(".")[0] in pipes]
    named, wanted = ", ".join(map(str, files)), ",".join(names)
    raise InputError(
        "metrics-missing", f"{named}: no metric of the four pipes; collect them with ncu --csv --metrics {wanted}"
    )


def _advice(
    options: CoreUtilOptions, found: Sequence[Finding], counters: Sequence[KernelCounters], window_ns: float | None
) -> dict[str, Any]:
    """The field `advice` of the document; a table that --by names has none, so that all tables are made for it."""
    from analysis.diagnose.explain import to_do
    from analysis.sources import Source

    if options.by is not None:
        found = [one for part in counters for one in core_findings.findings(part, window_ns)]
    source = Source(path=options.files[0], counters=tuple(counters))
    return {"advice": [one.to_json() for one in to_do(source, found)]}


def _screen(counters: KernelCounters, window_ns: float | None) -> "Screen":
    """Return what to do first, and the pipes of the kernels that take longest."""
    from analysis.render.screen import Screen

    kernels = core_findings.by_kernel(counters, window_ns)
    table = kernels.table.drop(columns=["launches", "timed", "time_ms"], errors="ignore")
    pipes = [str(name) for name in table if str(name).endswith("utilization")]
    # In percent all four fit 80 characters.
    table = table.assign(**{name: 100 * table[name] for name in pipes})
    table = table.rename(columns={name: f"{name.partition('_')[0]}_percent" for name in pipes})
    advice = ranked(one for finding in core_findings.findings(counters, window_ns) for one in finding.advice)
    title = "Utilization of the pipes by kernel"
    details = of_frame(kernels.name, table, title) if len(table) else None
    return Screen(advice=advice, details=details, rest=REST)


def _lines(use: CoreUse) -> list[str]:
    lines = []
    for name in FOUR:
        pipe = use.pipes[name]
        text = "unknown" if pipe.metric and pipe.percent is None else core_findings.percent_text(pipe.percent)
        if pipe.in_window_percent is not None:
            text += f" ({core_findings.percent_text(pipe.in_window_percent)} of the window)"
        lines.append(f"{name} {text}")
    return lines


def _problems(files: Sequence[Path], counters: Sequence[KernelCounters], window_ns: float | None) -> list[str]:
    """What could not be read and why a pipe has no number, each once, with the file where there are several."""
    problems = []
    for file, part in zip(files, counters, strict=True):
        pipes = core_use(part, window_ns).pipes
        texts = list(part.problems)
        for reason in dict.fromkeys(pipes[name].reason for name in FOUR if pipes[name].reason):
            texts.append(f"{', '.join(name for name in FOUR if pipes[name].reason == reason)}: {reason}")
        problems += [f"{file.name}: {text}" if len(files) > 1 else text for text in texts]
    return list(dict.fromkeys(problems))


def _batch_sizes(options: CoreUtilOptions) -> list[int] | None:
    """The batch size of each file by its name; None where a name has none."""
    named = [_SIZE.search(file.name) for file in options.files]
    if all(named):
        return [int(match[1]) for match in named if match]
    if options.by == "batch":
        raise InputError("option-missing", "--by batch needs the size of every file: name them batch_<size>.csv")
    return None


def _of_one_run(counters: Sequence[KernelCounters], sizes: Sequence[int] | None) -> bool:
    devices = {(part.device_name, part.compute_capability) for part in counters}
    return len(counters) > 1 and len(devices) == 1 and (sizes is None or len(set(sizes)) == 1)


def _findings(
    options: CoreUtilOptions,
    counters: Sequence[KernelCounters],
    whole: KernelCounters | None,
    sizes: Sequence[int] | None,
    window_ns: float | None,
) -> list[Finding]:
    """The table that --by names; all tables for --csv and --json without it."""
    if options.by == "batch" and sizes is not None:
        return [_by_batch(counters, sizes, window_ns, every=options.json or options.csv is not None or options.full)]
    found = []
    parts = [(None, whole)] if whole is not None else list(zip(options.files, counters, strict=True))
    for file, part in parts:
        one = _tables(options, part, window_ns)
        if file is not None and len(parts) > 1:
            stem = file_stem(file)
            one = [
                dataclasses.replace(item, name=f"{item.name}_{stem}", title=f"{item.title}, {file.name}")
                for item in one
            ]
        found += one
    if options.by is None and sizes is not None and len(set(sizes)) > 1:
        found.append(_by_batch(counters, sizes, window_ns, every=True))
    return distinct(found)


def _tables(options: CoreUtilOptions, counters: KernelCounters, window_ns: float | None) -> list[Finding]:
    by = {"kernel": core_findings.by_kernel, "family": core_findings.by_family, "phase": core_findings.by_phase}
    if options.by in by:
        return [by[options.by](counters, window_ns)]
    every = options.json or options.full or options.csv is not None or options.markdown is not None
    return core_findings.findings(counters, window_ns) if every else []


def _by_batch(
    counters: Sequence[KernelCounters], sizes: Sequence[int], window_ns: float | None, *, every: bool
) -> Finding:
    """One row per batch size; long texts only where `every` column is wanted."""
    import pandas as pd

    of_size: dict[int, list[KernelCounters]] = {}
    for size, part in zip(sizes, counters, strict=True):
        of_size.setdefault(size, []).append(part)
    by_batch = {size: joined(parts) for size, parts in of_size.items()}
    windows = None if window_ns is None else dict.fromkeys(by_batch, window_ns)
    table = pd.DataFrame(rows(by_batch, windows)).dropna(axis="columns", how="all")
    table = table if every else table.drop(columns=["weight", "metrics", "reason"], errors="ignore")
    sentence = ""
    if len(table) > 1 and "tensor_percent" in table and table["tensor_percent"].notna().all():
        best = table.iloc[int(table["tensor_percent"].argmax())]
        sentence = (
            f"The tensor cores are busiest, at {best['tensor_percent']:.2f} %, with batch size "
            f"{int(best['micro_batch_size'])}: larger batches help only as long as this percentage rises."
        )
    return Finding("core_utilization_by_batch", "Core utilization by batch size", table, sentence)


def _as_json(file: Path | None, counters: KernelCounters, window_ns: float | None) -> dict[str, Any]:
    use = core_use(counters, window_ns)
    capability = counters.compute_capability
    return {
        "path": None if file is None else str(file),
        "device": counters.device_name,
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        **dataclasses.asdict(dataclasses.replace(use, pipes=dict(use.pipes))),
    }
