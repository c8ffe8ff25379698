"""What is shown of results: tables of declared columns, facts, sentences. Every output is made of these."""

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from analysis import wording
from analysis.wording import FORMS, UNKNOWN, Row, inert, interval, is_known
from common.atomic import atomic_path
from records.schema import RESULT

if TYPE_CHECKING:
    import pandas as pd

Form = str | Callable[[Any], str]
"""A key of wording.FORMS, or a function from a value to its text."""

# Ends of the names of columns -> what the heading says after the name.
_UNITS = {
    "_gb_s": "GB/s", "_gib_s": "GiB/s", "_ns": "ns", "_us": "µs", "_ms": "ms", "_s": "s", "_percent": "%",
    "_watts": "W", "_mhz": "MHz", "_celsius": "°C", "_joules": "J",
}  # fmt: skip
_SHARES = ("share", "utilization", "efficiency", "fraction", "attainable")
_LONGEST_NAME = 118
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

    @property
    def headings(self) -> list[str]:
        """Headings of the columns."""
        return [column.label for column in self.columns]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers, which stand to the right."""
        return [column.value is not None for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return the texts of the cells by row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return a row of a CSV file for each row: fields in full precision, computed texts as they are shown."""
        return [self._csv_row(row) for row in self.rows]

    def _csv_row(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for column in self.columns:
            if column.fields:
                values |= {name: row.get(name) for name in column.fields}
            else:
                values[column.label or "mark"] = column.text(row).replace(UNKNOWN, "")
        return values


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
    name = name or label
    return Column(label, (name,), lambda row: FORMS["text"](row.get(name)))


def computed(label: str, text: Callable[[Row], str], value: Callable[[Row], Any] | None = None) -> Column:
    """Return a column of texts that are made of several fields; with `value` a number to sort by."""
    return Column(label, (), text, value)


def measured(label: str, name: str, form: Form = "number") -> Column:
    """Return a column of numbers; the note of a dash says why the number is not known."""
    write = FORMS[form] if isinstance(form, str) else form
    return Column(
        label, (name,), lambda row: write(row.get(name)), lambda row: row.get(name), lambda row: _why(row, name)
    )


def recorded(name: str) -> Column:
    """Return a column of numbers of a result, with the heading and the form that records.schema declares for it."""
    return measured(RESULT[name].label, name, RESULT[name].form)


def spread(name: str, form: Callable[[Any], str] = wording.fine) -> Column:
    """Return a column of the 95 % intervals of a number: its fields are <name>_low and <name>_high."""
    low, high = f"{name}_low", f"{name}_high"
    return Column(
        "95 % interval", (low, high), lambda row: interval(row.get(low), row.get(high), form),
        lambda row: row.get(low), lambda row: _why(row, low),
    )  # fmt: skip


def _why(row: Row, name: str) -> str:
    return str((row.get("unknown") or {}).get(name, "")) if row.get(name) is None else ""


def texts(
    name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, numeric: bool = True
) -> Table:
    """Return a table of texts that are ready to show; with `numeric` all but the first column to the right."""

    def cell(place: int) -> Callable[[Row], str]:
        return lambda row: str(row[str(place)])

    columns = [
        Column(heading, (), cell(place), cell(place) if numeric and place else None)
        for place, heading in enumerate(headings)
    ]
    return Table(name, columns, [{str(place): text for place, text in enumerate(row)} for row in rows], title)


def of_frame(name: str, frame: "pd.DataFrame", title: str = "", csv: str = "") -> Table:
    """Return a frame as a table: the name of a column says its unit and form."""
    from analysis.diagnose.finding import plain_rows

    rows = plain_rows(frame)
    return Table(
        name, [_of_values(str(one), [row[str(one)] for row in rows]) for one in frame.columns], rows, title, csv
    )


def _of_values(name: str, values: Sequence[Any]) -> Column:
    known = [value for value in values if value is not None]
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    label = f"{name.removesuffix(ending)} {_UNITS.get(ending, '')}".replace("_", " ").strip()
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return measured(label, name, _form(name, known))

    def text(row: Row) -> str:
        value = row.get(name)
        if isinstance(value, bool):
            return "yes" if value else ""
        shown = ", ".join(map(str, value)) if isinstance(value, list) else FORMS["text"](value)
        long = name in ("name", "message") and len(shown) > _LONGEST_NAME
        return f"{shown[: _LONGEST_NAME - 3]}..." if long else shown

    return Column(label, (name,), text, note=lambda row: str(row.get(name)) if text(row).endswith("...") else "")


def _form(name: str, known: Sequence[Any]) -> str:
    if name.endswith(_SHARES) or "utilization" in name:
        return "percent"
    if re.search(r"(^|_)bytes$", name):
        return "traffic"
    if name.endswith("_flops"):
        return "flops"
    return "count" if all(isinstance(value, int) for value in known) else "number"


def sort_key(column: Column, row: Row) -> float | str:
    """Return what a row is sorted by in a column; unknown numbers come first."""
    if column.value is None:
        return column.text(row)
    value = column.value(row)
    return float(value) if is_known(value) else value if isinstance(value, str) else -math.inf


def write_csv(
    path: Path, rows: Sequence[Row], columns: Sequence[str] | None = None, line_end: Literal["\r\n", "\n"] = "\r\n"
) -> None:
    """Write plain values, unknown ones as empty fields, no formulas. Raises StorageError."""
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", restval="", lineterminator=line_end)
        writer.writerow({name: inert(name) for name in names})
        writer.writerows({name: "" if row.get(name) is None else inert(row[name]) for name in names} for row in rows)


def write_frame(path: Path, frame: "pd.DataFrame") -> None:
    """Write a table whole, in full precision, unknown values as empty fields, no formulas. Raises StorageError."""
    import pandas as pd

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    named = frame.assign(**{name: frame[name].map(inert, na_action="ignore") for name in texts})
    with atomic_path(path) as temporary:
        named.rename(columns=inert).to_csv(temporary, index=False, errors="replace")
