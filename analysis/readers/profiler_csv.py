"""Tables in the output of nsys and nvprof: several in one file, between lines of other kinds, in several units.

They are CSV, or columns of text over a rule of dashes, as nsys prints them without `--format csv`.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.packed import log_lines
from analysis.timeline import empty

if TYPE_CHECKING:
    import pandas as pd

NS = {"ns": 1.0, "nsec": 1.0, "us": 1e3, "\u03bcs": 1e3, "\u00b5s": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6}
NS |= {"s": 1e9, "sec": 1e9}
"""Nanoseconds by unit of time."""
_MOST = float(2**62)
_LONGEST_NOTE = 2000
_LONGEST_NAME = 300  # of a column or device: patterns take time that grows with the square
_UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)\s*$")
# Under the header of columns of text, which two blanks separate.
_RULE = re.compile(r"\s*-+(?: +-+)+\s*")
_GAP = re.compile(r"\s{2,}")
_CUT = ("\u2026", "...")
_HEAD_LINES = 2000
_DEVICE = re.compile(r"^(.*?)\s*\((\d{1,6})\)\s*$")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a summary reports about the rows of a name besides their total."""

    columns: Mapping[str, Sequence[str]]
    """Average, minimum and so on by what the table may call them."""
    units: Mapping[str, float]
    """What a number in a unit is multiplied with."""
    otherwise: float | None = None
    """The same for a unit that is not known; None: as the totals."""


_SIZES = {
    f"{side}_{axis}": (f"{short}{axis}", f"{side} {axis}")
    for side, short in (("grid", "grd"), ("block", "blk"))
    for axis in "xyz"
}
"""Sizes of grids and blocks by the columns of nsys and nvprof."""


@dataclass(slots=True)
class Table:
    """One table of a file."""

    title: str
    """What the line before it calls it; "" where none does."""
    names: tuple[str, ...]
    """Column names in small letters, without units."""
    units: list[str]
    """Unit of each column in small letters, "" where there is none."""
    rows: list[list[str]] = field(default_factory=list)
    """Cells as they are, as many as there are columns."""
    torn: int = 0
    """Lines that are no row of the table."""
    aligned: bool = False
    """Whether it is columns of text, where nsys cuts long names."""
    damage: list[str] = field(default_factory=list)
    """What the file lost, one clause each."""

    @property
    def problems(self) -> list[str]:
        """What of it could not be read, one sentence each."""
        said = [*self.damage]
        if self.torn:
            said.append(f"{self.torn:,} lines are not rows of the table and were skipped")
        names = self.texts("name", "range", "operation") or [] if self.aligned else []
        if cut := sum(name.endswith(_CUT) for name in names):
            said.append(f"{cut:,} names are cut by the column format: use --format csv for whole names")
        return said

    def place(self, *names: str) -> int | None:
        """Return where the first of these columns is, None where the table has none of them."""
        return next((self.names.index(name) for name in names if name in self.names), None)

    def texts(self, *names: str) -> list[str] | None:
        """Return the cells of the first of these columns, None where the table has none of them."""
        place = self.place(*names)
        return None if place is None else [row[place] for row in self.rows]

    def numbers(self, *names: str, factor: float = 1.0) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
        """Return the numbers of the first of these columns times a factor, NaN where a cell holds none."""
        texts = self.texts(*names)
        return None if texts is None else np.array([number(text) for text in texts], dtype=np.float64) * factor


def header_cells(line: str) -> list[str]:
    """Return the cells of a line that may be a header, without quotes; quicker than csv where most lines are none."""
    return [cell.strip().strip('"') for cell in line.split(",")]


def headers(text: str, word: str) -> Iterator[list[str]]:
    """Yield the cells of the lines that may be headers, of CSV or of columns of text.

    Args:
        text: the beginning of a file.
        word: what a header contains.
    """
    lines = text.splitlines()[:_HEAD_LINES]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if word in line:
            places = _places(following)
            yield _aligned(line, places) if places else header_cells(line)


def split_unit(name: str) -> tuple[str, str]:
    """Return a column's name and unit, in small letters: "Total Time (ns)" is ("total time", "ns")."""
    name = name.strip().lower()[:_LONGEST_NAME]
    match = _UNIT.match(name)
    return (match[1].strip(), match[2].strip()) if match else (name, "")


def number(text: str) -> float:
    """Return the number in a cell, thousands separators allowed; NaN where there is none, or one beyond all bounds."""
    try:
        found = float(text.replace(",", "")) if "_" not in text else math.nan
    except ValueError:
        return math.nan
    return found if abs(found) < _MOST else math.nan


