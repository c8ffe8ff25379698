"""The HTML page of a run: one file that opens anywhere, without network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.load import LoadedRun, LoadedTrial, load_run
from analysis.metrics import cautions as cautions_of
from analysis.metrics.input_pipeline import input_ratios, synthetic_gaps
from analysis.metrics.regression import ratios_of
from analysis.metrics.scaling import measured_efficiency
from analysis.profiles import open_profile
from analysis.report import figures, sections, tables
from analysis.report.answer import answers, nothing_measured, points
from analysis.report.glossary import GLOSSARY
from analysis.report.input_tables import input_tables
from analysis.report.largest import largest_tables, read_largest
from analysis.report.light_sections import light_parts
from analysis.report.link_sections import link_part
from analysis.report.page import render_page
from analysis.report.panels import Panel, panels
from analysis.report.report_folder import report_folder
from analysis.report.training import training_part
from analysis.trial_summary import TAKEN_APART
from common.atomic import write_text
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS
from records.training import TrainRun

Row = Mapping[str, Any]


def write_report(
    run: RunDirectory,
    price_per_hour: float | None = None,
    out: Path | None = None,
    project_to: Sequence[int] = (),
    same_links: bool = False,
) -> Path:
    """Write report.html, its pictures and its CSV tables into the run's report folder; return the page.

    Everything is computed afresh from the raw records. The page holds its pictures, style and script.

    Args:
        run: the run directory.
        price_per_hour: price of the machine, for the cost columns.
        out: folder to write into instead.
        project_to: numbers of devices to project to, as metrics.projection does.
        same_links: as metrics.projection.project takes it.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by a newer bertbench.
        UsageError: price_per_hour is not above 0, or a projection is asked for that is none.
        StorageError: the report folder cannot be written.
    """
    folder = out or run.report
    everything = load_run(run, price_per_hour)
    with report_folder(folder):
        return _write(run, everything, folder, project_to, same_links)


def _write(run: RunDirectory, everything: LoadedRun, folder: Path, project_to: Sequence[int], same_links: bool) -> Path:
    # Collectives train nothing, and steps taken apart are compared with nothing: they have parts of their own.
    whole = tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART)
    trials = LoadedRun(whole, everything.problems)
    rows = sorted((trial.row for trial in trials), key=tables.order)
    shown = sections.shown_rows(rows)
    reference = _reference(trials)
    ratios = ratios_of(trials, reference)
    inputs, gaps = input_ratios(trials), synthetic_gaps(trials)
    scaling = measured_efficiency(trials)
    links = link_part(everything, scaling, folder, project_to, same_links)
    found = points(trials)
    profiles, profile_errors = _profiles(trials, folder)
    largest, largest_errors = read_largest(run)
    pictures = figures.draw_all(folder, trials, found, scaling)
    training = training_part(TrainRun(run.path), trials, folder)
    said = answers(found, ratios)
    said = said if training is None else [training.answer, *said]
    extra = {"ratios": ratios, "scaling": scaling, "input": inputs, "real_against_synthetic": gaps, **links.rows}
    _write_csvs(folder, rows, extra, trials)
    shown_tables = [
        sections.results(shown, ratios),
        *largest_tables(largest),
        *sections.rank_tables(trials),
        *sections.scaling_tables(scaling),
        *input_tables(inputs, gaps),
    ]
    page = render_page(
        "page.html",
        {
            "title": run.path.resolve().name,
            "answers": said or [nothing_measured(everything)],
            "links": links,
            "taken_apart": light_parts(everything, folder),
            "training": training,
            "facts": sections.facts(trials or everything),
            "failures": sections.failures(everything),
            "decides": sections.what_it_decides(trials, ratios),
            "cautions": sections.grouped_cautions(everything, _run_cautions(trials, ratios, scaling)),
            "largest_errors": largest_errors,
            "tables": {table.name: table for table in shown_tables},
            "pictures": pictures,
            "profiles": profiles,
            "profile_errors": profile_errors,
            "environment": sections.environment(trials or everything),
            "glossary": GLOSSARY,
        },
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _reference(trials: Sequence[LoadedTrial]) -> str:
    """hf where it was measured, else another implementation that ours can be held against."""
    names = sorted({str(trial.row["implementation"]) for trial in trials if trial.trial.kind == "throughput"})
    others = [name for name in names if name != "bertbench"]
    return "hf" if "hf" in names or not others else others[0]


def _run_cautions(
    trials: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]
) -> list[cautions_of.Caution]:  # fmt: skip
    found = [cautions_of.damaged(problem) for problem in trials.problems]
    found += cautions_of.of_run([trial.environment for trial in trials])
    found += cautions_of.of_scaling(scaling)
    rounds = [min(row["rounds"], row["reference_rounds"]) for row in ratios if row["throughput_ratio"] is not None]
    fewest = min(rounds, default=3)
    return [*found, cautions_of.one_round(fewest)] if fewest < 3 else found


def _profiles(trials: Sequence[LoadedTrial], folder: Path) -> tuple[list[tuple[str, list[Panel]]], list[str]]:
    """Read what profilers left, draw it, write its tables; a damaged profile is named, and the rest is still shown."""
    found: list[tuple[str, list[Panel]]] = []
    errors: list[str] = []
    for trial in trials:
        if trial.trial.kind != "profile":
            continue
        name = f"{trial.row['implementation']}, {tables.place(trial.row)}"
        name = f"{name}, {trial.trial.profiler}"
        if not trial.directory.profile.is_dir():
            why = f"{trial.row['status']}: {trial.row.get('reason') or 'nothing was written'}"
            errors.append(f"{name}: no profile ({why})")
            continue
        opened = open_profile(trial.directory)
        errors += [f"{name}: {problem}" for problem in opened.source.problems]
        findings = opened.explained()
        own = folder / "profiles" / trial.trial.trial_id
        found.append((name, panels(opened.source, findings, own, f"profile-{len(found)}-", opened.measured)))
        for finding in findings:
            tables.write_frame(own / f"{finding.name}.csv", finding.table)
    return found, errors


def _write_csvs(
    folder: Path,
    rows: Sequence[Row],
    extra: Mapping[str, Sequence[Row]],
    trials: Sequence[LoadedTrial],
) -> None:
    tables.write_csv(folder / "results.csv", rows, RESULT_COLUMNS)
    ranks = [
        {"trial_id": trial.trial.trial_id, **rank} for trial in trials if trial.ok for rank in trial.row["per_rank"]
    ]
    for name, content in {**extra, "ranks": ranks}.items():
        if content:
            tables.write_csv(folder / f"{name}.csv", content)
