"""The questions that a command asks of recordings, and each answer in every form that it prints or writes.

`bench` and the notebook read, compute and show through these functions; everything behind them can change.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import joined
from analysis.diagnose import cores, rules_communication, rules_time
from analysis.diagnose.advice import Advice
from analysis.diagnose.explain import explain, to_do
from analysis.diagnose.finding import Finding, plain_rows
from analysis.diagnose.profiles import analyze_paths, summarize, write_tables
from analysis.diagnose.summaries import communication_share
from analysis.metrics.kernels.core_utilization import FOUR, core_use
from analysis.metrics.kernels.ncu_metrics import metrics_of
from analysis.open import Source, open_sources
from analysis.render.tables import Block, Facts, Plain, Table, advice_lines, finding_blocks, of_frame, write_frame
from analysis.render.terminal import MOST_LINES, Screen, screen_of
from common.errors import InputError
from records.run import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

    from analysis.counters import KernelCounters

_MOST_FILES = 3
"""Files of counters with lines on a screen."""
_UTILIZATION = ("compute_utilization", "fma_percent", "fp16_percent", "tensor_percent", "sfu_percent")
# A profiler makes no step quicker: below this share of the time without it, one of the two runs was disturbed.
_QUICKER = 0.9
_DISTURBED = (
    "a profiler cannot make a step faster: other load slowed the run without it; measure on an idle machine, with "
    "another --out"
)
_BATCH = re.compile(r"batch[_-]?(?:size[_-]?)?(\d{1,9})(?!\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The answer to a question."""

    document: Mapping[str, Any]
    """Plain JSON values."""
    blocks: Sequence[Block]
    """All of it as text."""
    screen: Screen | None = None
    """One screen of it; None where the blocks fit one."""
    tables: "Mapping[str, pd.DataFrame]" = field(default_factory=dict)
    """Tables for CSV files, by path without the ending."""
    problems: Sequence[str] = ()
    """What could not be read, one sentence each."""
    verdict: str = ""
    """What sets an exit code: incomplete (a part of the input could not be read), regression, undecided, nothing (to
    compare); "" for none of them."""
    source: Source | None = None
    """The traces it is of."""

    def shown(self, width: int, lines_after: int, rest: str) -> Sequence[Block]:
        """Return one screen less the lines that follow it; `rest` says where everything else is."""
        return self.blocks if self.screen is None else self.screen.blocks(width, MOST_LINES - lines_after, rest)

    def write_tables(self, folder: Path) -> list[Path]:
        """Write the tables in full precision; return the files. Raises StorageError."""
        paths = [folder / f"{name}.csv" for name in self.tables]
        for path, table in zip(paths, self.tables.values(), strict=True):
            write_frame(path, table)
        return paths


def analyze(paths: Sequence[Path], window: str = "steps") -> View:
    """Explain recordings, read as one source.

    Args:
        paths: at least one.
        window: the part of each trace to analyze, see metrics.time.window.windowed.

    Raises:
        InputError: a path does not exist, has nothing to analyze, or no trace has the window.
        UsageError: the window is none.
    """
    opened = analyze_paths(paths, window)
    about = {"path": str(opened.source.path), "kinds": list(opened.source.kinds)}
    return of_findings(opened.findings, opened.source.problems, opened.advice, opened.source, **about)


def of_findings(
    findings: Sequence[Finding],
    problems: Sequence[str],
    advice: Sequence[Advice] | None = None,
    source: Source | None = None,
    **about: Any,
) -> View:
    """Return the view of findings. `advice` has the largest gain first, None where there can be none."""
    if advice is not None:
        about["advice"] = [one.to_json() for one in advice]
    named = {
        one.name: {"title": one.title, "sentence": one.sentence, "rows": plain_rows(one.table)} for one in findings
    }
    return View(
        document={**about, "findings": named, "problems": list(problems)},
        blocks=[*advice_lines(advice or ()), *finding_blocks(findings)],
        screen=screen_of(findings, advice or ()),
        tables={one.name: one.table for one in findings if len(one.table)},
        problems=problems,
        source=source,
    )


