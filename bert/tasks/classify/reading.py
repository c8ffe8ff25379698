"""Read a CSV of texts and labels: find encoding, delimiter and columns, then yield its rows, unusable ones with why."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from bert.corpus.files import find_encoding, refuse_other_files
from bert.tasks.classify.config import CsvForm
from common.errors import InputError, UsageError, read_code
from common.reading import read_errors

DELIMITERS = "\t|;,"
"""In this order where several fit, so that a single column of texts is not divided at its commas."""
MOST_LINES = 40
"""Lines of a row with wrong quotes; more are refused, because other rows are lost in it."""
_MOST_CHARACTERS = 2**20
_SAMPLE_CHARACTERS = 2**14
_SAMPLE_LINES = 500
_MOST_SAMPLED_BYTES = 2**26
_WESTERN = ["cp1252", "latin_1"]
_WESTERN_CHAOS = 0.5
"""Chaos up to which text is Western: accents and typographic signs in a row look odd, other alphabets exceed it."""
_INVALID_BYTE = "\ufffd"

# Reasons why a row is unusable.
EMPTY_TEXT, EMPTY_LABEL, BLANK, HEADER_AGAIN = "empty text", "empty label", "blank line", "header again"
FEWER, MORE = "too few fields", "more fields than columns"
BROKEN, NO_PIECES = "text after a closing quote, or a quote that is not closed", "text without a word piece"

# Oddities of rows that are used.
INVALID, NAMELESS = "invalid bytes, read as U+FFFD", "text in columns without a name, not read"
SEVERAL_LINES, MANY_LINES = "line ends within a field", f"more than {MOST_LINES} lines in a row"


@dataclass(frozen=True, slots=True)
class FoundForm:
    """How a CSV is read."""

    encoding: str
    """Python's name of the encoding."""
    delimiter: str
    quoting: bool
    header: tuple[str, ...] | None
    """Names of the columns; None if the first row is data."""
    width: int
    """Columns."""
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Number of the column with the labels, from 0; None if there is none."""

    def column(self, number: int) -> str:
        """Return the name of a column, or "number N"."""
        return (self.header[number] if self.header else "") or f"number {number + 1}"

    def least(self, needs_label: bool = True) -> int:
        """Return the fields that a row has at least: up to the last column that has a name or is read."""
        needed = {number for number, name in enumerate(self.header or "?" * self.width) if name} | {self.text}
        if self.label is not None:
            needed = needed | {self.label} if needs_label else needed - {self.label}
        return 1 + max(needed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the file."""

    line: int
    """Where it begins, from 1."""
    lines: int = 1

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.lines == 1 else f"lines {self.line} to {self.line + self.lines - 1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRow(Row):
    """A usable row."""

    text: str
    """As it is in the file."""
    label: str | None
    """Without whitespace around it; None without a column of labels, empty if the row has none."""
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut(Row):
    """An unusable row."""

    reason: str


