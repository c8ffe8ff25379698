"""The columns that tables of results show, each declared once; those of a result are in records.schema."""

from collections.abc import Callable, Iterable, Sequence

from analysis import wording
from analysis.render.tables import Column, computed, heading, measured, plain, spread
from analysis.wording import FORMS, Row
from records.schema import RESULT, SPEEDRUN

_FORMS = {
    "count": "rank ranks rounds trials wrong sizes attempt texts predicted count support global_batch_size "
    "calls_per_step from_step applied_steps",
    "number": "days cost ms epoch work_ms training_samples_per_second synthetic_samples_per_second step_time_ms_a "
    "step_time_ms_b time_ms step_ms floor_ms start_ms time_us algbw_gb_s busbw_gb_s alpha_us bandwidth_gb_s "
    "measured_step_time_ms all_reduce_ms exposed_ms wall_seconds seconds",
    "percent": "skew efficiency share error accuracy precision recall f1 slowest_share throughput_ratio time_saved "
    "of_best of_ceiling median_error largest_error",
    "fine": "time_ratio time_ratio_first rate training_loss log_loss",
    "ratio": "speedup",
    "signed": "gap",
    "size": "predicted_bytes",
    "traffic": "size_bytes largest_error_bytes",
}
"""Form, a key of wording.FORMS -> fields that are numbers. A field that is not here is a text."""
_HEADINGS = {
    "applied_steps": "after step",
    "calls_per_step": "calls",
    "count": "elements",
    "f1": "F1",
    "from_step": "after step",
    "global_batch_size": "global batch",
    "largest_error_bytes": "at",
    "log_loss": "validation loss",
    "measured_step_time_ms": "measured step ms",
    "predicted_bytes": "predicted",
    "rate": "samples/s",
    "seconds": "time s",
    "size_bytes": "size",
    "slowest_share": "slowest in",
    "speedup": "speed-up",
    "step_ms": "in a step ms",
    "step_time_ms_a": "old ms",
    "step_time_ms_b": "new ms",
    "support": "texts",
    "synthetic_samples_per_second": "synthetic samples/s",
    "throughput_ratio": "input / training",
    "time_ms": "one call ms",
    "time_ratio": "new/old time",
    "time_ratio_first": "new/first time",
    "training_samples_per_second": "training samples/s",
    "wall_seconds": "seconds",
    "work_ms": "own work ms",
}
"""Field -> heading, where it is not the name with its unit."""
_NUMBERS = {
    **{column.name: (column.label, column.form) for column in SPEEDRUN if column.label and column.type is not str},
    **{name: (column.label, column.form) for name, column in RESULT.items() if column.label and column.type is not str},
    **{name: (_HEADINGS.get(name, heading(name)), form) for form, names in _FORMS.items() for name in names.split()},
}
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
    """Return columns by the names of their fields, a list or separated by blanks; "NAME~" is the 95 % interval of one.

    `headings` are those of fields that a table calls otherwise.
    """
    return [_column(name, headings) for name in (names.split() if isinstance(names, str) else names)]


def _column(name: str, headings: dict[str, str]) -> Column:
    if name.endswith("~"):
        form = _NUMBERS[name[:-1]][1]
        return spread(name[:-1], FORMS[form if form in ("percent", "signed", "number") else "fine"])
    if name in _COMPUTED:
        text, field = _COMPUTED[name]
        return computed(headings.get(name, name.partition(",")[0]), text, (lambda row: row[field]) if field else None)
    if name in _NUMBERS:
        label, form = _NUMBERS[name]
        return measured(headings.get(name, label), name, form)
    return plain(headings.get(name, name.replace("_", " ")), name)


def without_constant(shown: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave columns of model and data out where all rows have the same, that of strategies where none competes."""
    same = {name for name in ("model", "data") if len({_COMPUTED[name][0](row) for row in rows}) == 1}
    same |= set() if wording.names_strategies(rows) else {"strategy"}
    return [column for column in shown if column.label not in same]
