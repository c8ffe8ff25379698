"""CSV tables of `nsys stats --format csv`: several in one file, between lines of other kinds, in several units."""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.readers.packed import log_lines

Numbers = npt.NDArray[np.float64]

NS = {"ns": 1.0, "nsec": 1.0, "us": 1e3, "\u03bcs": 1e3, "\u00b5s": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6}
NS |= {"s": 1e9, "sec": 1e9}
"""Nanoseconds by unit of time."""
BYTES = {"b": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Bytes by unit of size, in nsys's sense: MB is 1,000,000, MiB 1,048,576."""
_MOST = float(2**62)
_LONGEST_NOTE = 2000
_LONGEST_NAME = 300  # of a column: patterns take time that grows with the square
_UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)\s*$")
_HEAD_LINES = 2000
_TITLE_LINE = re.compile(r"^\s*(?:Processing\b.*[/\[](\w+)(?:\.py)?\b[^/\]]*\]?|SKIPPED\b|NOTICE\b)")


@dataclass(slots=True)
class Table:
    """One table of a file."""

    title: str
    """Report that the line before it names; "" where none does."""
    names: tuple[str, ...]
    """Column names in small letters, without units."""
    units: list[str]
    """Unit of each column in small letters, "" where there is none."""
    rows: list[list[str]] = field(default_factory=list)
    """Cells as they are, as many as there are columns."""
    torn: int = 0
    """Lines that are no row of the table."""
    damage: list[str] = field(default_factory=list)
    """What the file lost, one clause each."""

    @property
    def problems(self) -> list[str]:
        """What of it could not be read, one sentence each."""
        torn = [f"{self.torn:,} lines are not rows of the table and were skipped"] if self.torn else []
        return [*self.damage, *torn]

    def place(self, *names: str) -> int | None:
        """Return where the first of these columns is, None where the table has none of them."""
        return next((self.names.index(name) for name in names if name in self.names), None)

    def texts(self, *names: str) -> list[str] | None:
        """Return the cells of the first of these columns, None where the table has none of them."""
        place = self.place(*names)
        return None if place is None else [row[place] for row in self.rows]

    def numbers(self, *names: str, factor: float = 1.0) -> Numbers | None:
        """Return the numbers of the first of these columns times a factor, NaN where a cell holds none."""
        texts = self.texts(*names)
        return None if texts is None else np.array([_number(text) for text in texts], dtype=np.float64) * factor


def has_table(text: str, word: str, is_header: Callable[[Sequence[str]], bool]) -> bool:
    """Return whether a line of the beginning of a file is a table's header.

    Args:
        text: the beginning of the file.
        word: what a header contains.
        is_header: whether the cells of a line are a header.
    """
    lines = text.splitlines()[:_HEAD_LINES]
    return any(is_header([cell.strip().strip('"') for cell in line.split(",")]) for line in lines if word in line)


def read_tables(path: Path, is_header: Callable[[Sequence[str]], bool]) -> Iterator[Table]:
    """Yield the tables of a file.

    Args:
        path: the file, plain or gzip-compressed.
        is_header: whether the cells of a line are a table's header.
    """
    table: Table | None = None
    title = ""
    damage: list[str] = []
    for line in log_lines(path, damage.append):
        match = _TITLE_LINE.match(line[:_LONGEST_NOTE])
        if match or not line.strip():
            if table:
                yield table
            table, title = None, (match[1] or "") if match else "" if table else title
            continue
        cells = _cells(line)
        if is_header(cells):
            if table:
                yield table
            split = [_split_unit(cell) for cell in cells]
            table = Table(title, tuple(name for name, _ in split), [unit for _, unit in split])
        elif table and len(cells) == len(table.names) and line.count('"') % 2 == 0:
            table.rows.append(cells)
        elif table:
            table.torn += 1
    if table:
        table.damage += damage
        yield table


def whole(values: Numbers | None, rows: int, default: int) -> npt.NDArray[np.int64]:
    """Return numbers rounded to int64; the default where there are none."""
    if values is None:
        return np.full(rows, default, dtype=np.int64)
    known = np.isfinite(values) & (np.abs(np.where(np.isfinite(values), values, 0)) < _MOST)
    return np.where(known, np.rint(np.where(known, values, 0)), default).astype(np.int64)


def _split_unit(name: str) -> tuple[str, str]:
    """Return a column's name and unit, in small letters: "Total Time (ns)" is ("total time", "ns")."""
    name = name.strip().lower()[:_LONGEST_NAME]
    match = _UNIT.match(name)
    return (match[1].strip(), match[2].strip()) if match else (name, "")


def _number(text: str) -> float:
    """Return the number in a cell, thousands separators allowed; NaN where there is none, or one beyond all bounds."""
    try:
        number = float(text.replace(",", "")) if "_" not in text else math.nan
    except ValueError:
        return math.nan
    return number if abs(number) < _MOST else math.nan


def _cells(line: str) -> list[str]:
    # Line by line: a quote that is never closed must not swallow the rest.
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []
