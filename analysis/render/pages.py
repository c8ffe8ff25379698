"""The HTML pages of a run, a profile, a folder of trainings, a classification."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from analysis import wording
from analysis.diagnose import run as doubts
from analysis.diagnose.answer import Answer, complete_answers, points, without_measurement
from analysis.diagnose.explain import by_weight, counter_endings, to_do
from analysis.diagnose.finding import Finding
from analysis.diagnose.profiles import open_profile, summary_rows, utilization_by_batch
from analysis.load import TAKEN_APART, LoadedRun, LoadedTrial
from analysis.metrics.classification import Classification
from analysis.metrics.communication.collectives import fitted_links
from analysis.metrics.comparison.runs import input_ratios, ratios_of
from analysis.metrics.comparison.trainings import WHOLE, Training, courses_of, score_columns, summaries
from analysis.metrics.scaling import measured_efficiency, pretraining_costs
from analysis.open import Source
from analysis.render import result_tables
from analysis.render.comparison_tables import trainings_blocks
from analysis.render.figure import Figure
from analysis.render.page import (
    Block,
    Cards,
    Figures,
    Files,
    Items,
    Section,
    Text,
    advice_blocks,
    finding_files,
    finding_panel,
    listed,
    write_page,
)
from analysis.render.run_figures import run_figures, utilization_figure
from analysis.render.tables import Block as TextBlock
from analysis.render.tables import Facts, Table, columns, write_csv
from analysis.render.training import training_part
from analysis.render.training_figures import trainings_figure
from analysis.wording import Row, percent
from records.classification import ClassificationResult
from records.run import RunDirectory
from records.schema import PROFILED_TRAINING_COLUMNS, RESULT_COLUMNS, TRAINING_COLUMNS
from records.training import TrainRun, is_train_run, read_trainings

_MOST_ANSWERS = 3
_PRETRAINING = (
    "Days, and at --price-per-hour the cost, of pretraining as published (Devlin et al. 2019): 230.4 million sequences "
    "of 128 tokens, then 25.6 million of 512, at the fastest batch measured with that length, without evaluations, "
    "checkpoints and pauses."
)
_LARGEST = "Micro batch per device, found by doubling and bisection, each size in its own process."
_INPUT = "Batches drawn, adapted and pinned as in training, without training."
_RANKS = "Medians per rank. Ranks wait for each other in the all-reduce: own work, not step time, shows the late rank."
_RECORDED = "Recording slows steps down, so read shares, not absolute times."
_MOST_FURTHER = 5
_BREAKDOWN = "temporal_breakdown"
"""Finding that says where the time goes."""
_MOST_CONFUSED = 15
_MOST_LABELS, _MOST_SHOWN = 10, 5
"""Labels and errors that a terminal shows."""


class RunPart(NamedTuple):
    """What a page says of one run: its trials are compared with each other, not with those of other runs."""

    run: RunDirectory
    sections: list[Section]
    files: Files
    rows: list[Row]
    answers: list[Answer]
    ratios: list[dict[str, Any]]


def write_report(parts: Sequence[RunPart], out: Path | None) -> Path:
    """Write report.html of runs with figures and CSV tables into `out`, or into the first run's report folder."""
    several = len(parts) > 1
    sections = [Section(str(one.run.path), one.sections) for one in parts] if several else parts[0].sections
    columns = ("run", *RESULT_COLUMNS) if several else RESULT_COLUMNS
    rows = [{**row, "run": str(part.run.path)} for part in parts for row in part.rows]
    files: Files = {"results.csv": partial(write_csv, rows=rows, columns=columns)}
    files |= {name: write for part in parts for name, write in part.files.items()}
    title = ", ".join(part.run.path.resolve().name for part in parts)
    return write_page(out or parts[0].run.report, title, "bertbench report", sections, files)[0]


