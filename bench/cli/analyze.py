"""`bertbench analyze PATH...`: finds out what it is, prints the right tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view, when_writable
from common.errors import UsageError
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


OPTIONS = {"analyze PATH...": AnalyzeOptions}


def run(options: AnalyzeOptions) -> Result:
    """Read and explain; exit code 3 when some trials of a run directory could not be read."""
    from analysis.views import analyze, write_timeline

    paths, output = options.paths, options.perfetto
    if output is not None:
        _check_output(output, paths)
    if len(paths) == 1 and is_run(paths[0]):
        from analysis import run_views

        view = run_views.analyze(paths[0], options.window)
    else:
        view = analyze(paths, options.window)
    written, failure = when_writable(lambda: write_timeline(view, paths[0], output)) if output else ((), None)
    page = f"{ALL_TABLES} As a page: bertbench report {paths[0]}"
    several = f"One profile: bertbench analyze {paths[0]}/trials/ID. " if view.document.get("profiles") else ""
    code = 3 if view.verdict == "incomplete" else 0
    result = of_view(view, options, f"bertbench analyze {paths[0]}", several + page, code)
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
