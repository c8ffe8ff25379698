"""What is shown of results: tables of declared columns, facts, sentences. Every output is made of these."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.wording import FORMS, UNKNOWN, Row, inert, interval, is_known
from records.files import write_rows
from records.schema import RESULT

if TYPE_CHECKING:
    import pandas as pd

    from analysis.diagnose.advice import Advice
    from analysis.diagnose.finding import Finding

Form = str | Callable[[Any], str]
"""A key of wording.FORMS, or a function from a value to its text."""

# Ends of the names of columns -> what the heading says after the name.
_UNITS = {
    "_gb_s": "GB/s", "_gib_s": "GiB/s", "_ns": "ns", "_us": "µs", "_ms": "ms", "_s": "s", "_percent": "%",
    "_watts": "W", "_mhz": "MHz", "_celsius": "°C", "_joules": "J",
}  # fmt: skip
_SHARES = ("share", "utilization", "efficiency", "fraction", "attainable")
_LONGEST_TEXT = 118
"""Names of kernels and messages of rules can be very long; JSON and CSV have them whole, and a page on hovering."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    label: str
    """Heading, with the unit."""
    fields: tuple[str, ...] = ()
    """Fields of a row that it shows, which a CSV file has; empty for a text that is computed."""
    text: Callable[[Row], str] = str
    """What is shown of a row."""
    value: Callable[[Row], Any] | None = None
    """The number to sort by; None for a column of texts."""
    note: Callable[[Row], str] | None = None
    """More, on hovering."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table to show: rows and columns."""

    name: str
    """Short name, also of its CSV file."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    csv: str = ""
    """CSV file with its rows, relative to the folder of a page; "" where the page writes one (`csv_rows`)."""
    brief: bool = False
    """Whether a terminal shows each row in one line, with shortened texts."""

    @property
    def headings(self) -> list[str]:
        """Headings of the columns."""
        return [column.label for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return the texts of the cells by row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return a row of a CSV file for each row: its fields in full precision, computed texts as they are shown."""
        computed = {column.label or "mark": column.text for column in self.columns if not column.fields}
        named = any(column.fields for column in self.columns)
        return [
            {name: value for name, value in row.items() if named and not isinstance(value, dict | list | tuple)}
            | {name: text(row).replace(UNKNOWN, "") for name, text in computed.items()}
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their facts; each value stays in one line, so that commands can be copied."""

    rows: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Plain:
    """Lines to show as they are: a heading, a format that programs read, the output of another program."""

    text: str


Block = Table | Facts | Plain | str
"""What is shown in one piece; a str is a sentence, in as many lines as it takes."""


def plain(label: str, name: str = "") -> Column:
    """Return a column of text; None and "" are a dash, 0 is not."""
    return Column(label, (name or label,), lambda row: wording.text(row.get(name or label)))


def computed(label: str, text: Callable[[Row], str], value: Callable[[Row], Any] | None = None) -> Column:
    """Return a column of texts that are made of several fields; with `value` a number to sort by."""
    return Column(label, (), text, value)


def measured(label: str, name: str, form: Form = "number") -> Column:
    """Return a column of numbers; the note of a dash says why the number is not known."""
    write = FORMS[form] if isinstance(form, str) else form
    return Column(
        label, (name,), lambda row: write(row.get(name)), lambda row: row.get(name), lambda row: _why(row, name)
    )


def spread(name: str, form: Callable[[Any], str] = wording.fine) -> Column:
    """Return a column of the 95 % intervals of a number: its fields are <name>_low and <name>_high."""
    low, high = f"{name}_low", f"{name}_high"
    return Column(
        "95 % interval", (low, high), lambda row: interval(row.get(low), row.get(high), form),
        lambda row: row.get(low), lambda row: _why(row, low),
    )  # fmt: skip


def _why(row: Row, name: str) -> str:
    return str((row.get("unknown") or {}).get(name, "")) if row.get(name) is None else ""


def texts(name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Return a table of texts that are ready to show; all but the first column to the right."""

    def cell(place: int) -> Callable[[Row], str]:
        return lambda row: str(row[str(place)])

    columns = [
        Column(heading, (), cell(place), cell(place) if place else None) for place, heading in enumerate(headings)
    ]
    return Table(name, columns, [{str(place): text for place, text in enumerate(row)} for row in rows], title)


def of_frame(name: str, frame: "pd.DataFrame", title: str = "", csv: str = "") -> Table:
    """Return a frame as a table: the name of a column says its unit and form."""
    from analysis.diagnose.finding import plain_rows

    rows = plain_rows(frame)
    columns = [_of_values(str(one), [row[str(one)] for row in rows]) for one in frame.columns]
    return Table(name, columns, rows, title, csv)


def heading(name: str) -> str:
    """Return the name of a field in words, its unit as people write it."""
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    return f"{name.removesuffix(ending)} {_UNITS.get(ending, '')}".replace("_", " ").strip()


def _of_values(name: str, values: Sequence[Any]) -> Column:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        whole = all(isinstance(value, int) for value in known)
        named = {"traffic": r"(^|_)bytes$", "flops": "_flops$", "percent": f"utilization|({'|'.join(_SHARES)})$"}
        form = next((form for form, pattern in named.items() if re.search(pattern, name)), "")
        return measured(heading(name), name, form or ("count" if whole else "number"))

    def whole_text(row: Row) -> str:
        value = row.get(name)
        if isinstance(value, bool):
            return "yes" if value else ""
        return ", ".join(map(str, value)) if isinstance(value, list) else wording.text(value)

    return Column(
        heading(name), (name,), lambda row: wording.shortened(whole_text(row), _LONGEST_TEXT), note=whole_text
    )


_FORMS = {
    "count": "rank ranks rounds trials wrong sizes attempt texts predicted count support global_batch_size "
    "calls_per_step from_step applied_steps",
    "number": "days cost ms epoch work_ms training_samples_per_second step_time_ms_a step_time_ms_b "
    "time_ms step_ms floor_ms time_us algbw_gb_s busbw_gb_s alpha_us bandwidth_gb_s "
    "measured_step_time_ms all_reduce_ms predicted_exposed_ms wall_seconds seconds",
    "percent": "skew efficiency share error accuracy precision recall f1 slowest_share throughput_ratio time_saved "
    "of_best of_ceiling median_error largest_error",
    "fine": "time_ratio time_ratio_first rate log_loss",
    "ratio": "speedup",
    "size": "predicted_bytes",
    "traffic": "size_bytes largest_error_bytes",
}
"""Form, a key of wording.FORMS -> fields that are numbers. A field that is not here is a text."""
_HEADINGS = {
    "applied_steps": "after step",
    "count": "elements",
    "f1": "F1",
    "from_step": "after step",
    "largest_error_bytes": "at",
    "log_loss": "validation loss",
    "rate": "samples/s",
    "size_bytes": "size",
    "slowest_share": "slowest in",
    "step_ms": "in a step ms",
    "step_time_ms_a": "old ms",
    "step_time_ms_b": "new ms",
    "support": "texts",
    "throughput_ratio": "input / training",
    "time_ms": "one call ms",
    "time_ratio": "new/old time",
    "time_ratio_first": "new/first time",
    "training_samples_per_second": "training samples/s",
    "work_ms": "own work ms",
}
"""Field -> heading, where it is not the name with its unit."""
_NUMBERS = {
    **{name: (column.label, column.form) for name, column in RESULT.items() if column.label and column.type is not str},
    **{name: (_HEADINGS.get(name, heading(name)), form) for form, names in _FORMS.items() for name in names.split()},
}
_COMPUTED: dict[str, tuple[Callable[[Row], str], str]] = {
    "implementation": (wording.implementation, ""),
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
        return spread(name[:-1], FORMS[form if form in ("percent", "number") else "fine"])
    if name in _COMPUTED:
        text, field = _COMPUTED[name]
        return computed(headings.get(name, name), text, (lambda row: row[field]) if field else None)
    if name in _NUMBERS:
        label, form = _NUMBERS[name]
        return measured(headings.get(name, label), name, form)
    return plain(headings.get(name, name.replace("_", " ")), name)


def without_constant(shown: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave columns of model and data out where all rows have the same, that of strategies where none competes."""
    same = {name for name in ("model", "data") if len({_COMPUTED[name][0](row) for row in rows}) == 1}
    same |= set() if wording.names_strategies(rows) else {"strategy"}
    return [column for column in shown if column.label not in same]


def finding_blocks(findings: "Sequence[Finding]") -> list[Block]:
    """Return each finding as its whole table and its sentence; those without rows as title and sentence."""
    blocks: list[Block] = []
    for one in findings:
        blocks.append(of_frame(one.name, one.table, one.title) if len(one.table) else Plain(one.title))
        blocks += [one.sentence] if one.sentence else []
    return blocks


def advice_lines(advice: "Sequence[Advice]") -> list[str]:
    """Return one line per piece of advice, the first one marked."""
    return [f"{'then' if number else 'do this first'}: {one.text}" for number, one in enumerate(advice)]


def sort_key(column: Column, row: Row) -> float | str:
    """Return what a row is sorted by in a column; unknown numbers come first."""
    value = column.text(row) if column.value is None else column.value(row)
    return float(value) if is_known(value) else value if isinstance(value, str) else -math.inf


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Write plain values, unknown ones as empty fields, no formulas. Raises StorageError."""
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    write_rows(path, [*map(inert, names)], ({inert(name): inert(row.get(name)) for name in names} for row in rows))


def write_frame(path: Path, frame: "pd.DataFrame") -> None:
    """Write a table whole, in full precision, unknown values as empty fields, no formulas. Raises StorageError."""
    from analysis.diagnose.finding import plain_rows

    write_csv(path, plain_rows(frame), [str(name) for name in frame.columns])
