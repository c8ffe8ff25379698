"""The HTML pages of what is no single run: a profile, a study, a folder of trainings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis import wording
from analysis.diagnose.explain import by_weight, counter_endings, to_do
from analysis.diagnose.finding import Finding
from analysis.metrics.comparison.trainings import TrainingComparison, VariantRun, compare_trainings
from analysis.render.page import (
    Block,
    Figures,
    Items,
    Page,
    Section,
    Text,
    advice_blocks,
    finding_panel,
    listed,
    report_folder,
    write_page,
)
from analysis.render.search_tables import (
    best_facts,
    counts_text,
    importance_text,
    ordered,
    reasons,
    trials_table,
    value_text,
)
from analysis.render.study_figures import tune_figures
from analysis.render.tables import Facts, Plain, write_csv, write_frame
from analysis.render.trace_figures import Figures as FiguresByName
from analysis.render.trace_figures import trace_figures
from analysis.render.training_figures import comparison_figure
from analysis.render.training_tables import comparison_notes, comparison_rows
from analysis.render.training_tables import comparison_table as trainings_table
from analysis.sources import Source
from analysis.wording import Row
from records.training import TrainRun, is_train_run

_MOST_FURTHER = 5
_BREAKDOWN = "temporal_breakdown"
"""Finding that says where the time goes."""


def source_figures(source: Source, measured: Mapping[str, float] | None = None) -> FiguresByName:
    """Return every figure for which a source has data, by the name of its finding.

    Args:
        source: what was read.
        measured: measured ceilings, as roofline takes them.
    """
    figures = trace_figures(source.timelines) if source.timelines else {}
    for counters, ending in zip(source.counters, counter_endings(source), strict=True):
        from analysis.render.kernel_figures import kernel_figures

        figures |= kernel_figures(counters, ending, measured)
    return figures


def write_source_report(source: Source, findings: Sequence[Finding], folder: Path) -> Path:
    """Write report.html, its figures and its CSV tables into a folder; return the page.

    Args:
        source: what was read.
        findings: what `explain` returned.
        folder: created if missing.

    Raises:
        StorageError: the folder cannot be written.
    """
    with report_folder(folder):
        for finding in findings:
            write_frame(folder / f"{finding.name}.csv", finding.table)
        return write_page(source_page(source, findings), folder)[0]


def source_page(source: Source, findings: Sequence[Finding]) -> Page:
    """Return the page of a source: the answer, what to do first, where the time goes, further findings, details."""
    figures = source_figures(source)
    panels = {finding.name: finding_panel(finding, figures.get(finding.name, ())) for finding in findings}
    breakdown = panels.pop(_BREAKDOWN, None)
    further = [(one.name, one.title, one.sentence) for one in by_weight(findings) if one.sentence]
    first = further.pop(0) if further else None
    where = [block for block in breakdown.blocks if not first or block != first[2]] if breakdown else []
    answer: list[Block] = [Text(first[2], "headline")] if first else ["This profile has no findings."]
    more: list[Block] = [Items(further[:_MOST_FURTHER])] if further else []
    if further[_MOST_FURTHER:]:
        rest = further[_MOST_FURTHER:]
        more.append(Section(f"{len(rest)} more", [Items(rest)], folded=True))
    problems = Section("Not read or not in the profile", listed(source.problems))
    sections = [
        Section("", [*answer, *advice_blocks(to_do(source, findings))], "answer"),
        Section("Where the time goes", where, anchor=_BREAKDOWN),
        Section("Further findings", more),
        Section("Details", [*panels.values()]),
        Section("Input", [Facts(_source_facts(source)), problems]),
    ]
    return Page(source.path.resolve().name, "bertbench profile report", sections)


def _source_facts(source: Source) -> list[tuple[str, str]]:
    rows = [("source", source.path.name), ("kind", ", ".join(source.kinds))]
    if timelines := source.timelines:
        sizes = {one.world_size for one in timelines if one.world_size}
        names = ("steps", "operators", "kernels", "ranges", "api")
        events = sum(len(getattr(one, name)) for one in timelines for name in names)
        gpus = dict.fromkeys(name for one in timelines for name in one.devices.values() if name)
        rows += [
            ("ranks", f"{len(timelines)}{f' of {max(sizes)}' if sizes else ''}"),
            ("written by", ", ".join(dict.fromkeys(one.source for one in timelines if one.source))),
            ("GPUs", ", ".join(gpus) or "none named"),
            ("events", wording.count(events)),
        ]
    for counters in source.counters:
        rows += [
            ("GPU", counters.device_name or "not named"),
            ("kernels counted", wording.count(len(counters.kernels))),
        ]
    rows += [("table", f"{one.title} ({one.source})" if one.source else one.title) for one in source.summaries]
    return [(name, value) for name, value in dict.fromkeys(rows) if value]


def write_tune_report(study: Row, folder: Path) -> list[Path]:
    """Write report.html, its figures and trials.csv into a folder; return the files, the page first.

    Args:
        study: tune.json, as bench.tune.document makes it.
        folder: folder of the study.

    Raises:
        StorageError: the folder cannot be written.
    """
    names = ("seconds", "reason", "killed", "same_as", "folder")
    rows = [
        {**{name: row[name] for name in ("number", "state", "value")}, **row["values"],
         **{name: row[name] for name in names}}
        for row in ordered(study)
    ]  # fmt: skip
    page, *others = write_page(_tune_page(study, folder.resolve().name), folder)
    table = folder / "trials.csv"
    write_csv(table, rows)
    return [page, table, *others]


def _tune_page(study: Row, title: str) -> Page:
    answer: list[Block] = ["No trial completed."]
    if study["best"]:
        (_, best), (_, command), *notes = best_facts(study)
        values = [(name.replace("_", " "), value_text(value)) for name, value in study["best"]["values"].items()]
        answer = [Text(f"Best: {best}.", "headline"), Facts(values), "To repeat this training:", Plain(command)]
        answer += [Text(f"The command {text}.", "faint") for _, text in notes]
    figures, importance = tune_figures(study), importance_text(study)
    pictures: list[Block] = [Figures(figures) if figures else "No trial has a result yet."]
    pictures += [Text(f"Importance: {importance}", "faint")] if importance else []
    search = study["search"]
    settings = {name: value_text(value) for name, value in study["training"].items() if value is not False}
    settings |= {f"search space: {name}": text for name, text in study["space"].items()}
    better = "higher" if study["objective"]["maximize"] else "lower"
    facts = [
        ("task", str(study["task"])),
        (
            "objective",
            f"{study['objective']['label']}, {better} is better",
        ),
        ("trials", counts_text(study)),
        ("sampler", f"{search['sampler']}, seed {search['seed']}"),
        ("pruner", str(search["pruner"])),
        *((name.replace("_", " "), text) for name, text in settings.items()),
    ]
    failed = Section("Why trials failed", listed(reasons(study)))
    sections = [
        Section("Result", answer, "answer"),
        Section("Figures", pictures),
        Section("Trials", [trials_table(study, ordered(study)), failed]),
        Section("Search settings", [Facts(facts)]),
    ]
    return Page(title, "bertbench search report", sections)


def trainings_in(folder: Path) -> list[TrainRun]:
    """Return the training runs in a folder that is none itself, in the order in which they began."""
    if is_train_run(folder) or not folder.is_dir():
        return []
    runs = [TrainRun(path) for path in sorted(folder.iterdir()) if path.is_dir() and is_train_run(path)]
    return sorted((run for run in runs if run.attempts()), key=lambda run: run.attempts()[0].trial_json.stat().st_mtime)


def write_trainings_report(folder: Path, runs: Sequence[TrainRun], out: Path | None) -> tuple[Path, TrainingComparison]:
    """Write the page of several trainings; return it with what it compares.

    Args:
        folder: that holds them.
        runs: of `trainings_in`, at least one.
        out: folder to write; None for `report` in `folder`.

    Raises:
        SchemaError: a record is damaged.
        StorageError: the page cannot be written.
    """
    comparison = compare_trainings([_variant(run) for run in runs])
    written = out or folder / "report"
    figure = comparison_figure(comparison)
    failed = [(row["name"], wording.status(row)) for row in comparison.failed]
    each = [path for path in [*(run.path for run in runs), folder / "profile"] if path.is_dir()]
    headline = Text(f"{len(runs) - len(failed)} of {len(runs)} trainings finished.", "headline")
    sections = [
        Section("", [headline], "answer"),
        Section("Trainings", [trainings_table(comparison, "comparison.csv"), *comparison_notes(comparison)]),
        Section("Not finished", [Facts(failed)] if failed else []),
        Section("Figures", [Figures([figure])] if figure else []),
        Section("Each training", [Facts([(path.name, f"bertbench report {path}") for path in each])]),
    ]
    with report_folder(written, given=out is not None):
        write_csv(written / "comparison.csv", comparison_rows(comparison))
        return write_page(Page(folder.resolve().name, "bertbench report", sections), written)[0], comparison


def _variant(run: TrainRun) -> VariantRun:
    trial = run.attempts()[-1].read_trial()
    return VariantRun(
        name=run.path.name,
        strategy=trial.strategy,
        devices=trial.world_size * trial.devices_per_rank,
        implementation=wording.implementation_label(trial.implementation, trial.levers),
        run=run,
    )