def whole(values: "np.ndarray[Any, np.dtype[np.float64]] | None", rows: int, default: int) -> Any:
    """Return numbers rounded to int64; the default where there are none."""
    if values is None:
        return np.full(rows, default, dtype=np.int64)
    known = np.isfinite(values) & (np.abs(np.where(np.isfinite(values), values, 0)) < _MOST)
    return np.where(known, np.rint(np.where(known, values, 0)), default).astype(np.int64)


def read_tables(
    path: Path,
    is_header: Callable[[Sequence[str]], bool],
    title_of: Callable[[str], str | None],
    has_units_row: bool = False,
) -> Iterator[Table]:
    """Yield the tables of a file.

    Args:
        path: the file, plain or gzip-compressed.
        is_header: whether the cells of a line are a table's header.
        title_of: title in a line that ends a table and is no row; None for every other line.
        has_units_row: whether a row of units may follow the header.

    Raises:
        InputError: the file cannot be read, or is too large.
    """
    table: Table | None = None
    title, fresh = "", False
    damage: list[str] = []
    for line, cells, aligned in _rows(log_lines(path, damage.append)):
        said = title_of(line[:_LONGEST_NOTE])
        if said is not None or not line.strip():
            if table:
                yield table
            table, title = None, said if said else "" if table else title
            continue
        if is_header(cells):
            if table:
                yield table
            split = [split_unit(cell) for cell in cells]
            table = Table(title, tuple(name for name, _ in split), [unit for _, unit in split], aligned=aligned)
            fresh = has_units_row
        elif table and fresh and _are_units(cells, table):
            table.units = [cell.strip().lower() for cell in cells]
            fresh = False
        elif table and len(cells) == len(table.names) and (aligned or line.count('"') % 2 == 0):
            table.rows.append(cells)
            fresh = False
        elif table:
            table.torn += 1
    if table:
        table.damage += damage
        yield table


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each line, its cells, and whether they are columns of text; rules are left out."""
    held: str | None = None
    places: list[tuple[int, int]] = []
    for line in lines:
        if held is not None and held.strip() and (found := _places(line)):
            yield held, _aligned(held, found), True
            held, places = None, found
            continue
        if held is not None:
            places = places if held.strip() else []
            yield held, _aligned(held, places) if places else _cells(held), bool(places)
        held = line
    if held is not None:
        yield held, _aligned(held, places) if places else _cells(held), bool(places)


def _places(line: str) -> list[tuple[int, int]]:
    """Return begin and end of each column over a rule; nothing for any other line."""
    if "---" not in line[:_LONGEST_NAME] or not _RULE.fullmatch(line):
        return []
    return [match.span() for match in re.finditer("-+", line)]


def _aligned(line: str, places: Sequence[tuple[int, int]]) -> list[str]:
    """Return the cells of a line by the columns of its rule; by its gaps where it is not aligned with them."""
    following = [begin for begin, _ in places[1:]]
    if any(line[end:begin].strip() for (_, end), begin in zip(places, following, strict=False)):
        return _GAP.split(line.strip())
    begins = [0, *following]
    return [line[begin:end].strip() for begin, end in zip(begins, [*following, None], strict=True)]


def _cells(line: str) -> list[str]:
    # Line by line: a quote that is never closed must not swallow the rest.
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _are_units(cells: Sequence[str], table: Table) -> bool:
    return (
        len(cells) == len(table.names)
        and all(not cell or not any(sign.isdigit() for sign in cell) for cell in cells)
        and any(cell in NS or cell == "%" for cell in cells)
    )


def devices_of(texts: Sequence[str] | None, rows: int) -> tuple[Any, dict[int, str]]:
    """Return device numbers and names of cells such as "Tesla T4 (0)"; -1 where a cell has no number."""
    if texts is None:
        return np.full(rows, -1, dtype=np.int64), {}
    known = {text: _DEVICE.match(text[:_LONGEST_NAME]) for text in set(texts)}
    numbers = {text: int(match[2]) if match else -1 for text, match in known.items()}
    names = {int(match[2]): match[1] for match in known.values() if match}
    return np.array([numbers[text] for text in texts], dtype=np.int64), dict(sorted(names.items()))


def totals(
    table: Table, names: Sequence[str], count: Sequence[str], total: int, statistics: Statistics, suffix: str = "ns"
) -> "tuple[pd.DataFrame, np.ndarray[Any, np.dtype[np.bool_]], list[str]]":
    """Return name, count, total and statistics of the rows of a summary that have a count and a total.

    Args:
        table: of the summary.
        names: of its rows.
        count: names of the column with the counts.
        total: place of the column with the totals, in a unit of `statistics`.
        statistics: of further columns.
        suffix: unit of totals and statistics in the names of the columns returned.

    Returns:
        the table, which rows it has, and what could not be read.
    """
    import pandas as pd

    rows, problems, factor = len(table.rows), table.problems, statistics.units[table.units[total]]
    counts, sums = table.numbers(*count), np.array([number(row[total]) for row in table.rows]) * factor
    assert counts is not None
    columns: dict[str, Any] = {"name": names, "count": whole(counts, rows, -1)}
    columns[f"total_{suffix}"] = whole(sums, rows, -1)
    other = factor if statistics.otherwise is None else statistics.otherwise
    for own, theirs in statistics.columns.items():
        place = table.place(*theirs)
        if place is not None:
            columns[f"{own}_{suffix}"] = table.numbers(*theirs, factor=statistics.units.get(table.units[place], other))
    good = np.isfinite(counts) & np.isfinite(sums)
    if not good.all():
        problems.append(f"{int((~good).sum()):,} rows without count or total were skipped")
    return pd.DataFrame(columns)[good].reset_index(drop=True), good, problems


def times_of(table: Table, problems: list[str]) -> dict[str, Any] | None:
    """Return start and end of the rows of a trace, ns; None, with a problem, where their units are not known."""
    places = [table.place(name) for name in ("start", "duration")]
    units = [table.units[place] for place in places if place is not None]
    if len(units) < 2 or not table.rows:
        return None
    if not all(unit in NS for unit in units):
        problems.append(f"the time units {', '.join(map(repr, units))} are unknown: a table was skipped")
        return None
    rows = len(table.rows)
    begin = whole(table.numbers("start", factor=NS[units[0]]), rows, -(2**62))
    return {"start": begin, "end": begin + whole(table.numbers("duration", factor=NS[units[1]]), rows, -(2**60))}


def gpu_work(
    table: Table,
    names: Sequence[str],
    correlation_ids: Any,
    times: Mapping[str, Any],
    bytes_by_unit: Mapping[str, float],
) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the columns of GPU work in a trace, a value per row, and the names of its devices.

    Args:
        table: rows of nsys's cuda_gpu_trace or nvprof's --print-gpu-trace.
        names: of the pieces of work.
        correlation_ids: of the launching calls, -1 unknown.
        times: of `times_of`.
        bytes_by_unit: what the tool means by a unit of size.
    """
    rows = len(table.rows)
    device, devices = devices_of(table.texts("device"), rows)
    place = table.place("bytes", "size")
    factor = bytes_by_unit.get(table.units[place], 1.0) if place is not None else 1.0
    columns = {
        "name": names,
        "kind": [kind_of(name) for name in names],
        "device": device,
        "stream": whole(table.numbers("strm", "stream"), rows, -1),
        **times,
        "correlation_id": correlation_ids,
        "bytes": whole(table.numbers("bytes", "size", factor=factor), rows, 0),
        **{own: whole(table.numbers(*theirs), rows, 0) for own, theirs in _SIZES.items()},
    }
    return columns, devices


def kind_of(name: str) -> str:
    """Return what a row of a GPU trace is: kernel, memcpy or memset."""
    if not name.startswith("["):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"


def in_order(columns: Mapping[str, Any], problems: list[str], what: str, chosen: Any = None) -> "pd.DataFrame":
    """Return the (chosen) rows that have a start and an end, in order of start; others are counted in a problem."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    frame = frame if chosen is None else frame[chosen]
    good = (frame["start"] > -(2**61)) & (frame["end"] >= frame["start"]) & (frame["end"] < 2**62)
    if not good.all():
        problems.append(f"{int((~good).sum()):,} {what} without start or duration were skipped")
    return frame[good].sort_values("start", kind="stable", ignore_index=True)


def together(frames: "Sequence[pd.DataFrame]", otherwise: Mapping[str, str]) -> "pd.DataFrame":
    """Return tables of `in_order` as one, in order of start; without any, an empty one with those columns and types."""
    import pandas as pd

    if not frames:
        return empty(otherwise)
    return pd.concat(frames, ignore_index=True).sort_values("start", kind="stable", ignore_index=True)
