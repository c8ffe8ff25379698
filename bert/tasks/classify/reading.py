"""Read a CSV of texts and labels: find encoding, delimiter and columns, then yield its rows, unusable ones with why."""

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from bert.corpus.files import find_encoding, refuse_other_files
from bert.tasks.classify.config import CsvForm
from common.errors import InputError, read_code
from common.reading import read_errors

DELIMITERS = "\t|;,"
"""In this order where several fit, so that a single column of texts is not divided at its commas."""
MOST_LINES = 40
"""Lines of a row with wrong quotes; more are refused, because other rows are lost in it."""
_MOST_CHARACTERS = 2**26
_SAMPLE_CHARACTERS = 2**14
_SAMPLE_LINES = 500
_MOST_SAMPLED_BYTES = 2**26
_WESTERN = ["cp1252", "latin_1"]
_WESTERN_CHAOS = 0.5
"""Chaos up to which text is Western: accents and typographic signs in a row look odd, other alphabets exceed it."""
_INVALID_BYTE = "\ufffd"

# Reasons why a row is unusable.
EMPTY_TEXT, EMPTY_LABEL, BLANK = "empty text", "empty label", "blank line"
FEWER, MORE = "too few fields", "more fields than columns"
BROKEN, NO_PIECES = "text after a closing quote, or a quote that is not closed", "text without a word piece"

# Oddities of rows that are used.
INVALID, NAMELESS = "invalid bytes, read as U+FFFD", "text in columns without a name, not read"
SEVERAL_LINES = "line ends within a field"


@dataclass(frozen=True, slots=True)
class FoundForm:
    """How a CSV is read."""

    encoding: str
    """Python's name of the encoding."""
    delimiter: str
    quoting: bool
    header: tuple[str, ...]
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Number of the column with the labels, from 0; None if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the file."""

    line: int
    """Where it begins, from 1."""
    lines: int
    text: str = ""
    """As it is in the file."""
    label: str | None = None
    """Without whitespace around it; None without a column of labels, empty if the row has none."""
    odd: tuple[str, ...] = ()
    left_out: str | None = None
    """Why it is unusable; None if it is usable."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.lines == 1 else f"lines {self.line} to {self.line + self.lines - 1}"


def find_form(path: Path, given: CsvForm, needs_label: bool = True) -> FoundForm:
    """Return how a file is written; what is `given` takes precedence.

    Raises:
        InputError: it is missing, empty, an archive, cannot be read, or lacks a column.
    """
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputError("path-kind" if path.exists() else "path-missing", f"{path} {what}: give a CSV file")
    with read_errors(path, "give a CSV file"):
        refuse_other_files(path)
    encoding = given.encoding or _find_encoding(path)
    with _opened(path, encoding) as file:
        lines = file.read(_SAMPLE_CHARACTERS).splitlines(keepends=True)
    headers: dict[str, list[str]] = {
        delimiter: next((row for row in _reader(lines, delimiter, given.quoting) if any(map(str.strip, row))), [])
        for delimiter in (given.separator or DELIMITERS)
    }
    delimiter = next((one for one in headers if _column(headers[one], given.text) is not None), given.separator or ",")
    header = tuple(map(str.strip, headers[delimiter]))
    if not header:
        raise InputError("file-empty", f"{path} holds no rows: give a CSV with a header and rows below it")
    text, label = (_column(header, name) for name in (given.text, given.label))
    if text is None or (label is None and needs_label):
        option, name = ("text", given.text) if text is None else ("label", given.label)
        raise InputError(
            "columns-missing",
            f"{path} has no column {name!r} but {', '.join(map(repr, header))}: give --{option} or --delimiter",
        )
    return FoundForm(encoding, delimiter, given.quoting, header, text, label)


def _find_encoding(path: Path) -> str:
    """Return that of a byte order mark, or UTF-8, or what charset-normalizer takes the lines that are not ASCII for."""
    with read_errors(path, "give a CSV file"), path.open("rb") as file:
        encoding, _ = find_encoding(path, file.read(_MOST_SAMPLED_BYTES))
    if encoding not in ("cp1252", "latin-1"):
        return encoding
    from charset_normalizer import from_bytes

    with path.open("rb") as file:
        sample = b"".join(islice((line for line in file if not line.isascii()), _SAMPLE_LINES))
    if from_bytes(sample, cp_isolation=_WESTERN, threshold=_WESTERN_CHAOS).best() is not None:
        return encoding
    best = from_bytes(sample).best()
    return encoding if best is None else best.encoding


def _reader(lines: Iterable[str], delimiter: str, quoting: bool, strict: bool = False) -> Any:
    style = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=strict)  # type: ignore[arg-type]


def _column(header: Iterable[str], name: str) -> int | None:
    """Return the number of a column by its name, else by its name in any letter case."""
    names = [one.strip() for one in header]
    folded = [one.casefold() for one in names]
    return names.index(name) if name in names else folded.index(name.casefold()) if name.casefold() in folded else None


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


def read_rows(path: Path, form: FoundForm, needs_label: bool = True) -> Iterator[Row]:
    """Yield the rows of a file below its header, in order; memory does not depend on its size."""
    csv.field_size_limit(_MOST_CHARACTERS)
    seen_header = False
    with _opened(path, form.encoding) as file:
        reader = _reader(file, form.delimiter, form.quoting, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
                row = _row(fields, line, reader.line_num - line + 1, form, needs_label)
            except StopIteration:
                return
            except csv.Error as error:  # the next row begins at the next line
                row = Row(line=line, lines=reader.line_num - line + 1, left_out=BROKEN)
                if row.lines > MOST_LINES:
                    raise InputError(
                        "file-damaged", f"{path} {row.place}: {error}: correct the quotes, or give --no-quoting"
                    ) from error
            if seen_header or row.left_out == BLANK:
                yield row
            else:
                seen_header = True


def _row(fields: list[str], line: int, lines: int, form: FoundForm, needs_label: bool) -> Row:
    cells = dict(enumerate(fields))
    text, label = cells.get(form.text, ""), None if form.label is None else cells.get(form.label, "").strip()
    spilled = [cell for number, cell in cells.items() if cell.strip() and not "".join(form.header[number : number + 1])]
    reason = None
    if not any(map(str.strip, fields)):
        reason = BLANK
    elif any(map(str.strip, fields[len(form.header) :])):
        reason = MORE
    elif form.text not in cells or (needs_label and form.label not in cells):
        reason = FEWER
    elif not text.strip():
        reason = EMPTY_TEXT
    elif needs_label and not label:
        reason = EMPTY_LABEL
    odd = {INVALID: _INVALID_BYTE in text + (label or ""), NAMELESS: spilled, SEVERAL_LINES: lines > 1}
    found = tuple(name for name, holds in odd.items() if holds)
    return Row(line=line, lines=lines, text=text, label=label, odd=found, left_out=reason)
