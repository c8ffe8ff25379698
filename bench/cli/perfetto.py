"""`bertbench perfetto PATH -o out.json.gz`: export traces for ui.perfetto.dev, with tracks of the suite."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from analysis.render.tables import Plain
from bench.cli.options import Printed
from bench.cli.result import Result
from common.errors import InputError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class PerfettoOptions(Printed):
    """Convert traces to one file for https://ui.perfetto.dev. It shows all ranks side by side, with tracks for steps,
    phases, computation, communication, exposed communication and idle time.

    Examples:
        bertbench perfetto runs/profile -o timeline.json.gz
    """

    path: tyro.conf.Positional[Path]
    """A trace, a folder of ranks, a tar, a profiled trial or a run directory."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """File to write, .json.gz or .json; default <name>.perfetto.json.gz in the current folder."""


OPTIONS = {"perfetto PATH": PerfettoOptions}


def run(options: PerfettoOptions) -> Result:
    """Write the file."""
    from analysis.render.perfetto import write_perfetto
    from analysis.sources import open_sources

    try:
        output = _output(options)
    except OSError as error:  # such as a name that is too long
        raise UsageError(
            "path-unreadable", f"cannot access {str(error.filename)[:200]}: {error.strerror}; check the paths"
        ) from error
    source = open_sources(options.path)
    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{options.path} holds {', '.join(source.kinds)} and no trace: perfetto needs the timestamps of events, as "
            "in JSON of the PyTorch profiler and SQLite exports of nsys; use `bertbench analyze` for other profiles",
        )
    events, count = write_perfetto(source.timelines, output), len(source.timelines)
    said = f"{output}: {count} rank{'s'[: count != 1]}, {events:,} events; open it in https://ui.perfetto.dev"
    about = {"path": str(output), "ranks": count, "events": events}
    return Result(document={**about, "problems": list(source.problems)}, blocks=[Plain(said)], problems=source.problems)


def _output(options: PerfettoOptions) -> Path:
    """Return the output file. Raises UsageError if it would replace the input or join its folder."""
    path = options.path.resolve()
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    output = (options.output or Path.cwd() / f"{name or 'trace'}.perfetto.json.gz").resolve()
    if output == path or (output.exists() and path.exists() and output.samefile(path)):
        raise UsageError("option-conflict", f"--output {output} is the input trace: give another name")
    if path.is_dir() and path in output.parents:
        raise UsageError(
            "option-conflict",
            f"--output {output} is in the input folder, where it would count as the trace of a rank: write it to "
            "another folder, such as -o /tmp/out.json.gz",
        )
    if output.is_dir():
        raise UsageError("path-kind", f"--output {output} is a folder: give a file, such as {output / 'out.json.gz'}")
    return output
