"""`bertbench report RUN`: the HTML page, pictures and tables of a run directory."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from analysis.records import RunDirectory
from bench.cli.options import parse


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """Write RUN/report/report.html, self-contained, with its pictures and CSV tables beside it."""

    run: tyro.conf.Positional[Path]
    """Run directory that throughput or profile wrote."""
    price_per_hour: float | None = None
    """Price of the machine for one hour, for the cost columns."""
    json: bool = False
    """Print the path and the rows as JSON."""


OPTIONS = {"report RUN": ReportOptions}


def main(argv: list[str]) -> int:
    """Run the command; always 0, failures are raised."""
    options = parse(ReportOptions, argv, "bertbench report")
    from analysis.report.html import write_report

    run = RunDirectory(options.run)
    path = write_report(run, options.price_per_hour)
    if not options.json:
        print(path)
        return 0
    from analysis.load import load_run
    from analysis.metrics.regression import ratios_of

    trials = load_run(run, options.price_per_hour)
    rows = [dict(trial.row) for trial in trials]
    print(json.dumps({"report": str(path), "rows": rows, "ratios": ratios_of(trials)}, indent=2, allow_nan=False))
    return 0
