"""`bertbench report PATH`: the HTML page, pictures and tables of a run directory or of a profile."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from bench.cli.options import parse
from common.errors import UsageError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """Write a self-contained report.html with its pictures and CSV tables beside it. PATH is a run directory, or what
    `analyze` takes: a trace, a folder of ranks, a tar, a table of counters, a log.
    """

    path: tyro.conf.Positional[Path]
    """Run directory that throughput or profile wrote, or a profile."""
    out: Path | None = None
    """Folder to write into. Of a run directory: its own report folder; of a profile: report-NAME in the current one."""
    price_per_hour: float | None = None
    """Price of the machine for one hour, for the cost columns of a run."""
    project: tuple[int, ...] = ()
    """Project a run with throughput and comm trials to so many devices."""
    same_links: bool = False
    """Project as if links between nodes were like those measured inside one."""
    json: bool = False
    """Print the path and the rows as JSON."""

    def __post_init__(self) -> None:
        """Refuse an assumption that nothing is based on."""
        if self.same_links and not self.project:
            raise UsageError(
                "option-missing", "--same-links is about a projection: give --project and numbers of devices too"
            )


OPTIONS = {"report PATH": ReportOptions}


def main(argv: list[str]) -> int:
    """Run the command; always 0, failures are raised."""
    options = parse(ReportOptions, argv, "bertbench report")
    from analysis.sources import is_run

    if is_run(options.path):
        return _of_run(options)
    if options.project:
        raise UsageError(
            "option-not-applicable",
            f"--project needs a run directory with throughput and comm trials, {options.path} is none",
        )
    return _of_profile(options)


def _of_run(options: ReportOptions) -> int:
    from analysis.render.run_page import write_report

    run = RunDirectory(options.path)
    path = write_report(run, options.price_per_hour, options.out, options.project, options.same_links)
    if not options.json and not options.project:
        print(path)
        return 0
    from analysis.load import load_run
    from analysis.metrics.communication.projection import project
    from analysis.metrics.comparison.within_run import ratios_of

    trials = load_run(run, options.price_per_hour)
    projected = project(trials, options.project, options.same_links) if options.project else []
    if not options.json:
        from analysis.render.comm_text import projection_text

        print(f"{projection_text(projected)}\n{path}")
        return 0
    rows = [dict(trial.row) for trial in trials]
    shown = {"report": str(path), "rows": rows, "ratios": ratios_of(trials)}
    shown |= {"projection": projected} if projected else {}
    print(json.dumps(shown, indent=2, allow_nan=False))
    return 0


def _of_profile(options: ReportOptions) -> int:
    from analysis.diagnose.explain import explain
    from analysis.render.source_page import write_source_report
    from analysis.sources import open_sources
    from bench.cli.findings_output import document

    source = open_sources(options.path)
    findings = explain(source)
    name = options.path.resolve().name.partition(".")[0] or "profile"
    path = write_source_report(source, findings, options.out or Path(f"report-{name}"))
    if options.json:
        print(json.dumps(document(findings, source.problems, report=str(path)), indent=2, allow_nan=False))
    else:
        print(path)
    return 0
