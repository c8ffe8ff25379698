"""`bertbench analyze PATH...`: finds out what it is, prints the right tables."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from bench.cli.findings_output import check_rows, document, show, write_csvs
from bench.cli.options import parse
from common.errors import InputError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyzeOptions:
    """Say what a profiler's files show. PATH is a trace, a table or a log (its kind is found out from its content), a
    folder of ranks, a tar, a profiled trial, or a run directory.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """What to read; several are read as one, such as the traces of a run's ranks."""
    json: bool = False
    """Print everything as JSON."""
    csv: Path | None = None
    """Folder to write every table into, as CSV in full precision."""
    window: Literal["steps", "kernels"] = "steps"
    """Of traces: the marked steps, or all work from its first start to its last end, which a GPU may end after them."""
    rows: int = 20
    """Rows of a table to print; 0 for all."""


OPTIONS = {"analyze PATH...": AnalyzeOptions}


def main(argv: list[str]) -> int:
    """Run the command; 3 when some trials of a run directory could not be read."""
    options = parse(AnalyzeOptions, argv, "bertbench analyze")
    from analysis.sources import is_run

    check_rows(options.rows)
    if not options.paths:
        raise InputError(
            "option-missing", "analyze needs what to read: a trace, a folder of ranks, a tar, a run directory"
        )
    if len(options.paths) == 1 and is_run(options.paths[0]):
        return _run(options.paths[0], options)
    from analysis.diagnose.explain import explain, over_all_work
    from analysis.diagnose.profiles import open_profile
    from analysis.sources import open_sources
    from records.run import TrialDirectory

    source = open_sources(*options.paths)
    about: dict[str, Any] = {}
    if len(options.paths) == 1 and (options.paths[0] / "trial.json").is_file():
        opened = open_profile(TrialDirectory(options.paths[0]))
        source, about = opened.source, {"window_ns": opened.window_ns, "measured": opened.measured}
    if options.window == "kernels":
        source = over_all_work(source)
    show(
        explain(source, **about),
        source.problems,
        as_json=options.json,
        csv=options.csv,
        rows=options.rows,
        path=str(source.path),
        kinds=list(source.kinds),
    )
    return 0


def _run(path: Path, options: AnalyzeOptions) -> int:
    """The table of trials, then what each profiled one shows."""
    from analysis.diagnose.profiles import open_profile
    from analysis.load import load_run
    from analysis.metrics.comparison.within_run import ratios_of
    from analysis.render.text import results_table
    from analysis.sources import profiled_trials

    run = RunDirectory(path)
    trials = load_run(run)
    rows, ratios = [dict(trial.row) for trial in trials], ratios_of(trials)
    if not options.json:
        print(results_table(rows, ratios))
    outcome, documents = 0, {}
    for folder in profiled_trials(run):
        opened = open_profile(run.trial(folder.name))
        findings, problems = opened.explained(), opened.source.problems
        outcome = outcome if findings else 3
        own = None if options.csv is None else options.csv / folder.name
        if options.json:
            documents[folder.name] = document(findings, problems, kinds=list(opened.source.kinds))
            if own:
                write_csvs(findings, own)
        else:
            print(f"\n== {folder.name}\n")
            show(findings, problems, as_json=False, csv=own, rows=options.rows)
    if options.json:
        whole = {"path": str(path), "kinds": ["run"], "rows": rows, "ratios": ratios, "profiles": documents}
        print(json.dumps(whole, indent=2, allow_nan=False))
    return outcome
