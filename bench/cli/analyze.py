"""`bertbench analyze PATH...`: finds out what it is, prints the right tables."""

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