def check_file(path: Path) -> None:
    """Raise InputError if a path is not a file, is empty, an archive, or cannot be read."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputError("path-kind" if path.exists() else "path-missing", f"{path} {what}: give a CSV file")
    with read_errors(path, "give a CSV file"):
        refuse_other_files(path)


def find_form(path: Path, given: CsvForm, needs_label: bool = True) -> FoundForm:
    """Return how a file is written; what is `given` takes precedence.

    Args:
        path: the file.
        given: what is known of it.
        needs_label: whether there must be a column of labels.
    """
    encoding = given.encoding or _find_encoding(path)
    with _opened(path, encoding) as file:
        lines = file.read(_SAMPLE_CHARACTERS).splitlines(keepends=True)
    delimiter = given.separator or _find_delimiter(lines, given)
    first = _first_row(lines, delimiter, given.quoting)
    if not first:
        raise InputError("file-empty", f"{path} holds no rows: give a CSV with a header and rows below it")
    names = first if given.header else ()
    text = _find_column(path, given.text, "text", first, names)
    label = None
    if needs_label or given.label.casefold() in map(str.casefold, names):
        label = _find_column(path, given.label, "label", first, names)
    if text == label:
        raise UsageError("option-conflict", f"--text {given.text} and --label {given.label} are the same column")
    return FoundForm(encoding, delimiter, given.quoting, names or None, len(first), text, label)


def _find_encoding(path: Path) -> str:
    """Return that of a byte order mark, or UTF-8, or what charset-normalizer takes the lines that are not ASCII for."""
    with read_errors(path, "give a CSV file"), path.open("rb") as file:
        found, _ = find_encoding(path, file.read(_MOST_SAMPLED_BYTES))
    if found not in ("cp1252", "latin-1"):
        return found
    from charset_normalizer import from_bytes

    with path.open("rb") as file:
        sample = b"".join(islice((line for line in file if not line.isascii()), _SAMPLE_LINES))
    if from_bytes(sample, cp_isolation=_WESTERN, threshold=_WESTERN_CHAOS).best() is not None:
        return found
    best = from_bytes(sample).best()
    return found if best is None else best.encoding


def _find_delimiter(lines: Sequence[str], given: CsvForm) -> str:
    """Return the delimiter that gives the first row the wanted name, else that of csv.Sniffer, else the one of most
    columns.
    """
    columns = {delimiter: _first_row(lines, delimiter, given.quoting) for delimiter in DELIMITERS}
    wanted = given.text.casefold()
    fitting = [one for one, names in columns.items() if given.header and wanted in map(str.casefold, names)]
    if not fitting:
        try:
            return csv.Sniffer().sniff("".join(lines), DELIMITERS).delimiter
        except csv.Error:
            pass
    return max(fitting or DELIMITERS, key=lambda delimiter: len(columns[delimiter]))


def _reader(lines: Iterable[str], delimiter: str, quoting: bool, strict: bool = False) -> Any:
    style = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=strict)  # type: ignore[arg-type]


def _first_row(lines: Sequence[str], delimiter: str, quoting: bool) -> tuple[str, ...]:
    """Return the first row that is not blank, without whitespace around its fields; () for none."""
    rows = _reader(lines, delimiter, quoting)
    return next((tuple(map(str.strip, row)) for row in rows if any(map(str.strip, row))), ())


def _find_column(path: Path, wanted: str, option: str, first: Sequence[str], names: Sequence[str]) -> int:
    """Return the number of a column, from 0: that of the name in any letter case, else the number from 1."""
    for column_names, word in ((list(names), wanted), ([name.casefold() for name in names], wanted.casefold())):
        if column_names.count(word) > 1:
            raise InputError("data-ambiguous", f"{path} has several columns {wanted!r}: give --{option} a number")
        if word in column_names:
            return column_names.index(word)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(first):
        return int(wanted) - 1
    raise InputError(
        "columns-missing",
        f"{path} has no column {wanted!r} for --{option} but {', '.join(map(repr, first))}: give --{option} a name or "
        "number, --delimiter, or --no-header",
    )


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[TextIO]:
    try:
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            if file.read(1) != "\ufeff":  # a byte order mark, where the encoding was given
                file.seek(0)
            yield file
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror}; give a CSV file") from error
    except UnicodeError as error:
        raise InputError("file-encoding", f"{path} is not {encoding} ({error}): give another --encoding") from error


def read_rows(path: Path, form: FoundForm, needs_label: bool = True) -> Iterator[TextRow | LeftOut]:
    """Yield the rows of a file below its header, in order; memory does not depend on its size.

    Args:
        path: the file.
        form: how it is written.
        needs_label: whether a row without a label cannot be used.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    seen_header = form.header is None
    with _opened(path, form.encoding) as file:
        reader = _reader(file, form.delimiter, form.quoting, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
                found = _read(fields, line, reader.line_num - line + 1, form, needs_label)
            except StopIteration:
                return
            except csv.Error as error:  # the next row begins at the next line
                found = LeftOut(line=line, lines=reader.line_num - line + 1, reason=BROKEN)
                if found.lines > MOST_LINES:
                    raise InputError(
                        "file-damaged", f"{path} {found.place}: {error}: correct the quotes, or give --no-quoting"
                    ) from error
            if seen_header or (isinstance(found, LeftOut) and found.reason == BLANK):
                yield found
            else:
                seen_header = True


def _read(fields: list[str], line: int, lines: int, form: FoundForm, needs_label: bool) -> TextRow | LeftOut:
    reason = _why_not(fields, form, needs_label)
    if reason is not None:
        return LeftOut(line=line, lines=lines, reason=reason)
    text, label = fields[form.text], None
    if form.label is not None:
        label = fields[form.label].strip() if form.label < len(fields) else ""
    odd = [INVALID] if _INVALID_BYTE in text + (label or "") else []
    if any(map(str.strip, fields[form.least() : form.width])):
        odd.append(NAMELESS)
    if lines > 1:
        odd.append(MANY_LINES if lines > MOST_LINES else SEVERAL_LINES)
    return TextRow(line=line, lines=lines, text=text, label=label, odd=tuple(odd))


def _why_not(fields: list[str], form: FoundForm, needs_label: bool) -> str | None:
    """Return why a row cannot be used; None if it can."""
    if not any(map(str.strip, fields)):
        return BLANK
    if any(map(str.strip, fields[form.width :])):
        return MORE
    if form.header is not None and [cell.strip().casefold() for cell in fields] == [*map(str.casefold, form.header)]:
        return HEADER_AGAIN
    if len(fields) < form.least(needs_label):
        return FEWER
    if not fields[form.text].strip():
        return EMPTY_TEXT
    if needs_label and form.label is not None and not fields[form.label].strip():
        return EMPTY_LABEL
    return None
