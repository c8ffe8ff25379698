"""What is shown of results: tables of named columns, facts, sentences. Terminal, page and CSV are made of these."""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from analysis.load import measurement
from analysis.wording import (
    FORMS,
    UNKNOWN,
    Row,
    batch,
    data,
    devices,
    fine,
    implementation,
    inert,
    interval,
    is_known,
    model,
    names_strategies,
    number,
    ratio,
    status,
)
from common.atomic import atomic_path
from records.schema import RESULT

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table, ready to show and to sort."""

    text: str
    sort: float | str
    title: str = ""
    """More, on hovering."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table to show."""

    name: str
    """Short name, also of its CSV file."""
    headings: tuple[str, ...]
    """Column headings, with units."""
    rows: tuple[tuple[Cell, ...], ...]
    """Cells, as many per row as headings."""
    numeric: tuple[bool, ...]
    """Per column: whether it is a number, and so aligned to the right."""
    title: str = ""
    """Line above it; "" for none."""
    csv: str = ""
    """CSV file with its rows, relative to the folder of a page; "" where the page writes one (`csv_rows`)."""
    values: tuple[Row, ...] = ()
    """The rows of the CSV file: fields in full precision; empty where it has the texts of the cells."""
    trials: tuple[str, ...] = ()
    """Trial id of each row, which a filter also finds; empty where rows are not trials."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return what a CSV file of this table holds, a row for each of `rows`."""
        if self.values:
            return [dict(row) for row in self.values]
        texts = [["" if cell.text == UNKNOWN else cell.text for cell in row] for row in self.rows]
        return [dict(zip(self.headings, row, strict=True)) for row in texts]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their facts; each value stays in one line, so that commands can be copied."""

    rows: Sequence[tuple[str, str]]
    title: str = ""
    """Line above them; "" for none."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Lines to show as they are: a heading, a format that programs read, what another program said."""

    text: str


Block = Table | Facts | Plain | str
"""What is shown in one piece; a str is a sentence, in as many lines as it takes."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a table comes out of a row."""

    heading: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    numeric: bool = True
    """Aligned to the right, sorted by value."""
    title: Callable[[Row], str] | None = None
    fields: tuple[str, ...] = ()
    """Fields of the row that say everything that the text says, for CSV files; empty for the text itself."""


def plain(heading: str, name: str) -> Column:
    """A column of text; None and "" are a dash, 0 is not."""

    def text(row: Row) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    return Column(
        heading,
        text,
        lambda row: text(row) or UNKNOWN,
        numeric=False,
        fields=(name,),
    )


def measured(heading: str, name: str, form: Callable[[Any], str] = number) -> Column:
    """A column of numbers; hovering over a dash says why the number is not known."""
    return Column(
        heading,
        lambda row: row.get(name),
        lambda row: form(row.get(name)),
        title=lambda row: _why(row, name),
        fields=(name,),
    )


def recorded(name: str) -> Column:
    """A measured column of a result, with the heading and the form that records.schema declares for it."""
    column = RESULT[name]
    return measured(column.label, name, FORMS[column.form])


def spread(name: str, form: Callable[[Any], str] = fine, title: Callable[[Row], str] | None = None) -> Column:
    """A column of the 95 % intervals of a number: its fields are <name>_low and <name>_high."""
    low, high = f"{name}_low", f"{name}_high"
    return Column(
        "95 % interval",
        lambda row: row.get(low),
        lambda row: interval(row.get(low), row.get(high), form),
        title=title or (lambda row: _why(row, low)),
        fields=(low, high),
    )


def _why(row: Row, name: str) -> str:
    return str((row.get("unknown") or {}).get(name, "")) if row.get(name) is None else ""


def build(name: str, columns: Sequence[Column], rows: Sequence[Row], title: str = "", csv: str = "") -> Table:
    """Make a table of `rows`; `csv` names the file that holds them already, where there is one."""

    def cell(column: Column, row: Row) -> Cell:
        value = column.value(row)
        if column.numeric:
            value = float(value) if is_known(value) else -math.inf
        return Cell(column.text(row), value, column.title(row) if column.title else "")

    def values(row: Row) -> Row:
        found: dict[str, Any] = {}
        for column in columns:
            if column.fields:
                found |= {name: row.get(name) for name in column.fields}
            else:
                text = column.text(row)
                found[column.heading or "mark"] = "" if text == UNKNOWN else text
        return found

    return Table(
        name,
        tuple(column.heading for column in columns),
        tuple(tuple(cell(column, row) for column in columns) for row in rows),
        tuple(column.numeric for column in columns),
        title,
        csv,
        values=tuple(values(row) for row in rows),
        trials=tuple(str(row.get("trial_id") or "") for row in rows)
        if any(row.get("trial_id") for row in rows)
        else (),
    )


def texts(
    name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, numeric: bool = True
) -> Table:
    """Return a table of texts that are ready to show; with `numeric` all but the first column to the right."""
    cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
    return Table(name, tuple(headings), cells, (False, *(numeric for _ in headings[1:])), title)


def ratio_lookup(ratios: Sequence[Row]) -> Callable[[Row], Row | None]:
    """Return a function that finds the ratio of a result row."""
    found = {measurement(item): item for item in ratios}
    return lambda row: found.get(measurement(row))


def result_columns(ratios: Sequence[Row]) -> list[Column]:
    """Columns of the table of all trials; that of the ratio only where there are any."""
    find = ratio_lookup(ratios)

    def of(row: Row) -> Any:
        return (find(row) or {}).get("throughput_ratio") if row.get("status") == "ok" else None

    def decided(row: Row) -> str:
        found = find(row)
        if row.get("kind") == "input":
            return "input only: nothing was trained"
        return f"differs: {found['decided']} ({found['reason']})" if found else ""

    return [
        Column("implementation", implementation, implementation, False),
        Column("model", lambda row: model(row), model, False),
        Column("data", data, data, False),
        plain("strategy", "strategy"),
        Column("devices", lambda row: row["world_size"], devices),
        Column("batch", lambda row: row["micro_batch_size"], batch),
        recorded("samples_per_second"),
        recorded("tokens_per_second"),
        recorded("step_time_ms"),
        spread("step_time_ms"),
        recorded("mfu"),
        recorded("peak_memory_bytes"),
        *([Column(f"× {ratios[0]['reference']}", of, lambda row: ratio(of(row)), title=decided)] if ratios else []),  # noqa: RUF001
        Column("status", lambda row: str(row["status"]), lambda row: str(row["status"]), False, title=status),
    ]


def without_constant_model(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave columns of model and data out where all rows have the same, that of strategies where it says nothing."""
    same = {name for name, of in (("model", model), ("data", data)) if len({of(row) for row in rows}) == 1}
    if any(column.heading == "strategy" for column in columns) and not names_strategies(rows):
        same.add("strategy")
    return [column for column in columns if column.heading not in same]


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
