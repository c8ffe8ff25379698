"""Read a CSV of texts and labels: find encoding, delimiter and columns, then yield its rows, unusable ones with why."""

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from bert.corpus.files import find_encoding, refuse_other_files
from common.errors import InputError, UsageError, read_code
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

# Reasons why a row is unusable.
EMPTY_TEXT, EMPTY_LABEL, BLANK = "empty text", "empty label", "blank line"
FEWER, MORE = "too few fields", "more fields than columns"
BROKEN, NO_PIECES = "text after a closing quote, or a quote that is not closed", "text without a word piece"

# Oddities of rows that are used.
INVALID, NAMELESS = "invalid bytes, read as U+FFFD", "text in columns without a name, not read"


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvForm:
    """How a CSV is to be read."""

    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the labels."""
    encoding: str | None = None
    """Encoding of the file, such as utf-8, cp1252, utf-16; default detected and reported."""
    delimiter: str | None = None
    """Field delimiter: one character, or tab; default detected and reported."""
    quoting: bool = True
    """Quoted fields may contain delimiters and line breaks; --no-quoting treats quotes as plain text."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            raise UsageError(
                "option-value", f"--encoding {self.encoding!r}: {error}; give one such as utf-8"
            ) from error
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise UsageError("option-value", f"--delimiter {self.delimiter!r} must be one character, or the word tab")
        if self.text == self.label:
            raise UsageError("option-conflict", f"--text and --label are the same column {self.text!r}: give another")

    @property
    def separator(self) -> str | None:
        """The delimiter itself; None if it is to be detected."""
        return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter


@dataclass(frozen=True, slots=True)
class FoundForm:
    """How a CSV is read."""

    encoding: str
    delimiter: str
    quoting: bool
    header: tuple[str, ...]
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Of that with the labels; None if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the file."""

    line: int
    """Where it begins, from 1."""
    text: str = ""
    label: str | None = None
    """Without whitespace around it; None without a column of labels, empty if the row has none."""
    odd: tuple[str, ...] = ()
    left_out: str | None = None
    """Why it is unusable; None if it is usable."""


def find_form(path: Path, given: CsvForm, needs_label: bool = True) -> FoundForm:
    """Return how a file is written; what is `given` takes precedence.

    Raises InputError: it is missing, empty, an archive, cannot be read, or lacks a column.
    """
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputError("path-kind" if path.exists() else "path-missing", f"{path} {what}: give a CSV file")
    with read_errors(path, "give a CSV file"):
        refuse_other_files(path)
    encoding = given.encoding or _find_encoding(path)
    with _opened(path, encoding) as file:
        lines = file.read(_SAMPLE_CHARACTERS).splitlines(keepends=True)
    headers = {
        delimiter: next(
            filter(any, (tuple(map(str.strip, row)) for row in _reader(lines, delimiter, given.quoting))), ()
        )
        for delimiter in (given.separator or DELIMITERS)
    }
    delimiter = next((one for one in headers if given.text in headers[one]), given.separator or ",")
    header = headers[delimiter]
    if not header:
        raise InputError("file-empty", f"{path} holds no rows: give a CSV with a header and rows below it")
    for option, name in (("text", given.text), *([("label", given.label)] if needs_label else [])):
        if name not in header:
            raise InputError(
                "columns-missing",
                f"{path} has no column {name!r} but {', '.join(map(repr, header))}: give --{option} or --delimiter",
            )
    label = header.index(given.label) if given.label in header else None
    return FoundForm(encoding, delimiter, given.quoting, header, header.index(given.text), label)


def _find_encoding(path: Path) -> str:
    """Return that of a byte order mark, or UTF-8, or what charset-normalizer takes the lines that are not ASCII for."""
    with read_errors(path, "give a CSV file"), path.open("rb") as file:
        encoding, _ = find_encoding(path, file.read(_MOST_SAMPLED_BYTES))
        if encoding not in ("cp1252", "latin-1"):
            return encoding
        from charset_normalizer import from_bytes

        file.seek(0)
        sample = b"".join(islice((line for line in file if not line.isascii()), _SAMPLE_LINES))
    if from_bytes(sample, cp_isolation=_WESTERN, threshold=_WESTERN_CHAOS).best() is not None:
        return encoding
    best = from_bytes(sample).best()
    return encoding if best is None else best.encoding


def _reader(lines: Iterable[str], delimiter: str, quoting: bool, strict: bool = False) -> Any:
    style = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=style, strict=strict)  # type: ignore[arg-type]


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
                row = _row(next(reader), line, form, needs_label)
            except StopIteration:
                return
            except csv.Error as error:  # the next row begins at the next line
                if reader.line_num - line >= MOST_LINES:
                    raise InputError(
                        "file-damaged",
                        f"{path} lines {line} to {reader.line_num}: {error}: correct the quotes, or give --no-quoting",
                    ) from error
                row = Row(line=line, left_out=BROKEN)
            if seen_header or row.left_out == BLANK:
                yield row
            else:
                seen_header = True


def _row(fields: list[str], line: int, form: FoundForm, needs_label: bool) -> Row:
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
    odd = (*([INVALID] if "\ufffd" in text + (label or "") else []), *([NAMELESS] if spilled else []))
    return Row(line=line, text=text, label=label, odd=odd, left_out=reason)
