"""The questions that a command asks of runs: what one measured, what is fastest, how two differ, and the page of it."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.diagnose.advice import Advice
from analysis.diagnose.answer import (
    advice_of_profiles,
    complete_answers,
    points,
    script_answer,
    winners,
    without_measurement,
)
from analysis.diagnose.explain import comparison_findings, explain, to_do
from analysis.diagnose.profiles import open_profile
from analysis.diagnose.run import caution_texts, cautions_of_scripts, reference, trial_name
from analysis.load import LoadedTrial, load_run, measurement
from analysis.metrics.cautions import Caution
from analysis.metrics.classification import classify
from analysis.metrics.communication.collectives import fitted_links, link_rows
from analysis.metrics.comparison import traces
from analysis.metrics.comparison.history import history_of
from analysis.metrics.comparison.ratio import THRESHOLD
from analysis.metrics.comparison.runs import compare_runs, input_ratios, ratios_of
from analysis.metrics.scaling import project as projections
from analysis.metrics.time.window import parse_window
from analysis.open import open_sources, profiled_trials, trial_of
from analysis.render.comparison_tables import history_blocks
from analysis.render.pages import (
    classification_blocks,
    part_of_run,
    trainings_in,
    write_classification_report,
    write_report,
    write_source_report,
    write_trainings_report,
)
from analysis.render.result_tables import (
    answer_lines,
    collectives_table,
    comparison_blocks,
    input_tables,
    largest_tables,
    light_blocks,
    links_table,
    projection_blocks,
    results_blocks,
)
from analysis.render.tables import Block, Plain
from analysis.render.terminal import run_screen, screen_of
from analysis.views import View, of_findings
from common.errors import BertbenchError, InputError, UsageError
from records.classification import is_classification, read_result
from records.run import RunDirectory, is_run

Row = Mapping[str, Any]


def analyze(path: Path, window: str = "steps") -> View:
    """Explain a run directory: its measurements and its profiles.

    Args:
        path: the run directory.
        window: as `views.analyze` takes it and raises.
    """
    parse_window(window)  # refuses before anything is read
    directory = RunDirectory(path)
    trials = load_run(directory)
    rows, ratios = [dict(trial.row) for trial in trials], ratios_of(trials, reference(trials))
    names = {trial.trial.trial_id: trial_name(trial.row) for trial in trials}
    views: dict[str, View] = {}
    advised: dict[str, Sequence[Advice]] = {}
    problems: list[str] = []
    folders = [folder.name for folder in profiled_trials(directory)]
    for name in folders:
        try:
            opened = open_profile(directory.trial(name)).within(window)
        except BertbenchError as error:  # the other trials may have the window
            problems.append(f"{name}: {error}")
            continue
        advised[name] = opened.advice
        views[name] = of_findings(
            opened.findings, opened.source.problems, None, opened.source, kinds=list(opened.source.kinds)
        )
        problems += opened.source.problems
    answers = complete_answers(trials, points(trials), ratios, str(path), advised)
    shown, results = answers or [without_measurement(directory, trials)], results_blocks(rows, ratios)
    notes = [
        f"{names.get(name, name)}: {text}" for name, view in views.items() if view.screen for text in view.screen.answer
    ]
    return View(
        document={
            "path": str(path),
            "kinds": ["run"],
            "rows": rows,
            "ratios": ratios,
            "profiles": {name: view.document for name, view in views.items()},
            "answers": [answer.to_json() for answer in answers],
        },
        blocks=[
            *answer_lines(shown),
            *results,
            *(block for name, view in views.items() for block in (Plain(f"== {name}"), *view.blocks)),
        ],
        screen=run_screen(shown, results, notes),
        tables={f"{name}/{table}": frame for name, view in views.items() for table, frame in view.tables.items()},
        problems=problems,
        verdict=""
        if len(views) == len(folders) and all(view.document["findings"] for view in views.values())
        else "incomplete",
        source=next(iter(views.values())).source if len(views) == len(folders) == 1 else None,
    )


def throughput(
    run: RunDirectory, trial_ids: Collection[str], rows: Sequence[Row], price_per_hour: float | None = None
) -> View:
    """Return the throughput of trials, compared with everything else that their run measured.

    Args:
        run: the run directory.
        trial_ids: the trials of the command.
        rows: their rows of results.csv.
        price_per_hour: price of the machine, for the cost columns.
    """
    trials = load_run(run, price_per_hour)
    ratios = ratios_of(trials, reference(trials))
    asked = [trial for trial in trials if trial.trial.trial_id in trial_ids]
    # Of input alone that an earlier call measured here, what belongs to a training of this call.
    settings = {measurement(trial.row) for trial in asked if trial.trial.kind == "input"}
    beside = [trial for trial in trials if trial.trial.kind == "input" or trial.trial.trial_id in trial_ids]
    settings |= {measurement(row) for row in input_ratios(beside) if not row["reason"]}
    inputs = [row for row in input_ratios(trials) if measurement(row) in settings]
    best = points(asked)
    answers = complete_answers(trials, best, ratios, str(run.path), advice_of_profiles(trials, best))
    shown = [trial.row for trial in asked if trial.row.get("status") is not None]
    return View(
        document={
            "run": str(run.path),
            "rows": rows,
            "ratios": ratios,
            "input": inputs,
            "answers": [answer.to_json() for answer in answers],
        },
        blocks=[
            *answer_lines(answers),
            *results_blocks(shown, ratios),
            *input_tables(inputs),
            *_cautions(asked),
        ],
    )


def script(run: RunDirectory, trial_id: str) -> View:
    """Return what a measured script came to; the document has the cautions about all of its rounds."""
    trials = load_run(run)
    measured = [trial for trial in trials if trial.trial.trial_id == trial_id]
    answer = script_answer(measured)
    of_rounds = cautions_of_scripts([one for one in trials if measurement(one.row) == measurement(measured[0].row)])
    return View(
        document={"cautions": [dataclasses.asdict(one) for one in of_rounds]},
        blocks=[
            answer.headline,
            *answer.sentences,
            *results_blocks([trial.row for trial in measured]),
            *_cautions(measured, of_rounds),
        ],
    )


def collectives(run: RunDirectory, trial_ids: Collection[str]) -> View:
    """Return collectives by message size and the lines fitted to them; the verdict is "wrong" for wrong results."""
    loaded = [trial for trial in load_run(run) if trial.trial.trial_id in trial_ids]
    measured = [trial for trial in loaded if trial.row["status"] == "ok"]
    links = fitted_links(measured)
    failed = [trial for trial in loaded if trial.row["status"] != "ok"]
    return View(
        document={
            "run": str(run.path),
            "rows": [row for trial in measured for row in trial.row["by_size"]],
            "fits": link_rows(links),
            "failed": [{name: trial.row[name] for name in ("trial_id", "status", "reason")} for trial in failed],
        },
        blocks=[
            *(collectives_table(trial.row["by_size"]) for trial in measured),
            *([links_table(links)] if links else []),
        ],
        verdict="wrong" if any(trial.row["wrong"] for trial in measured) else "",
    )


def largest_batches(run: RunDirectory, rows: Sequence[Row]) -> View:
    """Return the largest batches that searches found."""
    return View(document={"run": str(run.path), "max_batch": rows}, blocks=largest_tables(rows))


def speed_of_light(run: RunDirectory, trial_id: str) -> View:
    """Return a step broken down. Raises UsageError where there is none."""
    trial = next((one for one in load_run(run) if one.trial.trial_id == trial_id), None)
    if trial is None or trial.row["status"] != "ok":
        reason = trial.row["reason"] if trial else "its records cannot be read"
        raise UsageError("run-incomplete", f"{run.trial(trial_id).path} cannot be shown ({reason}): give another --out")
    return View(document={"run": str(run.path), **trial.row}, blocks=light_blocks(trial))


def fastest(trials: Sequence[LoadedTrial]) -> Sequence[LoadedTrial]:
    """Return the rounds of the fastest configuration of the model measured most; none where none was measured."""
    best = winners(points(trials))
    return best[0].best.trials if best else ()


def rate_interval(trials: Sequence[LoadedTrial]) -> tuple[float, float]:
    """Return the 95 % interval of the samples/s of one configuration over its rounds."""
    (whole,) = points(trials)
    return whole.rate.low, whole.rate.high


def compare(a: Path, b: Path, threshold: float | None = None) -> View:
    """Compare two run directories or two traces; a is the old one.

    Args:
        a: a run directory, or anything with a trace.
        b: another of its kind.
        threshold: relative change of the step time that is a regression; None for 0.05 of traces, 0.02 of runs.

    Raises:
        InputError: one of them cannot be read.
        SchemaError: a record was written by another version of bertbench.
    """
    if not (is_run(a) and is_run(b)):
        return _compare_traces(a, b, threshold)
    comparison = compare_runs(RunDirectory(a), RunDirectory(b), THRESHOLD if threshold is None else threshold)
    decided = "undecided" if comparison["undecided"] else "" if comparison["rows"] else "nothing"
    return View(
        document=comparison,
        blocks=comparison_blocks(comparison),
        verdict="regression" if comparison["regressed"] else decided,
    )


def _compare_traces(a: Path, b: Path, threshold: float | None) -> View:
    # Trials of a run directory may hold a trace. Open the other path first: it is the one that does not fit.
    opened = {path: open_sources(path) for path in sorted((a, b), key=is_run)}
    before, after = (opened[path] for path in (a, b))
    for source in (before, after):
        if not source.timelines:
            raise InputError(
                "trace-without-work",
                f"{source.path} contains no trace with times ({', '.join(source.kinds)}): give two traces",
            )
    least = traces.THRESHOLD if threshold is None else threshold
    compared = traces.compare_traces(before.timelines, after.timelines, least, trials=(trial_of(a), trial_of(b)))
    differences = [f"differs: {difference}" for difference in compared.differences]
    numbers = ("per", "before_ms", "after_ms", "ratio", "verdict", "threshold")
    about = {"a": str(a), "b": str(b), **{name: getattr(compared, name) for name in numbers}}
    view = of_findings(
        comparison_findings(compared),
        [*differences, *before.problems, *after.problems],
        **about,
        differences=list(compared.differences),
    )
    return dataclasses.replace(view, verdict="regression" if compared.verdict == "slower" else "")


def history(paths: Sequence[Path], threshold: float | None = None) -> View:
    """Compare each measurement of several run directories with the previous one on the same kind of machine.

    Args:
        paths: run directories in any order.
        threshold: as `compare` takes it.
    """
    runs = [RunDirectory(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    over_time = history_of(runs, THRESHOLD if threshold is None else threshold)
    return View(
        document=over_time,
        blocks=history_blocks(over_time),
        problems=over_time["problems"],
        verdict="regression" if over_time["regressed"] else "",
    )


def page(
    paths: Sequence[Path], out: Path | None = None, price_per_hour: float | None = None, project: Sequence[int] = ()
) -> View:
    """Write the HTML page of runs, a folder of trainings, a profile or a classification, and return what it is of.

    Args:
        paths: run directories, each of which is a part of the page; or a folder of trainings, a file of `train
            classify`, or anything that `analyze` reads.
        out: folder to write; None for `report` in the first run directory or a folder of trainings, report-NAME in the
            current folder for a profile, NAME_results beside the file of a classification.
        price_per_hour: price of the machine of a run, for the cost columns.
        project: numbers of devices to project a run to.

    Raises:
        InputError: the path cannot be read.
        SchemaError: a record was written by another version of bertbench.
        UsageError: price_per_hour is not above 0, or the run cannot be projected.
        StorageError: the page cannot be written.
    """
    if all(map(is_run, paths)):
        return _page_of_runs([RunDirectory(path) for path in paths], out, price_per_hour, project)
    (path,) = paths
    if trainings := trainings_in(path):
        written, record = write_trainings_report(path, trainings, out)
        document = {"report": str(written), "trainings": record["rows"], "variants": record["variants"]}
        return View(document=document, blocks=[Plain(str(written))])
    if is_classification(path):
        return _page_of_classification(path, out)
    source = open_sources(path)
    findings = explain(source)
    name = path.resolve().name.partition(".")[0] or "profile"
    written = write_source_report(source, findings, out or Path(f"report-{name}"))
    view = of_findings(findings, source.problems)
    return dataclasses.replace(
        view,
        document={"report": str(written), **view.document},
        screen=dataclasses.replace(screen_of(findings, to_do(source, findings)), closing=[Plain(str(written))]),
    )


def _page_of_runs(
    runs: Sequence[RunDirectory], out: Path | None, price_per_hour: float | None, project: Sequence[int]
) -> View:
    parts, documents = [], []
    blocks: list[Block] = []
    for number, run in enumerate(runs):
        trials = load_run(run, price_per_hour)
        projected = projections(trials, project)
        parts.append(part := part_of_run(run, trials, price_per_hour, projected, f"{number}-" if number else ""))
        document = {"answers": [one.to_json() for one in part.answers], "rows": [dict(trial.row) for trial in trials]}
        documents.append({**document, "ratios": part.ratios, **({"projection": projected} if projected else {})})
        blocks += [f"{run.path}:", *answer_lines(part.answers)] if len(runs) > 1 else []
        blocks += projection_blocks(projected) if projected else []
    blocks.append(Plain(written := str(write_report(parts, out))))
    if len(runs) > 1:
        each = [{"run": str(run.path), **document} for run, document in zip(runs, documents, strict=True)]
        return View(document={"report": written, "runs": each}, blocks=blocks)
    measured = [trial for trial in trials if trial.trial.kind == "throughput"]
    measured = measured or [trial for trial in trials if trial.trial.kind == "measure"]
    results = results_blocks([trial.row for trial in measured], part.ratios) if measured else []
    notes = _cautions(measured, cautions_of_scripts(measured))
    screen = run_screen(part.answers or [without_measurement(run, trials)], results, notes)
    whole = {"report": written, **documents[0]}
    return View(document=whole, blocks=blocks, screen=dataclasses.replace(screen, closing=blocks))


def _cautions(trials: Sequence[LoadedTrial], of_run: Sequence[Caution] = ()) -> list[str]:
    return [f"caution: {text}" for text in caution_texts(trials, of_run)]


def _page_of_classification(path: Path, out: Path | None) -> View:
    result = read_result(path)
    scored = classify(result.pairs, result.labels)
    folder = out or result.root.with_name(f"{result.root.name}_results")
    written = str(write_classification_report(result, scored, folder))
    document = {
        "file": str(path),
        "run": dict(result.run),
        "label_distribution": result.label_distribution,
        **scored.to_json(),
        "curve": [list(point) for point in result.curve],
        "evaluations": [dict(one) for one in result.evaluations],
        "page": written,
    }
    return View(document=document, blocks=[*classification_blocks(result, scored), Plain(written)])
