"""How numbers are written, and the tables of a report as rows of named columns."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.cells import inert
from analysis.load import measurement
from analysis.strategy_labels import is_single
from common.atomic import atomic_path
from records.schema import RESULT

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]

UNKNOWN = "–"  # noqa: RUF001  an en dash, as tables have it


def number(value: Any, digits: int = 3) -> str:
    """Three significant digits, thousands separated: 0.0123, 8.16, 182, 18,148."""
    if not _known(value):
        return UNKNOWN
    value = float(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}" if magnitude >= -3 else f"{value:.2g}"


def fine(value: Any) -> str:
    """Four significant digits, for the ends of intervals."""
    return number(value, 4)


def percent(value: Any) -> str:
    """A fraction as a percentage with one decimal below 100."""
    if not _known(value):
        return UNKNOWN
    return f"{100 * value:.1f} %" if abs(value) < 1 else f"{100 * value:.0f} %"


def size(value: Any) -> str:
    """Bytes in binary units."""
    if not _known(value):
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1000:
            return f"{number(amount)} {unit}"
        amount /= 1024
    return f"{number(amount)} TiB"


def flops(value: Any) -> str:
    """FLOP/s with a decimal prefix."""
    if not _known(value):
        return UNKNOWN
    amount, units = float(value), ("", "k", "M", "G", "T", "P")
    step = 0 if amount <= 0 else min(len(units) - 1, int(math.log10(amount) // 3))
    return f"{amount / 1000**step:.3g} {units[step]}FLOP/s"


def interval(low: Any, high: Any, form: Callable[[Any], str] = fine) -> str:
    """Return "low to high", or a dash where either is unknown."""
    return f"{form(low)}–{form(high)}" if _known(low) and _known(high) else UNKNOWN  # noqa: RUF001


def ratio(value: Any) -> str:
    """A factor with two decimals."""
    return f"{value:.2f} ×" if _known(value) else UNKNOWN  # noqa: RUF001


def count(value: Any) -> str:
    """A whole number with separators."""
    return f"{int(value):,}" if _known(value) else UNKNOWN


# How a column of records.schema is written, by its form.
FORMS: dict[str, Callable[[Any], str]] = {
    "number": number,
    "fine": fine,
    "percent": percent,
    "size": size,
    "flops": flops,
    "count": count,
}


def _known(value: Any) -> bool:
    return value is not None and not isinstance(value, str) and math.isfinite(value)


def devices(row: Row) -> str:
    """Return "2 cpu", or "16 cuda on 2 nodes"."""
    nodes = int(row.get("nodes") or 1)
    return f"{row['world_size']} {row['device']}" + (f" on {nodes} nodes" if nodes > 1 else "")


def batch(row: Row) -> str:
    """Return micro batch, with accumulation where there is any."""
    accumulation = int(row.get("grad_accum_steps") or 1)
    return f"{row['micro_batch_size']}" + (f" × {accumulation}" if accumulation > 1 else "")  # noqa: RUF001


def model(row: Row) -> str:
    """Return preset, precision and sequence length."""
    return f"{row['preset']} {row['precision']} seq {row['seq_len']}"


def strategies_compete(rows: Sequence[Row]) -> bool:
    """Whether rows differ in more than that one device needs no strategy."""
    names = {str(row.get("strategy") or "") for row in rows}
    recomputing = {name.endswith(" recomputing") for name in names}
    return len(recomputing) > 1 or len([name for name in names if not is_single(name)]) > 1


def names_strategies(rows: Sequence[Row]) -> bool:
    """Whether a table of the rows has to name strategies: some compete, or one has options."""
    return strategies_compete(rows) or any(" " in str(row.get("strategy") or "") for row in rows)


def by(row: Row) -> str:
    """Return " by fsdp" where the strategy is another than devices have by themselves, or has options; else ""."""
    name = str(row.get("strategy") or "")
    return "" if name in ("", "single", "ddp") else f" by {name}"


def place(row: Row) -> str:
    """Return "batch 8 on 2 cuda", and by which strategy where that does not go without saying."""
    return f"batch {batch(row)} on {devices(row)}{by(row)}"


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


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a table comes out of a row."""

    heading: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    numeric: bool = True
    """Aligned to the right, sorted by value."""
    title: Callable[[Row], str] | None = None


