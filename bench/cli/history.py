"""`bertbench history RUNS`: what many runs measured over time; exit code 1 where the newest is a regression."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bench.cli.options import Printed
from bench.cli.result import Result
from common.errors import UsageError

if TYPE_CHECKING:
    from analysis.metrics.comparison.history import History


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions(Printed):
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


OPTIONS = {"history RUNS": HistoryOptions}


def run(options: HistoryOptions) -> Result:
    """Put the runs in a row; exit code 1 where the newest point of a series is a regression."""
    if not options.runs:
        raise UsageError(
            "option-missing",
            "bertbench history needs run directories, or a folder that holds some: bertbench history runs",
        )
    from analysis.metrics.comparison.history import history_of
    from analysis.render.history_tables import history_blocks
    from analysis.sources import runs_below
    from records.run import RunDirectory

    folders = dict.fromkeys(run.resolve() for path in options.runs for run in runs_below(path))
    found = history_of([RunDirectory(folder) for folder in folders], options.threshold)
    return Result(
        document=found.to_json(),
        blocks=history_blocks(found),
        written=() if options.out is None else _write(options.out, found),
        problems=found.problems,
        code=1 if found.regressed else 0,
    )


def _write(folder: Path, found: "History") -> list[Path]:
    """Write picture and table. Raises StorageError."""
    from analysis.render.png import write_png
    from analysis.render.run_figures import history_figure
    from analysis.render.tables import write_csv

    rows = [{**one.row, **asdict(point)} for one in found.series for point in one.points]
    table = folder / "history.csv"
    write_csv(table, [{**row, "changed": "; ".join(row["changed"])} for row in rows])
    figure = history_figure(found)
    return [table] if figure is None else [table, write_png(figure, folder)]
