"""The records of an open CSV as csv.reader cuts them, each with the lines that it takes. Imports no torch."""

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from common.errors import InputError

DELIMITERS = (",", ";", "\t", "|")
"""Those that are found out."""
MOST_CHARACTERS = 2**20
"""Characters of a line or of a field at most; a quote that is never closed is met here."""
MOST_LINES = 40
"""Lines of a row that nobody wonders about; of more the cause may be quotes that stand alone."""
CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})(\s|$)|={7}\s*$")
"""What git leaves at the beginning of lines where two versions could not be merged: seven characters, exactly."""
_SHORT_CONFLICT = re.compile(r"(<{6}|>{6}|\|{6})(\s|$)|={6}\s*$")
UNCLOSED = "a quote opens a field and is not closed before the end of the file"
"""Why a quote is refused."""
_SEPARATOR = re.compile(r"\ufeff?\"?sep=([,;\t| ])\"?\r?(?:\n|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How fields are told apart, as the csv module takes it."""

    delimiter: str
    quoting: bool = True
    """Whether fields may stand in quotes."""
    quote_char: str = '"'
    skip_initial_space: bool = False
    """Whether spaces behind a delimiter are no part of the field: a quote behind them opens it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the file, whatever is in it."""

    line: int
    """Where it begins, from 1."""
    lines: int
    """Lines of the file that it takes."""
    first: str
    fields: list[str]
    closed: bool
    """Whether each quote that opens a field is closed before the end of the file."""
    broken: bool = False
    """Whether there is text behind a quote that closes a field, which no writer of CSV makes."""
    literal: bool = False
    """Whether a quote that opens a field was taken for text: it held other rows."""

    @property
    def is_blank(self) -> bool:
        """Whether nothing but white space is in it."""
        return not any(cell and not cell.isspace() for cell in self.fields)

    def is_marker(self, least: int) -> bool:
        """Whether it is a line that an unfinished merge left.

        Args:
            least: fields of a row at least; a line of six characters, as typed by hand, is a marker only where it
                has fewer and so is no row, or it would be content.
        """
        if CONFLICT.match(self.first):
            return True
        return len(self.fields) < least and _SHORT_CONFLICT.match(self.first) is not None


@dataclass(slots=True)
class _Lines:
    """The lines of a file; those of the record that is being read are kept, and can be read again."""

    file: TextIO
    path: Path
    number: int = 0
    ended: bool = False
    taken: list[str] = field(default_factory=list, init=False)
    """Lines of the record that is being read."""
    ahead: deque[str] = field(default_factory=deque, init=False)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.ahead.popleft() if self.ahead else self.file.readline(MOST_CHARACTERS)
        if not line:
            self.ended = True
            raise StopIteration
        self.number += 1
        if len(line) >= MOST_CHARACTERS and line[-1] not in "\r\n":
            raise InputError(
                "file-limit",
                f"{self.path} line {self.number} is longer than {MOST_CHARACTERS:,} characters: that is no CSV of "
                "texts",
            )
        self.taken.append(line)
        return line

    def begin(self) -> int:
        """Begin a record; return its first line."""
        self.taken, self.ended = [], False
        return self.number + 1

    def keep(self, count: int) -> None:
        """Give all lines of the record back but the first `count`."""
        self.ahead.extendleft(reversed(self.taken[count:]))
        self.number -= len(self.taken) - count
        del self.taken[count:]


def _cut(lines: Iterable[str], dialect: Dialect, quoting: bool, strict: bool) -> Iterator[list[str]]:
    return csv.reader(
        lines,
        delimiter=dialect.delimiter,
        quotechar=dialect.quote_char,
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
        skipinitialspace=dialect.skip_initial_space,
        strict=strict,
    )


class _Reader:
    """Cuts lines into records; where quotes are wrong, into those that hold no other row."""

    def __init__(self, lines: _Lines, dialect: Dialect, width: int | None) -> None:
        self._lines, self._dialect, self._width = lines, dialect, width
        self._strict = _cut(lines, dialect, dialect.quoting, strict=True)
        self._loose = _cut(lines, dialect, dialect.quoting, strict=False)
        self._doubtful = 0
        """Line whose quote closed a field that a line before opened, with text behind it."""

    def next(self) -> Record | None:
        """Return the next record; None at the end. Raises InputError where a field is too long."""
        began = self._lines.begin()
        try:
            return self._record(began, next(self._strict))
        except StopIteration:
            return None
        except csv.Error:
            self._lines.keep(0)
        return self._broken(self._lines.begin())

    def _broken(self, began: int) -> Record:
        lines = self._lines
        try:
            fields = next(self._loose)
        except csv.Error as error:
            if began != self._doubtful or self._fields_alone(lines.taken[0]) is None:
                raise unclosed(lines.path, began, str(error)) from error
            fields = []
        closed = bool(fields) and not lines.ended
        if closed and len(lines.taken) == 1:
            return self._record(began, fields, broken=True)
        alone = self._fields_alone(lines.taken[0])
        if closed and alone is not None and all(map(self._is_row, lines.taken[1:])):
            self._doubtful = lines.number
            lines.keep(1)
            return self._record(began, alone, literal=True)
        if not closed and alone is not None and began == self._doubtful:
            lines.keep(1)
            return self._record(began, alone, literal=True)
        if closed and self._width is not None:
            self._take_rest()
        return self._record(began, fields, broken=closed)

    def _record(self, began: int, fields: list[str], broken: bool = False, literal: bool = False) -> Record:
        lines = self._lines
        # A whole record needs no line behind its own.
        closed = literal or not lines.ended
        return Record(began, len(lines.taken), lines.taken[0], fields, closed, broken, literal)

    def _fields_alone(self, line: str) -> list[str] | None:
        """Return the fields of a line where quotes are text; None where those are not as many as the columns."""
        fields = next(_cut([line], self._dialect, quoting=False, strict=False), [])
        return fields if len(fields) == self._width and self._width > 1 else None

    def _is_row(self, line: str) -> bool:
        """Whether a line alone has as many fields as there are columns, with quotes or with quotes as text."""
        try:
            fields = next(_cut([line], self._dialect, quoting=True, strict=True), [])
        except csv.Error:
            fields = []
        return len(fields) == self._width or self._fields_alone(line) is not None

    def _take_rest(self) -> None:
        """Take the lines behind a broken record that may be its end: with half of a pair of quotes, or too short."""
        lines, quote = self._lines, self._dialect.quote_char
        while len(lines.taken) < MOST_LINES:
            line = next(lines, None)
            if line is None:
                lines.ended = False
                return
            if line.count(quote) % 2 == 0 and self._is_row(line):
                lines.keep(len(lines.taken) - 1)
                return


def read_records(path: Path, file: TextIO, dialect: Dialect, width: int | None = None) -> Iterator[Record]:
    """Yield the records of a file, one after the other, the header and blank ones too; not a first line sep=;.

    Text behind a quote that closes a field is sure to be wrong: a quote before it stands alone, or was not doubled.
    Where such a record takes several lines, and each of them alone has `width` fields, they are rows, and the quote
    that opened is text. Else they are one broken record, with what may be its end.

    Args:
        path: the file, for messages.
        file: it, opened with newline="".
        dialect: how fields are told apart.
        width: columns; None where they are unknown: then no broken record is divided.

    Raises:
        InputError: a line or a field is too long; the message has the line.
    """
    csv.field_size_limit(MOST_CHARACTERS)
    reader = _Reader(_Lines(file, path), dialect, width)
    while (record := reader.next()) is not None:
        if record.line > 1 or names_delimiter(record.first) is None:
            yield record


def names_delimiter(text: str) -> str | None:
    """Return the delimiter that the first line names, as Excel reads and writes it: sep=; on a line of its own."""
    found = _SEPARATOR.match(text)
    return found[1] if found else None


def unclosed(path: Path, line: int, why: str = UNCLOSED) -> InputError:
    """Return the refusal of a record that does not end."""
    return InputError(
        "file-damaged",
        f"{path} line {line}: {why}: put the quotes right there, or give --no-quoting where quotes are plain text",
    )