def implementation(row: Row) -> str:
    """Return whose code ran; of an input trial, that it trained nothing."""
    return f"{row['implementation']}, input only" if row.get("kind") == "input" else str(row["implementation"])


def data(row: Row) -> str:
    """Return what a trial was fed: a name, a folder's or file's name, or made-up batches like those of that one."""
    kind, _, path = str(row.get("data") or "").rpartition(":")
    name = path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".safetensors")
    if kind == "synthetic" and row.get("data_fingerprint"):
        text = f"made up like {name}"
    elif kind or path == "synthetic":
        text = str(row.get("data"))
    else:
        text = name if path.endswith(".safetensors") else f"folder {name}"
    return f"{text}, all padded to {row.get('seq_len')}" if row.get("padding") == "fixed" else text


def lengths(row: Row) -> str:
    """Return how long a trial's sequences are: all alike, or up to a length where batches have their longest's."""
    return f"{'at most ' if row.get('padding') == 'longest' else ''}{row['seq_len']}"


def plain(heading: str, name: str) -> Column:
    """A column of text."""
    return Column(heading, lambda row: str(row.get(name) or ""), lambda row: str(row.get(name) or UNKNOWN), False)


def measured(heading: str, name: str, form: Callable[[Any], str] = number) -> Column:
    """A column of numbers; hovering over a dash says why the number is not known."""
    return Column(
        heading, lambda row: row.get(name), lambda row: form(row.get(name)), title=lambda row: _why(row, name)
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
    )


def _why(row: Row, name: str) -> str:
    return str((row.get("unknown") or {}).get(name, "")) if row.get(name) is None else ""


def build(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Make a table of `rows`."""

    def cell(column: Column, row: Row) -> Cell:
        value = column.value(row)
        if column.numeric:
            value = float(value) if _known(value) else -math.inf
        return Cell(column.text(row), value, column.title(row) if column.title else "")

    return Table(
        name,
        tuple(column.heading for column in columns),
        tuple(tuple(cell(column, row) for column in columns) for row in rows),
        tuple(column.numeric for column in columns),
    )


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


def round_number(row: Row) -> int:
    """Rounds are counted from 1 for people, from 0 in files."""
    return int(row.get("round") or 0) + 1


def status(row: Row) -> str:
    """Status, with what failed."""
    reason = str(row.get("reason") or "")
    return str(row["status"]) + (f": {reason}" if reason and row["status"] != "ok" else "")


def order(row: Row) -> tuple[Any, ...]:
    """Sort key of result rows: model, then batch and devices, so that implementations stand beside each other."""
    return (
        str(row["preset"]),
        str(row["precision"]),
        int(row["seq_len"]),
        int(row["world_size"]),
        int(row["micro_batch_size"]),
        int(row["grad_accum_steps"]),
        str(row.get("strategy") or ""),
        str(row["implementation"]),
        str(row.get("kind") or ""),
        str(row.get("data") or ""),
        int(row.get("round") or 0),
    )


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Write plain values, unknown ones as empty fields, no formulas. Raises StorageError."""
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", restval="")
        writer.writerow({name: inert(name) for name in names})
        writer.writerows({name: "" if row.get(name) is None else inert(row[name]) for name in names} for row in rows)


def write_frame(path: Path, frame: "pd.DataFrame") -> None:
    """Write a table whole, in full precision, unknown values as empty fields, no formulas. Raises StorageError."""
    import pandas as pd

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    named = frame.assign(**{name: frame[name].map(inert, na_action="ignore") for name in texts})
    with atomic_path(path) as temporary:
        named.rename(columns=inert).to_csv(temporary, index=False, errors="replace")