def write_timeline(view: View, path: Path, output: Path) -> list[Path]:
    """Write the traces of what `analyze` read to a file for https://ui.perfetto.dev; return it.

    Raises:
        InputError: there is no trace.
        StorageError: the file cannot be written.
    """
    from analysis.render.perfetto import write_perfetto

    source = view.source or open_sources(path)
    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{source.path} holds {', '.join(source.kinds)} and no trace: --perfetto needs the times of events, as in "
            "JSON of the PyTorch profiler and SQLite exports of nsys",
        )
    write_perfetto(source.timelines, output)
    return [output]


def allreduce(paths: Sequence[Path]) -> View:
    """Break down the cost of communication; recordings without any are no error.

    Args:
        paths: at least one, read as one source.

    Raises:
        InputError: a path does not exist, or has neither a trace nor a table of kernels.
    """
    source = open_sources(*paths)
    timelines, path = source.timelines, str(source.path)
    about: dict[str, Any] = {"path": path, "kinds": list(source.kinds), "ranks": len(timelines) or None}
    findings = rules_communication.findings(timelines)
    findings = findings if timelines else communication_share(source.summaries)
    if not findings and not timelines:
        kinds = ", ".join(source.kinds)
        raise InputError(
            "trace-without-work",
            f"{path} contains {kinds} instead of a trace: give a trace, or view it with `bertbench analyze`",
        )
    if not findings:
        reason = rules_communication.no_communication(timelines)
        document = {**about, "findings": {}, "problems": [*source.problems, reason]}
        return View(document=document, blocks=[reason], problems=source.problems)
    shown = [*rules_time.window(timelines), *findings]
    return of_findings(shown, source.problems, to_do(source, findings), **about)


def core_utilization(
    files: Sequence[Path],
    by: str | None,
    window_ns: float | None,
    collected: Callable[[tuple[int, int] | None], Sequence[str]],
) -> View:
    """Return the utilization of the pipes of a GPU, by counters of Nsight Compute.

    Args:
        files: at least one.
        by: kernel, family or batch for that table alone; None for a block of each file and its kernels.
        window_ns: length of the counted steps without the profiler, for shares with idle time.
        collected: the metrics to collect on a GPU of a compute capability, for the message where they are missing.

    Raises:
        InputError: a file cannot be read, has none of the pipes, or lacks the batch size in its name for `batch`.
    """
    read = open_sources(*files)
    if not read.counters:
        what = f"{files[0]} holds {' and '.join(read.kinds)} and no counters of Nsight Compute"
        raise InputError("file-format", f"{what}: give the output of `ncu --csv`, or a report")
    files, counters = read.counter_files, read.counters
    uses = [core_use(part, window_ns).loc[[*FOUR]] for part in counters]
    if all(use["metric"].isna().all() for use in uses):
        capability = counters[0].compute_capability
        pipes = {metric for pipe in FOUR for metric in metrics_of(pipe, capability)}
        wanted = [
            one for one in collected(capability) if one == "gpu__time_duration.sum" or one.partition(".")[0] in pipes
        ]
        named = ", ".join(map(str, files))
        raise InputError(
            "columns-missing",
            f"{named}: no metric of the four pipes; collect them with ncu --csv --metrics {','.join(wanted)}",
        )
    sizes = [int(match[1]) for file in files if (match := _BATCH.search(file.name))]
    if by == "batch" and len(sizes) < len(files):
        raise InputError("option-missing", "--by batch needs the size of every file: name them batch_<size>.csv")
    by_batch = by == "batch" or (len(sizes) == len(files) and len(set(sizes)) > 1)
    devices = {(part.device_name, part.compute_capability) for part in counters}
    whole = joined(counters) if len(counters) > 1 and len(devices) == 1 and not by_batch else None
    parts = counters if whole is None else (whole,)
    problems = [text for text in read.problems if not any(text in part.problems for part in counters)]
    for file, part, use in zip(files, counters, uses, strict=True):
        groups = use.groupby("reason", sort=False).groups
        texts = [*part.problems, *(f"{', '.join(pipes)}: {reason}" for reason, pipes in groups.items() if reason)]
        problems += [f"{file.name}: {text}" for text in texts] if len(files) > 1 else texts
    problems = list(dict.fromkeys(problems))
    source = Source(path=files[0], counters=parts, counter_files=files[: len(parts)], problems=tuple(problems))
    findings = explain(source, window_ns)
    advice = to_do(source, findings)
    if by_batch:
        findings.append(cores.by_batch(counters, sizes, window_ns))
    if by is not None:
        name = "kernels" if by == "kernel" else f"core_utilization_by_{by}"
        findings = [one for one in findings if one.name.startswith(name)]
    view = of_findings(findings, source.problems, advice)
    if by is not None:
        return view
    lines = [_pipes(use, str(file) if len(files) > 1 else "") for file, use in zip(files, uses, strict=True)]
    if whole is not None:
        lines = [*lines[:_MOST_FILES], _pipes(core_use(whole, window_ns), f"all {len(counters)} files")]
    screen = Screen(opening=lines, advice=advice, details=_kernels(whole or counters[0], window_ns))
    return dataclasses.replace(view, blocks=[*lines, *view.blocks], screen=screen)