def part_of_run(
    run: RunDirectory, everything: LoadedRun, price_per_hour: float | None, projected: Sequence[Row], prefix: str
) -> RunPart:
    """Return what a page says of the trials of a run, with rows of scaling.project; `prefix` begins names of files."""
    # Collectives and broken-down steps are no trainings to compare; they have sections of their own.
    trials = LoadedRun(tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART), everything.problems)
    rows = sorted((trial.row for trial in trials), key=wording.order)
    ratios = ratios_of(trials, doubts.reference(trials))
    scaling, measured = measured_efficiency(trials), points(trials)
    profiles, of_profiles, advised = _profiles(trials, prefix)
    complete = complete_answers(everything, measured, ratios, str(run.path), advised)
    utilization = {} if measured else utilization_by_batch(summary_rows(run))
    training, in_training = training_part(TrainRun(run.path), trials)
    figures = [utilization_figure(utilization)] if utilization else []
    figures += run_figures(measured, scaling)
    cautions = doubts.caution_texts(everything, doubts.cautions_of_run(trials, ratios, scaling))
    failures = doubts.failures(everything)
    results: list[Block] = [*result_tables.results_blocks(rows, ratios, page=True)] if rows else []
    results += [Facts(failures, "Trials without a result")] if failures else []
    rates = [{**point.row, "samples_per_second": point.samples_per_second} for point in measured]
    sections = [
        Section("", _answers([*training, *complete] or [without_measurement(run, everything)]), "answer"),
        Section("What ran", [Facts(facts(trials or everything))]),
        *in_training,
        *_broken_down(everything),
        Section("Cautions", listed(cautions)),
        Section("Results", results),
        Section("Figures", [Figures(figures)] if figures else []),
        _explained(
            "Pretraining", _PRETRAINING, result_tables.pretraining_table(pretraining_costs(rates, price_per_hour))
        ),
        _explained("Largest batch", _LARGEST, result_tables.largest_tables(run.read_max_batches())),
        _explained("Input", _INPUT, result_tables.input_tables(input_ratios(trials))),
        Section("Scaling", result_tables.scaling_tables(scaling)),
        Section("Projection to more devices", result_tables.projection_blocks(projected) if projected else []),
        Section("Collectives", _collectives(everything)),
        _explained("Ranks", _RANKS, result_tables.rank_tables(trials)),
        _explained("Profile", _RECORDED, profiles),
    ]
    ranks = [{"trial_id": one.trial.trial_id, **rank} for one in trials if one.ok for rank in one.row["per_rank"]]
    files: Files = {f"{prefix}ranks.csv": partial(write_csv, rows=ranks), **of_profiles}
    return RunPart(run, sections, files, rows, complete, ratios)


def _explained(title: str, text: str, blocks: Sequence[Block]) -> Section:
    """Return blocks below what they are; an empty section where there are none."""
    return Section(title, [Text(text, "faint"), *blocks] if blocks else [])


def _answers(answers: Sequence[Answer]) -> list[Block]:
    shown: list[Block] = []
    for answer in answers:
        blocks: list[Block] = [Text(answer.headline, "headline")]
        blocks += [Text(f"Machine disturbed: {answer.badge}", "badge caution")] if answer.badge else []
        blocks += [Cards(answer.cards)] if answer.cards else []
        shown.append(Section("", [*blocks, *advice_blocks(answer.advice), *answer.sentences]))
    more = shown[_MOST_ANSWERS:]
    return [*shown[:_MOST_ANSWERS], Section(wording.counted(len(more), "more model"), more, folded=True)]


def _broken_down(everything: LoadedRun) -> list[Section]:
    """Return one section for every broken-down step."""
    sections: list[Section] = []
    for trial in everything:
        row = trial.row
        if trial.trial.kind == "components" and row["status"] == "ok":
            title = f"Speed of light: {wording.implementation(row)} {wording.model(row)} {wording.place(row)}"
            title += f", {trial.trial.trial_id}" if title in [one.title for one in sections] else ""
            sections.append(Section(title, result_tables.light_blocks(trial)))
    return sections


