"""The HTML page of a folder of several trainings: strategies, heads, or the phases of pretraining beside each other."""

from collections.abc import Sequence
from pathlib import Path

from analysis.metrics.comparison.trainings import TrainingComparison, VariantRun, compare_trainings
from analysis.render import tables
from analysis.render.page import Gallery, Heading, Page, Section, report_folder, write_page
from analysis.render.training_figures import comparison_figure
from analysis.render.training_tables import comparison_notes, comparison_rows, comparison_table, row_names
from analysis.wording import implementation_label
from records.training import TrainRun, is_train_run


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
    with report_folder(written, given=out is not None):
        tables.write_csv(written / "comparison.csv", comparison_rows(comparison))
        return write_page(_page(folder, runs, comparison), written)[0], comparison


def _variant(run: TrainRun) -> VariantRun:
    trial = run.attempts()[-1].read_trial()
    return VariantRun(
        name=run.path.name,
        strategy=trial.strategy,
        devices=trial.world_size * trial.devices_per_rank,
        implementation=implementation_label(trial.implementation, trial.levers),
        run=run,
    )


def _page(folder: Path, runs: Sequence[TrainRun], comparison: TrainingComparison) -> Page:
    figure = comparison_figure(comparison)
    finished = len(runs) - len(comparison.failed)
    names = row_names(comparison.rows)
    problems = [
        (name, f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"]))
        for name, row in zip(names, comparison.rows, strict=True)
        if row in comparison.failed
    ]
    each = [path for path in [*(run.path for run in runs), folder / "profile"] if path.is_dir()]
    return Page(
        folder.resolve().name,
        "bertbench report",
        [
            Section("", [Heading(f"{finished} of {len(runs)} trainings finished.", "headline")], "answer"),
            Section("Trainings", [comparison_table(comparison), *comparison_notes(comparison)]),
            Section("Not finished", [tables.Facts(problems)] if problems else []),
            Section("Figures", [Gallery([figure])] if figure else []),
            Section("Each training", [tables.Facts([(path.name, f"bertbench report {path}") for path in each])]),
        ],
    )
