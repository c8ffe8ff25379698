"""`bertbench history RUNS`: what many runs measured over time; exit code 1 where the newest is a regression."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bench.cli.findings_output import terminal_width
from bench.cli.options import parse
from common.errors import UsageError

if TYPE_CHECKING:
    from analysis.metrics.comparison.history import History


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions:
    """Put the measurements of many runs in a row by time, each held against the run before that has it.

    Runs of other machines make rows of their own; commits and versions that change are told. Exit code 1 where the
    newest measurement of a configuration is a regression: use it after each nightly run.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS")]
    """Run directories, or folders that hold some, at any depth."""
    threshold: float = 0.02
    """Relative change of the step time that counts; 0.02 is 2 %."""
    out: Path | None = None
    """Folder to write history.png and history.csv into."""
    json: bool = False
    """Print the history as JSON."""


OPTIONS = {"history RUNS": HistoryOptions}


def main(argv: list[str]) -> int:
    """Run the command; 1 where the newest point of a series is a regression, else 0."""
    options = parse(HistoryOptions, argv, "bertbench history")
    if not options.runs:
        raise UsageError(
            "option-missing",
            "bertbench history needs run directories, or a folder that holds some: bertbench history runs",
        )
    from analysis.metrics.comparison.history import history_of
    from analysis.render.history_text import history_text
    from analysis.render.terminal import wrapped
    from analysis.sources import runs_below
    from records.run import RunDirectory

    folders = dict.fromkeys(run.resolve() for path in options.runs for run in runs_below(path))
    found = history_of([RunDirectory(folder) for folder in folders], options.threshold)
    written = [] if options.out is None else _write(options.out, found)
    if options.json:
        print(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        print(history_text(found, terminal_width()))
        for path in written:
            print(f"wrote {path}")
        for problem in found.problems:
            print("\n".join(wrapped(f"bertbench: {problem}", terminal_width())), file=sys.stderr)
    return 1 if found.regressed else 0


def _write(folder: Path, found: "History") -> list[Path]:
    """Write picture and table. Raises StorageError."""
    from analysis.render.history_figures import draw_history
    from analysis.render.tables import write_csv

    rows = [{**one.row, **asdict(point)} for one in found.series for point in one.points]
    table = folder / "history.csv"
    write_csv(table, [{**row, "changed": "; ".join(row["changed"])} for row in rows])
    return [table, *(picture.path for picture in draw_history(folder, found))]
