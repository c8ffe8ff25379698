"""The HTML page of a run: one file that opens anywhere, without network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import wording
from analysis.diagnose import run as doubts
from analysis.diagnose.answer import Answer, complete_answers, nothing_measured, points, profile_answer
from analysis.diagnose.finding import Finding
from analysis.diagnose.profiles import OpenedProfile, open_profile, summary_rows, utilization_by_batch
from analysis.load import TAKEN_APART, LoadedRun, LoadedTrial, load_run
from analysis.metrics.communication.links import fitted_links, link_rows, project
from analysis.metrics.comparison.within_run import input_ratios, ratios_of, synthetic_gaps
from analysis.metrics.pretraining_cost import pretraining_costs
from analysis.metrics.scaling import measured_efficiency
from analysis.render import run_facts
from analysis.render.light_tables import light_blocks
from analysis.render.link_figures import links_figure
from analysis.render.link_tables import collectives_table, links_table, projection_blocks
from analysis.render.page import (
    Block,
    Cards,
    Figures,
    Page,
    Section,
    Text,
    advice_blocks,
    finding_panel,
    listed,
    report_folder,
    write_page,
)
from analysis.render.pages import source_figures
from analysis.render.result_tables import (
    caution_lines,
    input_tables,
    largest_tables,
    pretraining_table,
    rank_tables,
    results_blocks,
    scaling_tables,
)
from analysis.render.run_figures import run_figures, taken_apart, utilization_figure, waterfall_figure
from analysis.render.tables import Facts, write_csv, write_frame
from analysis.render.training import training_part
from analysis.wording import Row
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS, RESULTS
from records.training import TrainRun

_MOST_ANSWERS = 3
_PRETRAINING = (
    "Days, and at --price-per-hour the cost, of pretraining as published (Devlin et al. 2019): 230.4 million sequences "
    "of 128 tokens, then 25.6 million of 512, at the fastest batch measured with that length, without evaluations, "
    "checkpoints and pauses."
)
_LARGEST = "Micro batch per device, found by doubling and bisection, each size in its own process."
_INPUT = "Batches drawn, adapted and pinned as in training, without training."
_GAP = "The same trials on synthetic batches with the lengths of the real samples. Below 0, real data cost speed."
_RANKS = "Medians per rank. Ranks wait for each other in the all-reduce: own work, not step time, shows the late rank."
_RECORDED = "Recording slows steps down, so read shares, not absolute times."
_RATIOS = (
    ("95 % interval", "Moving-block bootstrap of the median; over several rounds, of the processes first."),
    ("throughput ratio", "samples/s of an implementation / that of the reference at the same configuration."),
    ("conclusive", "Three interleaved rounds a side whose interval of the ratio excludes 1, or lies within 5 % of it."),
    ("scaling efficiency", "Throughput on n devices / (that on the fewest devices x the increase in devices)."),
    ("own work", "Step time without exposed communication and data wait."),
)


def write_report(
    run: RunDirectory,
    price_per_hour: float | None = None,
    out: Path | None = None,
    project_to: Sequence[int] = (),
) -> tuple[Path, list[Answer]]:
    """Write report.html, its figures and its CSV tables into the run's report folder; return the page and the answers
    about speed that it shows.

    Args:
        run: the run directory.
        price_per_hour: price of the machine, for the cost columns.
        out: folder to write into instead.
        project_to: numbers of devices to project to.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by another version of bertbench.
        UsageError: price_per_hour is not above 0, or a projection is asked for that is none.
        StorageError: the report folder cannot be written.
    """
    folder = out or run.report
    everything = load_run(run, price_per_hour)
    with report_folder(folder, given=out is not None):
        return _write(run, everything, folder, price_per_hour, project_to)


def _write(
    run: RunDirectory, everything: LoadedRun, folder: Path, price_per_hour: float | None, project_to: Sequence[int]
) -> tuple[Path, list[Answer]]:
    # Collectives and broken-down steps are no trainings to compare; they have sections of their own.
    whole = tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART)
    trials = LoadedRun(whole, everything.problems)
    rows = sorted((trial.row for trial in trials), key=wording.order)
    ratios = ratios_of(trials, doubts.reference(trials))
    inputs, gaps, scaling = input_ratios(trials), synthetic_gaps(trials), measured_efficiency(trials)
    measured = points(trials)
    profiles = _profiles(trials)
    advised = {one.trial.trial.trial_id: one.opened.to_do(one.findings) for one in profiles if one.opened}
    complete = complete_answers(everything, measured, ratios, str(run.path), advised)
    rates = [{**point.row, "samples_per_second": point.samples_per_second} for point in measured]
    utilization = utilization_by_batch(summary_rows(run)) if profiles and not measured else {}
    training, in_training = training_part(TrainRun(run.path), trials, folder)
    answers = [*training, *complete]
    if utilization and not answers:
        answers = [profile_answer(utilization)]
    figures = run_figures(trials, measured, scaling)
    if utilization:
        figures = [utilization_figure(utilization), *figures]
    cautions = caution_lines(everything, doubts.cautions_of_run(trials, ratios, scaling))
    made = {table.name: table for table in input_tables(inputs, gaps)}
    linked, of_links = _links(everything, project_to)
    _write_csvs(
        folder,
        rows,
        {"ratios": ratios, "scaling": scaling, "input": inputs, "real_against_synthetic": gaps, **of_links},
        trials,
    )
    results = results_blocks(rows, ratios, page=True) if rows else []
    failures = doubts.failures(everything)
    results += [Facts(failures, "Trials without a result")] if failures else []
    sections = [
        Section("", _answers(answers or [nothing_measured(everything)]), "answer"),
        Section("What ran", [Facts(run_facts.facts(trials or everything))]),
        *in_training,
        *_waterfalls(everything, folder),
        Section("Cautions", listed([line.removeprefix("caution: ") for line in cautions])),
        Section("Results", results),
        Section("Figures", [Figures(figures)] if figures else []),
        Section("Pretraining", _explained(_PRETRAINING, pretraining_table(pretraining_costs(rates, price_per_hour)))),
        Section("Largest batch", _largest(run)),
        Section("Input", _explained(_INPUT, [made["input"]] if "input" in made else [])),
        Section("Real compared with synthetic data", _explained(_GAP, [made["gap"]] if "gap" in made else [])),
        Section("Scaling", scaling_tables(scaling)),
        *linked,
        Section("Ranks", _explained(_RANKS, rank_tables(trials))),
        Section("Profile", _profile_blocks(profiles, folder)),
        Section("Machine and software in detail", [Facts(run_facts.environment(trials or everything))], folded=True),
        Section("What the numbers mean", [Facts([*_MEANINGS, *_RATIOS])], folded=True),
    ]
    return write_page(Page(run.path.resolve().name, "bertbench report", sections), folder)[0], complete


_MEANINGS = [(column.label, column.says) for column in RESULTS if column.label]


def _explained(text: str, blocks: Sequence[Block]) -> list[Block]:
    """Return blocks below what they are; nothing where there are none."""
    return [Text(text, "faint"), *blocks] if blocks else []


def _answers(answers: Sequence[Answer]) -> list[Block]:
    shown: list[Block] = [Section("", _answer(answer)) for answer in answers]
    more = shown[_MOST_ANSWERS:]
    return [*shown[:_MOST_ANSWERS], Section(wording.counted(len(more), "more model"), more, folded=True)]


def _answer(answer: Answer) -> list[Block]:
    blocks: list[Block] = [Text(answer.headline, "headline")]
    if answer.badge:
        blocks.append(Text(f"Machine disturbed: {answer.badge}", "badge caution"))
    if answer.cards:
        blocks.append(Cards(answer.cards))
    return [*blocks, *answer.good, *advice_blocks(answer.advice), *answer.sentences]


def _waterfalls(everything: LoadedRun, folder: Path) -> list[Section]:
    """Return one section for every broken-down step; both tables of each are written as CSV files too."""
    sections: list[Section] = []
    for number, trial in enumerate(taken_apart(everything)):
        for name in ("waterfall", "components"):
            write_csv(folder / f"{name}-{number}.csv", trial.row[name])
        title = (
            f"Speed of light: {wording.implementation(trial.row)} {wording.model(trial.row)} {wording.place(trial.row)}"
        )
        title += f", {trial.trial.trial_id}" if title in [one.title for one in sections] else ""
        floor, ceilings, *blocks = light_blocks(trial)
        figures = Figures([waterfall_figure(trial.row, f"waterfall-{number}")])
        sections.append(Section(title, [floor, ceilings, figures, *blocks]))
    return sections


def _largest(run: RunDirectory) -> list[Block]:
    largest, errors = run.read_max_batches()
    return _explained(_LARGEST, [*(Text(error, "decides") for error in errors), *largest_tables(largest)])


def _links(everything: LoadedRun, project_to: Sequence[int]) -> tuple[list[Section], dict[str, Sequence[Row]]]:
    """Return the sections about collectives and projections, and their rows by the name of their CSV file."""
    measured = [trial for trial in everything if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    links = fitted_links(measured)
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    projected = project(everything, project_to) if project_to else []
    blocks: list[Block] = [Figures([links_figure(links)]), links_table(links)] if links else []
    blocks += [collectives_table(by_size)] if by_size else []
    sections = [
        Section("Projection to more devices", projection_blocks(projected) if projected else []),
        Section("Collectives", blocks),
    ]
    return sections, {"collectives": by_size, "links": link_rows(links), "projection": projected}


@dataclass(frozen=True, slots=True)
class _Profile:
    """What the profiler left of one trial."""

    trial: LoadedTrial
    opened: OpenedProfile | None
    """None where nothing was written."""
    findings: Sequence[Finding]


def _profiles(trials: Sequence[LoadedTrial]) -> list[_Profile]:
    profiles = []
    for trial in trials:
        if trial.trial.kind == "profile":
            opened = open_profile(trial.directory) if trial.directory.profile.is_dir() else None
            profiles.append(_Profile(trial, opened, opened.explained() if opened else []))
    return profiles


def _profile_blocks(profiles: Sequence[_Profile], folder: Path) -> list[Block]:
    """Return what profilers left, with its figures and tables; a damaged profile is named, and the rest is shown."""
    errors: list[Block] = []
    sections: list[Block] = []
    for profile in profiles:
        row, opened = profile.trial.row, profile.opened
        name = f"{wording.implementation(row)}, {wording.place(row)}, {profile.trial.trial.profiler}"
        if opened is None:
            why = f"{row['status']}: {row.get('reason') or 'nothing was written'}"
            errors.append(Text(f"{name}: no profile ({why})", "decides"))
            continue
        errors += [Text(f"{name}: {problem}", "decides") for problem in opened.source.problems]
        place = f"profiles/{profile.trial.trial.trial_id}"
        figures = source_figures(opened.source, opened.measured)
        prefix = f"profile-{len(sections)}-"
        panels = [finding_panel(one, figures.get(one.name, ()), prefix, place) for one in profile.findings]
        sections.append(Section(name, panels))
        for finding in profile.findings:
            write_frame(folder / place / f"{finding.name}.csv", finding.table)
    return [*errors, *sections, Text(_RECORDED, "faint")] if errors or sections else []


def _write_csvs(
    folder: Path, rows: Sequence[Row], extra: Mapping[str, Sequence[Row]], trials: Sequence[LoadedTrial]
) -> None:
    write_csv(folder / "results.csv", rows, RESULT_COLUMNS)
    ranks = [
        {"trial_id": trial.trial.trial_id, **rank} for trial in trials if trial.ok for rank in trial.row["per_rank"]
    ]
    for name, content in {**extra, "ranks": ranks}.items():
        if content:
            write_csv(folder / f"{name}.csv", content)
