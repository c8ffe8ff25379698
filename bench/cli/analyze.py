"""`bertbench analyze PATH...`: finds out what it is, prints the right tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from bench.cli.options import Tables
from bench.cli.result import REST, Result, findings_result, markdown_into, on_screen, when_writable
from common.errors import BertbenchError, InputError, UsageError
from records.run import RunDirectory

if TYPE_CHECKING:
    from analysis.open import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyzeOptions(Tables):
    """Explain what a profiler recorded. PATH is a trace, a table of counters, a log, a folder of ranks, a tar, a
    profiled trial, or a run directory. The kind is detected from the content.

    Examples:
        bertbench analyze runs/profile
        bertbench analyze trace.json.gz --window range:forward  # only what ran while this range was open
        bertbench analyze runs/profile --perfetto timeline.json.gz  # every event, for https://ui.perfetto.dev
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""
    window: str = "steps"
    """Part of a trace to analyze: steps is the marked steps; kernels extends to the end of the last GPU kernel; step:5
    and step:5..8 choose steps, range:NAME a named range (* matches any text), 1.2s..3.4s a time (s, ms or us)."""
    perfetto: Path | None = None
    """Also write all ranks to this file (.json.gz or .json) for https://ui.perfetto.dev, with tracks for steps, phases,
    computation, communication, exposed communication and idle time; default no file."""


OPTIONS = {"analyze PATH...": AnalyzeOptions}


def run(options: AnalyzeOptions) -> Result:
    """Read and explain; exit code 3 when some trials of a run directory could not be read."""
    from analysis.open import is_run, open_sources

    if not options.paths:
        raise InputError(
            "option-missing", "analyze needs an input: give a trace, a folder of ranks, a tar or a run directory"
        )
    if options.perfetto is not None:
        _check_output(options.perfetto, options.paths)
    if len(options.paths) == 1 and is_run(options.paths[0]):
        written, failure = _export(open_sources(options.paths[0]), options.perfetto) if options.perfetto else ((), None)
        result = _run(options.paths[0], options)
        return replace(result, written=[*result.written, *written], failure=result.failure or failure)
    from analysis.diagnose.profiles import analyze_paths

    found = analyze_paths(options.paths, options.window)
    source = found.source
    written, failure = _export(source, options.perfetto) if options.perfetto else ((), None)
    about: dict[str, Any] = {"path": str(source.path), "kinds": list(source.kinds)}
    result = findings_result(
        found.findings,
        source.problems,
        options,
        found.advice,
        title=f"bertbench analyze {source.path}",
        page=f"bertbench report {source.path}",
        **about,
    )
    return replace(result, written=[*result.written, *written], failure=result.failure or failure)


def _check_output(output: Path, paths: Sequence[Path]) -> None:
    """Raise UsageError if a file is a folder, would replace the input, or join its folder as the trace of a rank."""
    if output.is_dir():
        raise UsageError(
            "path-kind", f"--perfetto {output} is a folder: give a file, such as {output}/timeline.json.gz"
        )
    for path in paths:
        if path.resolve() in (output.resolve(), *output.resolve().parents):
            raise UsageError(
                "option-conflict",
                f"--perfetto {output} would be part of the input {path}: write it to another folder",
            )


def _export(source: "Source", output: Path) -> tuple[Sequence[Path], BertbenchError | None]:
    from analysis.render.perfetto import write_perfetto

    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{source.path} holds {', '.join(source.kinds)} and no trace: --perfetto needs the times of events, as in "
            "JSON of the PyTorch profiler and SQLite exports of nsys",
        )

    def write() -> Sequence[Path]:
        write_perfetto(source.timelines, output)
        return [output]

    return when_writable(write)


def _run(path: Path, options: AnalyzeOptions) -> Result:
    from analysis.diagnose.answer import complete_answers, points, without_measurement
    from analysis.diagnose.profiles import open_profile
    from analysis.diagnose.run import reference, trial_name
    from analysis.load import load_run
    from analysis.metrics.comparison.runs import ratios_of
    from analysis.metrics.time.window import parse_window
    from analysis.open import profiled_trials
    from analysis.render.result_tables import answer_lines, results_blocks
    from analysis.render.tables import Block, Plain
    from analysis.render.terminal import run_screen, screen_of

    parse_window(options.window)  # refuses before anything is read
    directory = RunDirectory(path)
    trials = load_run(directory)
    rows, ratios = [dict(trial.row) for trial in trials], ratios_of(trials, reference(trials))
    results = results_blocks(rows, ratios)
    blocks: list[Block] = list(results)
    problems: list[str] = []
    profiles: list[str] = []
    written: list[Path] = []
    code, documents, advised = 0, {}, {}
    failure: BertbenchError | None = None
    names = {trial.trial.trial_id: trial_name(trial) for trial in trials}
    for folder in profiled_trials(directory):
        opened = open_profile(directory.trial(folder.name))
        try:
            opened = opened.within(options.window)
        except BertbenchError as error:  # the other trials may have the window
            problems.append(f"{folder.name}: {error}")
            code = 3
            continue
        findings = opened.findings
        advised[folder.name] = opened.advice
        csv = None if options.csv is None else options.csv / folder.name
        found = findings_result(
            findings, opened.source.problems, Tables(full=True, csv=csv), kinds=list(opened.source.kinds)
        )
        documents[folder.name] = found.document
        profiles += [f"{names.get(folder.name, folder.name)}: {text}" for text in screen_of(findings).answer]
        blocks += [Plain(f"== {folder.name}"), *found.blocks]
        problems += found.problems
        written += found.written
        failure = failure or found.failure
        code = code if findings else 3
    said = complete_answers(trials, points(trials), ratios, str(path), advised)
    document = {"path": str(path), "kinds": ["run"], "rows": rows, "ratios": ratios, "profiles": documents}
    document["answers"] = [answer.to_json() for answer in said]
    shown = said or [without_measurement(directory, trials)]
    every = [*answer_lines(shown), *blocks]
    failure = failure or markdown_into(options.markdown, f"bertbench analyze {path}", lambda: every)
    rest = f"{REST} As a page: bertbench report {path}"
    rest = f"One profile: bertbench analyze {path}/trials/ID. {rest}" if profiles else rest
    return Result(
        document=document,
        blocks=every if options.full else on_screen(run_screen(shown, results, profiles, rest), problems),
        written=written,
        problems=problems,
        failure=failure,
        code=code,
    )
