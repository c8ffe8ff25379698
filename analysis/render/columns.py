"""The columns that tables of results show, each declared once; those of a result are in records.schema."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from analysis import wording
from analysis.render.tables import Column, computed, measured, plain, spread
from analysis.wording import FORMS, Row
from records.schema import RESULT, SPEEDRUN

_NUMBERS: dict[str, tuple[str, str]] = {
    **{column.name: (column.label, column.form) for column in SPEEDRUN if column.label and column.type is not str},
    **{name: (column.label, column.form) for name, column in RESULT.items() if column.label and column.type is not str},
    # Trials beside each other.
    "rank": ("rank", "count"),
    "ranks": ("ranks", "count"),
    "rounds": ("rounds", "count"),
    "work_ms": ("own work ms", "number"),
    "skew": ("skew", "percent"),
    "slowest_share": ("slowest in", "percent"),
    "global_batch_size": ("global batch", "count"),
    "speedup": ("speed-up", "ratio"),
    "efficiency": ("efficiency", "percent"),
    "training_samples_per_second": ("training samples/s", "number"),
    "throughput_ratio": ("input / training", "ratio"),
    "synthetic_samples_per_second": ("synthetic samples/s", "number"),
    "gap": ("gap", "signed"),
    "days": ("days", "number"),
    "cost": ("cost", "number"),
    "step_time_ms_a": ("old ms", "number"),
    "step_time_ms_b": ("new ms", "number"),
    "time_ratio": ("new/old time", "fine"),
    "time_saved": ("time saved", "percent"),
    "time_ratio_first": ("new/first time", "fine"),
    "rate": ("samples/s", "fine"),
    "of_best": ("of best", "percent"),
    "trials": ("trials", "count"),
    "predicted_bytes": ("predicted", "size"),
    # A step taken apart, and the ranges of a step.
    "calls_per_step": ("calls", "count"),
    "time_ms": ("one call ms", "number"),
    "step_ms": ("in a step ms", "number"),
    "floor_ms": ("floor ms", "number"),
    "of_ceiling": ("of ceiling", "percent"),
    "start_ms": ("start ms", "number"),
    "ms": ("ms", "number"),
    "share": ("share", "percent"),
    # Collectives and projections.
    "size_bytes": ("size", "traffic"),
    "count": ("elements", "count"),
    "time_us": ("time µs", "number"),
    "algbw_gb_s": ("algbw GB/s", "number"),
    "busbw_gb_s": ("busbw GB/s", "number"),
    "wrong": ("wrong", "count"),
    "sizes": ("sizes", "count"),
    "alpha_us": ("alpha µs", "number"),
    "bandwidth_gb_s": ("bandwidth GB/s", "number"),
    "median_error": ("median error", "percent"),
    "largest_error": ("largest error", "percent"),
    "largest_error_bytes": ("at", "traffic"),
    "measured_step_time_ms": ("measured step ms", "number"),
    "error": ("error", "percent"),
    "all_reduce_ms": ("all-reduce ms", "number"),
    "exposed_ms": ("exposed ms", "number"),
    # Trainings and classifications.
    "attempt": ("attempt", "count"),
    "from_step": ("after step", "count"),
    "applied_steps": ("after step", "count"),
    "wall_seconds": ("seconds", "number"),
    "seconds": ("time s", "number"),
    "epoch": ("epoch", "number"),
    "training_loss": ("training loss", "fine"),
    "log_loss": ("validation loss", "fine"),
    "accuracy": ("accuracy", "percent"),
    "precision": ("precision", "percent"),
    "recall": ("recall", "percent"),
    "f1": ("F1", "percent"),
    "support": ("texts", "count"),
    "predicted": ("predicted", "count"),
    "texts": ("texts", "count"),
}
"""Field -> heading and form, a key of wording.FORMS. A field that is not here is a text under its own name."""

_COMPUTED: dict[str, tuple[Callable[[Row], str], str]] = {
    "implementation": (wording.implementation, ""),
    "implementation, input": (wording.implementation_or_input, ""),
    "strategy": (wording.strategy, ""),
    "task": (wording.task, ""),
    "model": (wording.model, ""),
    "data": (wording.data, ""),
    "devices": (wording.devices, "world_size"),
    "batch": (wording.batch, "micro_batch_size"),
    "placement": (lambda row: str(row["placement"]).replace("_", " "), ""),
}
"""Heading -> text of a row, and the field to sort by."""


def columns(names: str | Iterable[str], **headings: str) -> list[Column]:
    """Return columns by their names.

    Args:
        names: of fields, or separated by blanks; "NAME~" is the 95 % interval of a number.
        headings: field -> heading, where a table calls it otherwise.
    """
    return [_column(name, headings) for name in (names.split() if isinstance(names, str) else names)]


def _column(name: str, headings: dict[str, str]) -> Column:
    if name.endswith("~"):
        form = _NUMBERS[name[:-1]][1]
        return spread(name[:-1], FORMS[form if form in ("percent", "signed", "number") else "fine"])
    if name in _COMPUTED:
        text, field = _COMPUTED[name]
        heading = headings.get(name, name.partition(",")[0])
        return computed(heading, text, _value(field) if field else None)
    if name in _NUMBERS:
        label, form = _NUMBERS[name]
        return measured(headings.get(name, label), name, form)
    return plain(headings.get(name, name.replace("_", " ")), name)


def _value(field: str) -> Callable[[Row], Any]:
    return lambda row: row[field]


def without_constant(shown: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave columns of model and data out where all rows have the same, that of strategies where none competes."""
    same = {name for name in ("model", "data") if len({_COMPUTED[name][0](row) for row in rows}) == 1}
    if not wording.names_strategies(rows):
        same.add("strategy")
    return [column for column in shown if column.label not in same]
