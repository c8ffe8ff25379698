"""Comparisons of trainings: variants of one training, and the heads of GAP by epoch."""

from collections.abc import Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.trainings import HeadResult, TrainingComparison
from analysis.render.columns import columns
from analysis.render.tables import Block, Table, computed, measured, plain
from analysis.wording import Row
from common.scores import score
from records.schema import COMPARISON_COLUMNS


def comparison_table(comparison: TrainingComparison, csv: str = "") -> Table:
    """Return a row per variant, without the columns of which no variant has a value; comparison.csv has all."""
    rows = [
        {**row, "variant": name, **{f"score_{name}": value for name, value in row["scores"].items()}}
        for name, row in zip(row_names(comparison.rows), comparison.rows, strict=True)
    ]
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"] if score(name).headline)
    shown = [
        plain("", "variant"),
        *([computed("training", lambda row: str(row["status"]))] if comparison.failed else []),
        *([computed("steps", _steps)] if comparison.failed else []),
        measured("time, s", "step_seconds", "fine"),
        measured("samples/s", "samples_per_second", "fine"),
        measured("ratio", "speedup", "fine"),
        measured("last loss", "last_loss", "fine"),
        *(measured(score(name).label, f"score_{name}", _score_form(name)) for name in names),
        measured("exposed", "communication_exposed_share", "percent"),
        measured("all-reduce", "all_reduce_share", "percent"),
    ]
    known = [one for one in shown if not one.fields or any(row.get(one.fields[0]) is not None for row in rows)]
    return Table("comparison", known, rows, csv=csv)


def _steps(row: Row) -> str:
    return wording.UNKNOWN if row["steps"] is None else f"{row['steps']:,} of {row['total_steps']:,}"


def _score_form(name: str) -> Any:
    return lambda value: wording.UNKNOWN if value is None else score(name).text(value)


def comparison_notes(comparison: TrainingComparison) -> list[str]:
    """Return what the table has no column for, each value once: batch, parameters, memory."""
    notes: dict[str, dict[str, None]] = {}
    for row in comparison.rows:
        parts = f"{row['micro_batch_size']} x {row['grad_accum_steps']} x {row['devices']}"
        batch = f"{row['global_batch_size']} = {parts}"
        memory = f"{wording.size(row['peak_memory_bytes'])} ({row['peak_memory_kind']})"
        for label, field, text in (
            ("global batch = micro batch x accumulation x devices", "global_batch_size", batch),
            ("threads per process", "threads_per_rank", wording.count(row["threads_per_rank"])),
            ("parameters", "parameters", wording.count(row["parameters"])),
            ("peak memory per process", "peak_memory_bytes", memory),
        ):
            if row[field] is not None:
                notes.setdefault(label, {})[text] = None
    return ["; ".join(f"{label}: {', '.join(texts)}" for label, texts in notes.items())] if notes else []


def comparison_rows(comparison: TrainingComparison) -> list[Row]:
    """Return a row of a CSV file per variant: COMPARISON_COLUMNS, score_<name> of the last evaluation; no lists."""
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"])
    return [
        {
            **{name: _plain(row[name]) for name in COMPARISON_COLUMNS},
            **{f"score_{name}": row["scores"].get(name) for name in names},
        }
        for row in comparison.rows
    ]


def _plain(value: Any) -> Any:
    return " ".join("" if item is None else str(item) for item in value) if isinstance(value, list) else value


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return a name for each variant, such as "ddp x 2", with implementation and precision if they differ."""
    several = len({row["implementation"] for row in rows}) > 1
    precisions = len({row["precision"] for row in rows if row["precision"]}) > 1
    return [
        row.get("name")
        or f"{row['implementation'] if several else ''} {row['strategy']} x {row['devices']} "
        f"{row['precision'] or wording.UNKNOWN if precisions else ''}".strip()
        for row in rows
    ]


def heads_blocks(results: Sequence[HeadResult], majority: float | None = None) -> list[Block]:
    """Return the evaluations of each head, its best one with the training time, and the score that selects it.

    Args:
        results: results of analysis.metrics.comparison.trainings.
        majority: accuracy of always giving the most frequent answer, a fraction.
    """
    evaluations = [row for result in results for row in result.evaluations]
    heads: list[Row] = [
        {**{name: result.training[name] for name in ("samples_per_second", "status")}, **(result.best or {}),
         "head": result.head, "seconds": result.training["loop_seconds"]}
        for result in results
    ]  # fmt: skip
    heads += [] if majority is None else [{"head": "(majority)", "accuracy": majority}]
    best = computed("", lambda row: "best" * row["best"])
    return [
        Table("epochs", [*columns("head epoch training_loss log_loss accuracy"), best], evaluations),
        Table("heads", columns("head accuracy epoch seconds samples_per_second status", epoch="at epoch"), heads),
        *(f"best epoch selected by {by}" for by in dict.fromkeys(score(result.best_by).label for result in results)),
    ]


def head_summary(result: HeadResult) -> dict[str, Any]:
    """Return the summary of a head as plain JSON values."""
    names = ("status", "step_seconds", "loop_seconds", "epoch_seconds", "samples_per_second", "parameters", "reason")
    summary = {name: result.training[name] for name in names}
    return {"head": result.head, **summary, "best": None if result.best is None else dict(result.best)}
