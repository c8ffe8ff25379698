"""`bertbench report PATH`: the HTML page, pictures and tables of a run, a profile or a classification."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from analysis.render.tables import Plain
from bench.cli.options import Printed, run_folder
from bench.cli.result import Result, document, on_screen, when_writable
from common.errors import UsageError
from records.classification import is_classification
from records.run import RunDirectory


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

    path: tyro.conf.Positional[Path]
    """A run directory of throughput or profile, a profile, or results of a classification."""
    out: Path | None = None
    """Folder to write; default report in the run directory, for a profile report-NAME in the current folder, for a
    classification NAME_results beside the file."""
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost columns of a run; default no cost columns."""
    project: tuple[int, ...] = ()
    """Numbers of devices to project a run to, by a model; the run needs comm trials and throughput on two numbers of
    devices; default no projection."""


OPTIONS = {"report PATH": ReportOptions}


def run(options: ReportOptions) -> Result:
    """Write the page of a run, a profile or a classification."""
    from analysis.open import is_run
    from analysis.render.pages import trainings_in, write_trainings_report

    if is_run(options.path):
        return _of_run(options)
    if trainings := trainings_in(options.path):
        path, rows = write_trainings_report(options.path, trainings, options.out)
        return Result(document={"report": str(path), "trainings": list(rows)}, blocks=[Plain(str(path))])
    if options.project:
        raise UsageError(
            "option-not-applicable",
            f"--project needs a run directory with throughput and comm trials, but {options.path} is none",
        )
    return _of_classification(options) if is_classification(options.path) else _of_profile(options)


def _of_run(options: ReportOptions) -> Result:
    from analysis.diagnose.answer import without_measurement
    from analysis.diagnose.run import cautions_of_scripts, reference
    from analysis.load import load_run
    from analysis.metrics.comparison.runs import ratios_of
    from analysis.metrics.scaling import project
    from analysis.render.pages import write_report
    from analysis.render.result_tables import caution_lines, projection_blocks, results_blocks
    from analysis.render.terminal import run_screen

    run = RunDirectory(options.path)
    path, said = write_report(run, options.price_per_hour, options.out, options.project)
    trials = load_run(run, options.price_per_hour)
    projected = project(trials, options.project) if options.project else []
    ratios = ratios_of(trials, reference(trials))
    measured = [trial for trial in trials if trial.trial.kind == "throughput"]
    if not measured:
        measured = [trial for trial in trials if trial.trial.kind == "measure"]
    results = results_blocks([trial.row for trial in measured if trial.row.get("status") is not None], ratios)
    cautions = caution_lines(measured, cautions_of_scripts(measured), joined=True)
    screen = run_screen(said or [without_measurement(run, trials)], results if measured else [], cautions)
    shown = {
        "report": str(path),
        "answers": [one.to_json() for one in said],
        "rows": [dict(trial.row) for trial in trials],
        "ratios": ratios,
    }
    return Result(
        document=shown | ({"projection": projected} if projected else {}),
        blocks=[
            *on_screen(screen, lines_after=2),
            *(projection_blocks(projected) if options.project else []),
            Plain(str(path)),
        ],
    )


def _of_profile(options: ReportOptions) -> Result:
    from analysis.diagnose.explain import explain, to_do
    from analysis.open import open_sources
    from analysis.render.pages import write_source_report
    from analysis.render.terminal import screen_of

    source = open_sources(options.path)
    findings = explain(source)
    advice = to_do(source, findings)
    name = options.path.resolve().name.partition(".")[0] or "profile"
    path = write_source_report(source, findings, options.out or Path(f"report-{name}"))
    return Result(
        document=document(findings, source.problems, report=str(path)),
        blocks=[*on_screen(screen_of(findings, advice), source.problems, 2), Plain(str(path))],
        problems=source.problems,
    )


def _of_classification(options: ReportOptions) -> Result:
    from analysis.metrics.classification import classify
    from analysis.render.pages import classification_blocks, write_classification_report
    from records.classification import read_result

    result = read_result(options.path)
    scored = classify(result.pairs, result.labels)
    folder = run_folder(options.out) if options.out else result.root.with_name(f"{result.root.name}_results")
    pages, failure = when_writable(lambda: [write_classification_report(result, scored, folder)])
    shown = {
        "file": str(options.path),
        "run": dict(result.run),
        "label_distribution": result.distribution,
        **scored.to_json(),
        "curve": [list(point) for point in result.curve],
        "evaluations": [dict(one) for one in result.evaluations],
        "page": "".join(map(str, pages)),
    }
    blocks = [*classification_blocks(result, scored), *(Plain(str(page)) for page in pages)]
    return Result(document=None if failure else shown, blocks=blocks, failure=failure)
