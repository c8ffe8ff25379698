"""`bertbench report PATH`: the HTML page, pictures and tables of a run, a profile or a classification."""

from dataclasses import dataclass
from pathlib import Path

from bench.cli.options import Printed, run_folder
from bench.cli.result import Result, of_view
from common.errors import UsageError
from common.flags import Positional
from records.classification import is_classification
from records.run import is_run


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions(Printed):
    """Write a self-contained report.html with its pictures and CSV tables. PATH is a run directory, a folder of several
    trainings, anything that `analyze` reads (a trace, a folder of ranks, a tar, a table of counters, a log), or a file
    that `train classify` wrote: *_train_test_stats.json, *_testset_predictions.csv, *_trained_model or *.sqlite.

    Examples:
        bertbench report runs/throughput
        bertbench report runs/throughput --price-per-hour 2.5  # add the cost per million sequences
        bertbench report reviews_train_test_stats.json  # confusion matrix, precision and recall of each label
    """

    path: Positional[Path]
    """A run directory of throughput or profile, a profile, or results of a classification."""
    out: Path | None = None
    """Folder to write; default report in the run directory, for a profile report-NAME in the current folder, for a
    classification NAME_results beside the file."""
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost columns of a run; default no cost columns."""
    project: tuple[int, ...] = ()
    """Numbers of devices to project a run to, by a model; the run needs comm trials and throughput on two numbers of
    devices; default no projection."""
    markdown: Path | None = None
    """Append the answer to this file as Markdown of at most 60 lines; default no file."""


OPTIONS = {"report PATH": ReportOptions}


def run(options: ReportOptions) -> Result:
    """Write the page of a run, a profile or a classification."""
    from analysis.run_views import page

    path, out = options.path, options.out
    if (options.project or options.price_per_hour is not None) and not is_run(path):
        problem = f"--project and --price-per-hour need a run directory, but {path} is none"
        raise UsageError("option-not-applicable", problem)
    if out is not None and is_classification(path):
        out = run_folder(out)
    return of_view(page(path, out, options.price_per_hour, options.project), options, f"bertbench report {path}")
