"""`bertbench history RUNS`: one configuration over many runs; exit code 1 if the newest run is a regression."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bench.cli.options import Printed
from bench.cli.result import Result, when_writable
from common.errors import UsageError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions(Printed):
    """Track measurements over many runs, ordered by time. Each is compared with the previous run of the same
    configuration.

    Different machines are listed separately. Changes of commits and versions are reported. Exit code 1 if the newest
    measurement of a configuration is a regression, for use after a nightly run.

    Examples:
        bertbench history runs/nightly
        bertbench history runs/nightly --threshold 0.05 --out trend  # write history.png and history.csv
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS")]
    """Run directories, or folders that contain some at any depth."""
    threshold: float = 0.02
    """Relative change of the step time that counts as a regression; 0.02 is 2 %."""
    out: Path | None = None
    """Folder to write report.html, history.png and history.csv; default no files."""


OPTIONS = {"history RUNS": HistoryOptions}


def run(options: HistoryOptions) -> Result:
    """Compare the runs; exit code 1 if the newest point of a series is a regression."""
    if not options.runs:
        raise UsageError(
            "option-missing",
            "bertbench history needs run directories, or a folder that contains some: bertbench history runs",
        )
    from analysis.metrics.comparison.history import history_of
    from analysis.render.history_tables import history_blocks, write_history_report
    from analysis.sources import runs_below

    folders = dict.fromkeys(run.resolve() for path in options.runs for run in runs_below(path))
    found = history_of([RunDirectory(folder) for folder in folders], options.threshold)
    document, failure = found.to_json(), None
    written: Sequence[Path] = ()
    if options.out is not None:
        out = options.out
        written, failure = when_writable(lambda: write_history_report(found, out))
        document |= {"report": str(written[0])} if written else {}
    return Result(
        document=document,
        blocks=history_blocks(found),
        written=written,
        problems=found.problems,
        failure=failure,
        code=1 if found.regressed else 0,
    )
