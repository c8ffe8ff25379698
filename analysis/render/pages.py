"""The HTML pages of what is no single run: a profile, a folder of trainings, a classification."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from analysis import wording
from analysis.diagnose.explain import by_weight, counter_endings, to_do
from analysis.diagnose.finding import Finding
from analysis.metrics.classification import Classification
from analysis.metrics.comparison.trainings import TrainingComparison, VariantRun, compare_trainings
from analysis.open import Source
from analysis.render.comparison_tables import comparison_notes, comparison_rows, comparison_table
from analysis.render.page import (
    Block,
    Cards,
    Figures,
    Items,
    Page,
    Section,
    Text,
    advice_blocks,
    finding_files,
    finding_panel,
    listed,
    write_page,
)
from analysis.render.tables import Block as TextBlock
from analysis.render.tables import Facts, Table, columns, texts, write_csv
from analysis.render.trace_figures import Figures as FiguresByName
from analysis.render.training_figures import comparison_figure
from analysis.wording import percent
from records.classification import ClassificationResult
from records.training import TrainRun, is_train_run

_MOST_FURTHER = 5
_BREAKDOWN = "temporal_breakdown"
"""Finding that says where the time goes."""
_MOST_CONFUSED = 15
_MOST_LABELS, _MOST_SHOWN = 10, 5
"""Labels and errors that a terminal shows."""
_MOST_COLUMNS = 6


def source_figures(source: Source, measured: Mapping[str, float] | None = None) -> FiguresByName:
    """Return every figure for which a source has data, by the name of its finding.

    `measured` are measured ceilings, as roofline takes them.
    """
    from analysis.render.kernel_figures import kernel_figures
    from analysis.render.trace_figures import trace_figures

    figures = trace_figures(source.timelines) if source.timelines else {}
    for counters, ending in zip(source.counters, counter_endings(source), strict=True):
        figures |= kernel_figures(counters, ending, measured)
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
    problems = Section("Not read or not in the profile", listed(source.problems))
    sections = [
        Section("", [*answer, *advice_blocks(to_do(source, findings))], "answer"),
        Section("Where the time goes", where, anchor=_BREAKDOWN),
        Section("Further findings", more),
        Section("Details", [*panels.values()]),
        Section("Input", [Facts(_source_facts(source)), problems]),
    ]
    page = Page(source.path.resolve().name, "bertbench profile report", sections, finding_files(findings))
    return write_page(page, folder)[0]


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
        kernels = wording.count(len(counters.kernels))
        rows += [("GPU", counters.device_name or "not named"), ("kernels counted", kernels)]
    rows += [("table", f"{one.title} ({one.source})" if one.source else one.title) for one in source.summaries]
    return [(name, value) for name, value in dict.fromkeys(rows) if value]


def trainings_in(folder: Path) -> list[TrainRun]:
    """Return the training runs in a folder that is none itself, in the order in which they began."""
    if is_train_run(folder) or not folder.is_dir():
        return []
    runs = [TrainRun(path) for path in sorted(folder.iterdir()) if path.is_dir() and is_train_run(path)]
    return sorted((run for run in runs if run.attempts()), key=lambda run: run.attempts()[0].trial_json.stat().st_mtime)


def write_trainings_report(folder: Path, runs: Sequence[TrainRun], out: Path | None) -> tuple[Path, TrainingComparison]:
    """Write the page of several trainings into `out`, or into `report` of their folder; return it with the comparison.

    Raises SchemaError for a damaged record, and StorageError.
    """
    comparison = compare_trainings([_variant(run) for run in runs])
    figure = comparison_figure(comparison)
    failed = [(row["name"], wording.status(row)) for row in comparison.failed]
    each = [path for path in [*(run.path for run in runs), folder / "profile"] if path.is_dir()]
    headline = Text(f"{len(runs) - len(failed)} of {len(runs)} trainings finished.", "headline")
    sections = [
        Section("", [headline], "answer"),
        Section("Trainings", [comparison_table(comparison, "comparison.csv"), *comparison_notes(comparison)]),
        Section("Not finished", [Facts(failed)] if failed else []),
        Section("Figures", [Figures([figure])] if figure else []),
        Section("Each training", [Facts([(path.name, f"bertbench report {path}") for path in each])]),
    ]
    files = {"comparison.csv": partial(write_csv, rows=comparison_rows(comparison))}
    page = Page(folder.resolve().name, "bertbench report", sections, files)
    return write_page(page, out or folder / "report")[0], comparison


def _variant(run: TrainRun) -> VariantRun:
    trial = run.attempts()[-1].read_trial()
    return VariantRun(
        name=run.path.name,
        strategy=trial.strategy,
        devices=trial.world_size * trial.devices_per_rank,
        implementation=wording.implementation_label(trial.implementation, trial.levers),
        run=run,
    )


def write_classification_report(result: ClassificationResult, scores: Classification, folder: Path) -> Path:
    """Write the page of a classification, its figures and its tables; return the page. Raises StorageError."""
    from analysis.render.task_figures import classification_figures

    header = ["true_label", *(f"predicted {label}" for label in scores.labels)]
    rows = [(label, *counts) for label, counts in zip(scores.labels, scores.confusion.tolist(), strict=True)]
    confusion = [dict(zip(header, row, strict=True)) for row in rows]
    headline, _, *tables = classification_blocks(result, scores, page=True)
    run = [("replaced the files of run" if name == "instead_of" else name.replace("_", " "), str(value))
           for name, value in result.run.items() if value not in (None, "")]  # fmt: skip
    sections = [
        Section("", [Text(str(headline), "headline"), Cards([(*card, "") for card in _scores(scores)])], "answer"),
        Section("Input", [Facts([*_inputs(result), *run])]),
        Section("Figures", [Figures(classification_figures(result, scores))]),
        Section("Each label", tables),
    ]
    files = {
        "classification_report.csv": partial(write_csv, rows=scores.report),
        "confusion_matrix.csv": partial(write_csv, rows=confusion, columns=header),
    }
    return write_page(Page(result.root.name, "bertbench classification", sections, files), folder)[0]


def classification_blocks(
    result: ClassificationResult, scores: Classification, *, page: bool = False
) -> list[TextBlock]:
    """Return the result in one sentence, scores, each label, the confusion matrix of a few labels, frequent errors.

    A page has all labels, not only those with the lowest F1, and more of the errors.
    """
    gain = 100 * (scores.accuracy - scores.majority)
    headline = (
        f"Accuracy {percent(scores.accuracy)} on {scores.texts:,} held-out texts with {len(scores.labels)} labels: "
        f"{abs(gain):.1f} points {'above' if gain >= 0 else 'below'} always predicting the most frequent label"
    )
    rows, title = scores.report, ""
    if not page and len(rows) > _MOST_LABELS:
        rows = sorted((row for row in rows if row["support"]), key=lambda row: row["f1"] or 0.0)[:_MOST_LABELS]
        title = f"the {len(rows)} of {len(scores.labels):,} labels with the lowest F1, of those that occur"
    shown = columns("label precision recall f1 support predicted")
    blocks: list[TextBlock] = [headline, Facts([*_scores(scores), *_inputs(result)])]
    blocks.append(Table("report", shown, rows, title, "classification_report.csv"))
    if len(scores.labels) <= _MOST_COLUMNS:
        lines = [
            [label, *(f"{count:,}" if share != share else f"{count:,} ({percent(share)})"
                      for count, share in zip(counts, shares, strict=True))]
            for label, counts, shares in zip(scores.labels, scores.confusion, scores.normalized, strict=True)
        ]  # fmt: skip
        title = "confusion, texts and share of each row (true labels down, predictions across)"
        blocks.append(texts("confusion", ("", *scores.labels), lines, title))
    names = ("true", "given", "texts", "share")
    confused = scores.most_confused(_MOST_CONFUSED if page else _MOST_SHOWN)
    errors = [dict(zip(names, one, strict=True)) for one in confused]
    shown = columns(names, true="true label", given="prediction", share="of that label")
    return [*blocks, Table("confused", shown, errors, "most frequent errors")] if errors else blocks


def _scores(scores: Classification) -> list[tuple[str, str]]:
    names = ("accuracy", "balanced accuracy", "macro F1", "weighted F1", "majority baseline")
    values = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1, scores.weighted_f1, scores.majority)
    return [(name, percent(value)) for name, value in zip(names, values, strict=True)]


def _inputs(result: ClassificationResult) -> list[tuple[str, str]]:
    splits = ", ".join(f"{split} {sum(counts.values()):,}" for split, counts in result.distribution.items())
    return [("source", result.path.name), *([("texts", splits)] if splits else [])]