def _pipes(use: "pd.DataFrame", title: str) -> Plain:
    """Return a line for each pipe; unknown is one that was counted without a result."""
    lines = [title] if title else []
    for name in FOUR:
        percent, in_window = (float(use[column][name]) for column in ("percent", "in_window_percent"))
        unknown = "unknown" if isinstance(use["metric"][name], str) else cores.NOT_IN_FILE
        text = f"{percent:.2f} %" if percent >= 0 else unknown
        lines.append(f"{name} {text}" + (f" ({in_window:.2f} % of the window)" if in_window >= 0 else ""))
    return Plain("\n".join(lines))


def _kernels(counters: "KernelCounters", window_ns: float | None) -> Table:
    """Return the pipes of the kernels that take longest, in percent: all four fit 80 characters."""
    kernels = cores.by_kernel(counters, window_ns)
    table = kernels.table.drop(columns=["launches", "timed", "time_ms"], errors="ignore")
    for name in [str(name) for name in table if str(name).endswith("utilization")]:
        table[f"{name.partition('_')[0]}_percent"] = 100 * table.pop(name)
    return of_frame(kernels.name, table, "Utilization of the pipes by kernel")


def profiles(run: RunDirectory, trial_ids: Sequence[str]) -> tuple[list[View], list[Path]]:
    """Summarize the profiles of trials, and write the tables of utilization of all profiles of their run.

    Returns:
        A view of each, with the verdict "unread" where nothing of its files can be used for the reason that is the
        first of its problems; and the files of the tables.

    Raises:
        StorageError: a table cannot be written.
    """
    views = []
    for opened, rows in [summarize(run.trial(name)) for name in trial_ids]:
        about = {"compute_utilization": rows["compute"], "core_utilization": rows["core"]}
        view = of_findings(opened.findings, opened.source.problems, None, None, **about)
        unread = "unread" if opened.source.problems and not opened.findings else ""
        views.append(dataclasses.replace(view, verdict=unread))
    return views, write_tables(run)


def utilization(
    profiled: Sequence[View], results: Sequence[Mapping[str, Any]], facts: Sequence[tuple[str, str]]
) -> View:
    """Return the utilization by batch size and rank of profiled trials, below the screen of a single one.

    Args:
        profiled: of `profiles`.
        results: result.json of each trial.
        facts: what to show below, after the cautions.
    """
    import pandas as pd

    documents = [view.document for view in profiled]
    rows = [row for one in documents for row in (one["core_utilization"] or one["compute_utilization"])]
    wanted = ["micro_batch_size", "world_size", "rank", *_UTILIZATION, "step_time_ms", "step_time_ratio", "reason"]
    frame = pd.DataFrame(rows).reindex(columns=wanted).replace("", None).dropna(axis="columns", how="all")
    table = [of_frame("utilization_by_batch", frame, "Utilization by batch size")] if rows else []
    ratios = [result["profile"]["step_time_ratio"] for result in results]
    cautions = [("caution", _DISTURBED)] if any(ratio is not None and ratio <= _QUICKER for ratio in ratios) else []
    closing: list[Block] = [*table, Facts([*cautions, *facts])]
    screen = profiled[0].screen if len(profiled) == 1 else None
    return View(document={}, blocks=closing, screen=screen and dataclasses.replace(screen, closing=closing))
