"""`bertbench report PATH...`: the HTML page, pictures and tables of runs, a profile or a classification."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.cli.options import Printed, run_folder
from bench.cli.result import Result, of_view
from bench.sweep.options import COUNT, POSITIVE
from common.errors import UsageError
from common.flags import Positional
from records.classification import is_classification
from records.run import is_run


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions(Printed):
    """Write a self-contained report.html with its pictures and CSV tables. PATH is a run directory, a folder of several
    trainings, anything that `analyze` reads (a trace, a folder of ranks, a tar, a table of counters, a log), or a file
    that `train classify` wrote: *_train_test_stats.json, *_testset_predictions.csv, *_trained_model or *.sqlite.
    Several run directories are parts of one page: each compares its own trials, never those of another run.

    Examples:
        bertbench report runs/throughput --price-per-hour 2.5  # add the cost per million sequences
        bertbench report runs/a100 runs/h100 --out runs/both  # two runs on one page
        bertbench report reviews_train_test_stats.json  # confusion matrix, precision and recall of each label
    """

    paths: Positional[tuple[Path, ...]]
    """Run directories; or a profile, or results of a classification."""
    out: Path | None = None
    """Folder to write; default report in the (first) run directory, for a profile report-NAME in the current folder,
    for a classification NAME_results beside the file."""
    price_per_hour: Annotated[float | None, POSITIVE] = None
    """Price of the machine per hour, for the cost columns of a run; default no cost columns."""
    project: Annotated[tuple[int, ...], COUNT] = ()
    """Numbers of devices to project a run to, by a model; the run needs comm trials and throughput on two numbers of
    devices; default no projection."""
    markdown: Path | None = None
    """Append the answer to this file as Markdown of at most 60 lines; default no file."""


OPTIONS = {"report PATH...": ReportOptions}


def run(options: ReportOptions) -> Result:
    """Write the page of runs, a profile or a classification."""
    from analysis.run_views import page

    given: dict[Path, Path] = {}
    for path in options.paths:
        given.setdefault(path.resolve(), path)
    paths, out = list(given.values()), options.out
    none = next((path for path in paths if not is_run(path)), None)
    if none and (len(paths) > 1 or options.project or options.price_per_hour is not None):
        problem = f"several PATHs, --project and --price-per-hour need run directories, but {none} is none"
        raise UsageError("option-not-applicable", problem)
    if out is not None and is_classification(paths[0]):
        out = run_folder(out)
    view = page(paths, out, options.price_per_hour, options.project)
    return of_view(view, options, shlex.join(["bertbench report", *map(str, paths)]))
