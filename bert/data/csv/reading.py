"""The rows of a CSV, one after the other: those with a text and a label, and those that cannot be used, and why."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from bert.data.csv.form import CONFLICT, MOST_CHARACTERS, FoundForm, names_delimiter
from common.errors import InputError

# Why a row cannot be used.
EMPTY_TEXT, EMPTY_LABEL = "empty text", "empty label"
FEWER, MORE = "too few fields", "more fields than columns"
BLANK, MARKER, HEADER_AGAIN = "blank line", "merge-conflict line", "header again"
NO_PIECES = "text without a word piece"

# What is odd about a row that is used.
INVALID, FORMULA, SHORTER, SEVERAL_LINES, MANY_LINES, NULS = (
    "bytes that are none of the encoding, read as U+FFFD", "cells like formulas, read as text",
    "fields missing at the end", "line ends within a field", "fields of very many lines", "NUL characters, taken out",
)  # fmt: skip
MOST_LINES = 40
"""Lines of a row that nobody wonders about; of more the cause may be quotes that stand alone."""
_MARKER = re.compile(r"^(<{7}|>{7}|\|{7})(\s|$)|^={7}\s*$")
_FORMULA = ("=", "@", "+", "-")
_INVALID = "\ufffd"


@dataclass(frozen=True, slots=True)
class TextRow:
    """A row that can be used."""

    line: int
    """Where it begins, from 1."""
    text: str
    """As it is in the file."""
    label: str | None
    """Without white space around it; None where labels are not read, empty where that is wanted and there is none."""
    odd: tuple[str, ...] = ()
    """What is odd about it."""
    lines: int = 1
    """Lines of the file that it takes."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.lines <= MOST_LINES else f"lines {self.line} to {self.line + self.lines - 1}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that cannot be used."""

    line: int
    """Where it begins, from 1."""
    reason: str
    """Why."""
    lines: int = 1
    """Lines of the file that it takes."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.lines <= MOST_LINES else f"lines {self.line} to {self.line + self.lines - 1}"


@dataclass(slots=True)
class _Lines:
    """The lines of a file; those of the row that is being read are counted."""

    file: TextIO
    path: Path
    number: int = 0
    """Lines handed out so far."""
    ended: bool = False
    first: str = field(default="", init=False)
    """First line of the row that is being read."""
    taken: int = field(default=0, init=False)
    """Lines of that row."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.file.readline(MOST_CHARACTERS)
        if not line:
            self.ended = True
            raise StopIteration
        self.number += 1
        if len(line) >= MOST_CHARACTERS and line[-1] not in "\r\n":
            raise InputError(
                f"{self.path} line {self.number} is longer than {MOST_CHARACTERS:,} characters: that is no CSV of texts"
            )
        if not self.taken:
            self.first = line
        self.taken += 1
        return line


def read_rows(path: Path, form: FoundForm, needs_label: bool = True) -> Iterator[TextRow | LeftOut]:
    """Yield the rows of a file below its header, in order; memory does not depend on its size.

    Args:
        path: the file.
        form: how it is written.
        needs_label: whether a row without a label cannot be used.

    Raises:
        InputError: it cannot be read, or a quote is never closed; the message has the line.
    """
    csv.field_size_limit(MOST_CHARACTERS)
    header = form.header
    try:
        with path.open(encoding=form.encoding, errors="replace", newline="") as file:
            lines = _Lines(file, path)
            reader = csv.reader(
                lines,
                delimiter=form.delimiter,
                quoting=csv.QUOTE_MINIMAL if form.quoting else csv.QUOTE_NONE,
                skipinitialspace=True,
            )
            seen_header = header is None
            while True:
                began = lines.number + 1
                lines.taken = 0
                try:
                    record = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    raise _unclosed(path, began, str(error)) from error
                if lines.ended and lines.taken:  # a whole row needs no line behind its own
                    raise _unclosed(path, began, "a quote opens a field and is not closed before the end of the file")
                if began == 1 and names_delimiter(lines.first) is not None:
                    continue
                found = _read(record, form, began, lines, needs_label)
                if not seen_header and _is_header(record, found, form):
                    seen_header = True
                    continue
                yield found
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a CSV file") from error
    except UnicodeError as error:
        raise InputError(f"{path} is not {form.encoding} ({error}): give another --encoding") from error


def _is_header(record: list[str], found: TextRow | LeftOut, form: FoundForm) -> bool:
    """Whether the first row is the header: neither blank nor a marker, unless all columns are without a name."""
    if isinstance(found, LeftOut) and found.reason in (BLANK, MARKER):
        return found.reason == BLANK and not any(form.header or ("",)) and len(record) == len(form.header or ())
    return True


def _read(record: list[str], form: FoundForm, line: int, lines: _Lines, needs_label: bool = True) -> TextRow | LeftOut:
    reason = _why_not(record, form, lines, needs_label)
    if reason is not None:
        return LeftOut(line, reason, lines.taken)
    text, label = record[form.text], None
    if form.label is not None:
        label = record[form.label].strip() if form.label < len(record) else ""
    odd = []
    if "\0" in text or "\0" in (label or ""):
        text, label = text.replace("\0", ""), label and label.replace("\0", "").strip()
        odd.append(NULS)
        if not text.strip() or (label == "" and needs_label):
            return LeftOut(line, EMPTY_LABEL if text.strip() else EMPTY_TEXT, lines.taken)
    if _INVALID in text or _INVALID in (label or ""):
        odd.append(INVALID)
    if text.startswith(_FORMULA) or (label or "").startswith(_FORMULA):
        odd.append(FORMULA)
    if form.header is not None and len(record) < len(form.header):
        odd.append(SHORTER)
    if lines.taken > 1:
        odd.append(MANY_LINES if lines.taken > MOST_LINES else SEVERAL_LINES)
    return TextRow(line, text, label, tuple(odd), lines.taken)


def _why_not(record: list[str], form: FoundForm, lines: _Lines, needs_label: bool) -> str | None:
    """Why a row cannot be used; None where it can be."""
    if not any(record) or not any(cell.strip() for cell in record):
        return BLANK
    if lines.first.startswith(CONFLICT) and _MARKER.match(lines.first):
        return MARKER
    if form.header is not None:
        if len(record) > len(form.header) and any(cell.strip() for cell in record[len(form.header) :]):
            return MORE
        if tuple(cell.strip() for cell in record) == form.header:
            return HEADER_AGAIN
    if len(record) <= max(form.text, form.label if form.label is not None and needs_label else -1):
        return FEWER
    if not record[form.text].strip():
        return EMPTY_TEXT
    if needs_label and form.label is not None and not record[form.label].strip():
        return EMPTY_LABEL
    return None


def _unclosed(path: Path, line: int, why: str) -> InputError:
    return InputError(
        f"{path} line {line}: {why}: put the quotes right there, or give --no-quoting where quotes are plain text"
    )