def _collectives(everything: LoadedRun) -> list[Block]:
    measured = [trial for trial in everything if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    links = fitted_links(measured)
    return [
        *([result_tables.collectives_table(by_size)] if by_size else []),
        *([result_tables.links_table(links)] if links else []),
    ]


def _profiles(trials: Sequence[LoadedTrial], prefix: str) -> tuple[list[Block], Files, dict[str, Sequence[Any]]]:
    """Return what profilers left, its tables as files, and its advice by trial; a damaged profile is named."""
    errors: list[Block] = []
    sections: list[Block] = []
    files: Files = {}
    advised: dict[str, Sequence[Any]] = {}
    for trial in trials:
        if trial.trial.kind != "profile":
            continue
        name = f"{wording.implementation(trial.row)}, {wording.place(trial.row)}, {trial.trial.profiler}"
        if not trial.directory.profile.is_dir():
            why = f"{trial.row['status']}: {trial.row.get('reason') or 'nothing was written'}"
            errors.append(Text(f"{name}: no profile ({why})", "decides"))
            continue
        opened = open_profile(trial.directory)
        advised[trial.trial.trial_id] = opened.advice
        errors += [Text(f"{name}: {problem}", "decides") for problem in opened.source.problems]
        place, anchor = f"profiles/{prefix}{trial.trial.trial_id}", f"profile-{prefix}{len(sections)}-"
        figures = source_figures(opened.source)
        panels = [finding_panel(one, figures.get(one.name, ()), anchor, place) for one in opened.findings]
        sections.append(Section(name, panels))
        files |= finding_files(opened.findings, f"{place}/")
    return [*errors, *sections], files, advised


def facts(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return what ran and on what, as (name, value)."""
    recorded = next((trial.environment for trial in trials if trial.environment), {})
    gpus = Counter(str(gpu.get("name")) for gpu in recorded.get("gpus") or [])
    machine = [f"{count} × {name}" for name, count in gpus.items()]  # noqa: RUF001
    machine.append(str((recorded.get("cpu") or {}).get("model") or recorded.get("device_name") or "not recorded"))
    versions = {"Python": recorded.get("python"), "driver": recorded.get("driver"), **(recorded.get("libraries") or {})}
    software = [*filter(None, [recorded.get("system")]), *(f"{name} {one}" for name, one in versions.items() if one)]
    tally = Counter(str(trial.row["status"]) for trial in doubts.without_probes(trials))
    rounds = len({trial.trial.round for trial in trials if trial.trial.kind not in ("train", "probe")}) or 1
    ended = ", ".join(f"{count} {status}" for status, count in tally.items()) or "only probes"
    rows = [
        ("machine", ", ".join(machine)),
        *_settings(trials),
        ("trials", f"{ended}, {wording.counted(rounds, 'round')}"),
        ("software", ", ".join(software) or "not recorded"),
        *dict.fromkeys(("the fast step lacks", str(trial.row.get("step_lacks") or "")) for trial in trials),
    ]
    return [(name, value) for name, value in rows if value]


def _settings(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    shown = [trial for trial in trials if trial.trial.kind not in result_tables.NOT_MEASURED] or trials
    rows = [dataclasses.asdict(trial.trial) for trial in shown]
    kinds = {row["kind"] for row in rows}

    def listed(text: str | Callable[[Row], str]) -> str:
        return ", ".join(map(str, sorted({row[text] if isinstance(text, str) else text(row) for row in rows})))

    if kinds == {"comm"}:
        collectives = listed(lambda row: str(dict(row["collective"]).get("name")))
        return [("collectives", f"{collectives}, {listed('precision')}"), ("ranks", listed("world_size"))]
    if kinds == {"measure"}:
        return [("command", listed(lambda row: " ".join(row["command"]))), ("ranks", listed("world_size"))]
    return [
        ("model", f"BERT {listed('preset')}, sequences of {listed(wording.lengths)}, {listed('precision')}"),
        ("task", f"{listed(wording.task)}, data: {listed(wording.data)}"),
        ("implementations", f"{listed('implementation')} (strategy {listed(wording.strategy)})"),
        ("swept", f"micro batch {listed('micro_batch_size')}; devices {listed('world_size')}"),
    ]


def source_figures(source: Source) -> dict[str, list[Figure]]:
    """Return every figure for which a source has data, by the name of its finding."""
    from analysis.render.profile_figures import kernel_figures, trace_figures

    figures = trace_figures(source.timelines) if source.timelines else {}
    for counters, ending in zip(source.counters, counter_endings(source), strict=True):
        figures |= kernel_figures(counters, ending)
    return figures


def write_source_report(source: Source, findings: Sequence[Finding], folder: Path) -> Path:
    """Write report.html of a profile, its figures and its CSV tables; return the page. Raises StorageError.

    It has the answer, what to do first, where the time goes, further findings, details.
    """
    figures = source_figures(source)
    panels = {finding.name: finding_panel(finding, figures.get(finding.name, ())) for finding in findings}
    breakdown = panels.pop(_BREAKDOWN, None)
    further = [(one.name, one.title, one.sentence) for one in by_weight(findings) if one.sentence]
    first = further.pop(0) if further else None
    where = [block for block in breakdown.blocks if not first or block != first[2]] if breakdown else []
    answer: list[Block] = [Text(first[2], "headline")] if first else ["This profile has no findings."]
    more: list[Block] = [Items(further[:_MOST_FURTHER])] if further else []
    if rest := further[_MOST_FURTHER:]:
        more.append(Section(f"{len(rest)} more", [Items(rest)], folded=True))
    sections = [
        Section("", [*answer, *advice_blocks(to_do(source, findings))], "answer"),
        Section("Where the time goes", where, anchor=_BREAKDOWN),
        Section("Further findings", more),
        Section("Details", [*panels.values()]),
        Section("Input", [Facts(_source_facts(source)), Section("Not read or not in it", listed(source.problems))]),
    ]
    title, files = source.path.resolve().name, finding_files(findings)
    return write_page(folder, title, "bertbench profile report", sections, files)[0]


def _source_facts(source: Source) -> list[tuple[str, str]]:
    sizes = {one.world_size for one in source.timelines if one.world_size}
    names = [name for one in source.timelines for name in one.devices.values()]
    names += [one.device_name for one in source.counters if one.device_name]
    ranks = f"{len(source.timelines)}{f' of {max(sizes)}' if sizes else ''}" if source.timelines else ""
    rows = [("source", source.path.name), ("kind", ", ".join(source.kinds)), ("ranks", ranks)]
    rows += [("GPUs", ", ".join(filter(None, dict.fromkeys(names))))]
    rows += [("table", f"{one.title} ({one.source})" if one.source else one.title) for one in source.summaries]
    return [(name, value) for name, value in rows if value]


def trainings_in(folder: Path) -> list[TrainRun]:
    """Return the training runs in a folder that is none itself, in the order in which they began."""
    if is_train_run(folder) or not folder.is_dir():
        return []
    runs = [TrainRun(path) for path in sorted(folder.iterdir()) if path.is_dir() and is_train_run(path)]
    return sorted((run for run in runs if run.attempts()), key=lambda run: run.attempts()[0].trial_json.stat().st_mtime)


def write_trainings_report(folder: Path, runs: Sequence[TrainRun], out: Path | None) -> tuple[Path, Row]:
    """Write the page of several trainings into `out`, or into `report` of their folder; return it and trainings.json
    as it is now.

    Raises SchemaError for a damaged record, and StorageError.
    """
    record = read_trainings(folder)
    recorded = {row["folder"]: row for row in record["rows"]}
    trainings = []
    for run in runs:
        row = recorded.get(run.path.name, {})
        profile = {name: row.get(name) for name in PROFILED_TRAINING_COLUMNS if row}
        variant = row.get("variant", run.path.name)
        trainings.append(Training(run=run, variant=variant, seed=row.get("seed"), profile=profile))
    target = (record["target"] or {}).get("value")
    courses = courses_of(trainings, target, record["price_per_hour"], record["data"].get("samples"))
    rows = [course.row for course in courses]
    document = record | {"rows": rows, "variants": summaries(rows, target)}
    figure = trainings_figure(courses, target)
    whole = sum(row["status"] in WHOLE for row in rows)
    sections = [
        Section("", [Text(f"{whole} of {len(rows)} trainings finished.", "headline")], "answer"),
        Section("Trainings", trainings_blocks(document)),
        Section("Figures", [Figures([figure])] if figure else []),
    ]
    names = [*TRAINING_COLUMNS, *score_columns(rows)]
    files: Files = {"trainings.csv": partial(write_csv, rows=rows, columns=names)}
    page = write_page(out or folder / "report", folder.resolve().name, "bertbench report", sections, files)[0]
    return page, document


def write_classification_report(result: ClassificationResult, scores: Classification, folder: Path) -> Path:
    """Write the page of a classification, its figures and its tables; return the page. Raises StorageError."""
    from analysis.render.task_figures import classification_figures

    header = ["true_label", *(f"predicted {label}" for label in scores.labels)]
    rows = [(label, *counts) for label, counts in zip(scores.labels, scores.confusion.tolist(), strict=True)]
    confusion = [dict(zip(header, row, strict=True)) for row in rows]
    headline = str(classification_blocks(result, scores)[0])
    run = [(name.replace("_", " "), str(value)) for name, value in result.run.items() if value not in (None, "")]
    sections = [
        Section("", [Text(headline, "headline"), Cards([(*card, "") for card in _scores(scores)])], "answer"),
        Section("Input", [Facts([*_inputs(result), *run])]),
        Section("Figures", [Figures(classification_figures(result, scores))]),
        Section("Each label", _label_tables(scores, scores.report, "", _MOST_CONFUSED)),
    ]
    files: Files = {
        "classification_report.csv": partial(write_csv, rows=scores.report),
        "confusion_matrix.csv": partial(write_csv, rows=confusion, columns=header),
    }
    return write_page(folder, result.root.name, "bertbench classification", sections, files)[0]


def classification_blocks(result: ClassificationResult, scores: Classification) -> list[TextBlock]:
    """Return the result in one sentence, scores, the labels with the lowest F1, frequent errors."""
    gain = 100 * (scores.accuracy - scores.majority)
    headline = (
        f"Accuracy {percent(scores.accuracy)} on {scores.texts:,} held-out texts with {len(scores.labels)} labels: "
        f"{abs(gain):.1f} points {'above' if gain >= 0 else 'below'} always predicting the most frequent label"
    )
    rows, title = scores.report, ""
    if len(rows) > _MOST_LABELS:
        rows = sorted((row for row in rows if row["support"]), key=lambda row: row["f1"] or 0.0)[:_MOST_LABELS]
        title = f"the {len(rows)} of {len(scores.labels):,} labels with the lowest F1, of those that occur"
    return [headline, Facts([*_scores(scores), *_inputs(result)]), *_label_tables(scores, rows, title, _MOST_SHOWN)]


def _label_tables(scores: Classification, rows: Sequence[Row], title: str, most_errors: int) -> list[Table]:
    of_label = columns("label precision recall f1 support predicted")
    names = ("true", "given", "texts", "share")
    errors = [dict(zip(names, one, strict=True)) for one in scores.most_confused(most_errors)]
    of_error = columns(names, true="true label", given="prediction", share="of that label")
    report = Table("report", of_label, rows, title, "classification_report.csv")
    return [report, *([Table("confused", of_error, errors, "most frequent errors")] if errors else [])]


def _scores(scores: Classification) -> list[tuple[str, str]]:
    names = ("accuracy", "balanced accuracy", "macro F1", "weighted F1", "majority baseline")
    values = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1, scores.weighted_f1, scores.majority)
    return [(name, percent(value)) for name, value in zip(names, values, strict=True)]


def _inputs(result: ClassificationResult) -> list[tuple[str, str]]:
    splits = ", ".join(f"{split} {sum(counts.values()):,}" for split, counts in result.label_distribution.items())
    return [("source", result.root.name), *([("texts", splits)] if splits else [])]
