"""Iterate over the rows of a CSV: usable rows with text and label, and unusable rows with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert.tasks.classify.form import FoundForm
from bert.tasks.classify.records import DAMAGE, MOST_LINES, Record, damage_handler, read_records, unclosed
from common.errors import InputError, read_code

# Reasons why a row is unusable.
EMPTY_TEXT, EMPTY_LABEL = "empty text", "empty label"
FEWER, MORE = "too few fields", "more fields than columns"
BLANK, MARKER, HEADER_AGAIN = "blank line", "merge-conflict line", "header again"
NO_PIECES = "text without a word piece"
BROKEN = "text behind a closing quote, over several lines"

# Oddities of rows that are used.
INVALID, FORMULA = "bytes that are none of the encoding, read as U+FFFD", "cells like formulas, read as text"
SHORTER, EMPTY_SURPLUS = "fields missing at the end", "empty fields behind the last column"
NAMELESS = "text in columns without a name, not read"
SPACED_QUOTE = "quotes behind a space, read as text"
SEVERAL_LINES, MANY_LINES = "line ends within a field", "fields of very many lines"
BEHIND_QUOTE = "text behind a closing quote, both read without the quotes"
LITERAL_QUOTE = "quote that stands alone, read as text"
NULS = "NUL characters, taken out"
_FORMULA = ("=", "@", "+", "-")
_REPLACEMENT = "\ufffd"


def _place(line: int, lines: int) -> str:
    return f"line {line}" if lines == 1 else f"lines {line} to {line + lines - 1}"


@dataclass(frozen=True, slots=True)
class TextRow:
    """A usable row."""

    line: int
    """Where it begins, from 1."""
    text: str
    """As it is in the file."""
    label: str | None
    """Without whitespace around it; None where labels are not read, empty if that is wanted and there is none."""
    odd: tuple[str, ...] = ()
    lines: int = 1
    """Lines of the file that it takes."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return _place(self.line, self.lines)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An unusable row."""

    line: int
    """Where it begins, from 1."""
    reason: str
    lines: int = 1
    """Lines of the file that it takes."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return _place(self.line, self.lines)


def read_rows(path: Path, form: FoundForm, needs_label: bool = True) -> Iterator[TextRow | LeftOut]:
    """Yield the rows of a file below its header, in order; memory does not depend on its size.

    Args:
        path: the file.
        form: how it is written.
        needs_label: whether a row without a label cannot be used.

    Raises:
        InputError: it cannot be read, or a quote is never closed; the message has the line.
    """
    seen_header = form.header is None
    least, named = form.least(needs_label), form.least()
    try:
        with path.open(encoding=form.encoding, errors=damage_handler(), newline="") as file:
            for record in read_records(path, file, form.dialect, form.width):
                if not record.closed:
                    raise unclosed(path, record.line)
                found = _read(record, form, needs_label, least, named)
                if not seen_header and _is_header(record, found, form):
                    seen_header = True
                    continue
                yield found
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror}; give a CSV file") from error
    except UnicodeError as error:
        raise InputError(
            "file-encoding", f"{path} is not {form.encoding} ({error}): give another --encoding"
        ) from error


def _is_header(record: Record, found: TextRow | LeftOut, form: FoundForm) -> bool:
    """Whether the first row is the header: neither blank nor a marker, unless all columns are without a name."""
    if isinstance(found, LeftOut) and found.reason in (BLANK, MARKER):
        nameless = not any(form.header or ("",)) and len(record.fields) == len(form.header or ())
        return found.reason == BLANK and nameless
    return True


def _read(record: Record, form: FoundForm, needs_label: bool, least: int, named: int) -> TextRow | LeftOut:
    """Return what becomes of a record; `least` fields it needs, those from `named` on are of columns without a name."""
    fields = record.fields
    damaged = {place for place, cell in enumerate(fields) if DAMAGE in cell}
    if damaged:
        fields = [cell.replace(DAMAGE, _REPLACEMENT) for cell in fields]
    reason = _why_not(record, fields, form, needs_label, least)
    if reason is not None:
        return LeftOut(record.line, reason, record.lines)
    text, label = fields[form.text], None
    if form.label is not None:
        label = fields[form.label].strip() if form.label < len(fields) else ""
    odd = [INVALID] if damaged & {form.text, form.label} else []
    if "\0" in text or "\0" in (label or ""):
        text, label = text.replace("\0", ""), label and label.replace("\0", "").strip()
        odd.append(NULS)
        if not text.strip() or (label == "" and needs_label):
            return LeftOut(record.line, EMPTY_LABEL if text.strip() else EMPTY_TEXT, record.lines)
    odd += _odd_fields(fields, text, label or "", form, named)
    if record.broken or record.literal:
        odd.append(LITERAL_QUOTE if record.literal else BEHIND_QUOTE)
    if record.lines > 1:
        odd.append(MANY_LINES if record.lines > MOST_LINES else SEVERAL_LINES)
    return TextRow(record.line, text, label, tuple(odd), record.lines)


def _odd_fields(fields: list[str], text: str, label: str, form: FoundForm, named: int) -> list[str]:
    """Return the oddities of the fields of a usable row."""
    odd = []
    if text.startswith(_FORMULA) or label.startswith(_FORMULA):
        odd.append(FORMULA)
    quote = form.dialect.quote_char
    if form.dialect.quoting and any(cell[:1] == " " and cell.lstrip(" ")[:1] == quote for cell in fields):
        odd.append(SPACED_QUOTE)
    if len(fields) < form.width:
        odd.append(SHORTER)
    elif len(fields) > form.width:
        odd.append(EMPTY_SURPLUS)
    if any(cell.strip() for cell in fields[named : form.width]):
        odd.append(NAMELESS)
    return odd


def _is_same(fields: list[str], header: tuple[str, ...]) -> bool:
    """Whether fields are the names of the columns, in whatever letter case."""
    return len(fields) == len(header) and all(
        cell.strip().casefold() == name.casefold() for cell, name in zip(fields, header, strict=True)
    )


def _why_not(record: Record, fields: list[str], form: FoundForm, needs_label: bool, least: int) -> str | None:
    """Why a row cannot be used; None if it can be."""
    if record.is_blank:
        return BLANK
    if record.is_marker(least):
        return MARKER
    if record.broken and record.lines > 1:
        return BROKEN
    if len(fields) > form.width and any(cell.strip() for cell in fields[form.width :]):
        return MORE
    if form.header is not None and _is_same(fields, form.header):
        return HEADER_AGAIN
    if len(fields) < least:
        return FEWER
    if not fields[form.text].strip():
        return EMPTY_TEXT
    if needs_label and form.label is not None and not fields[form.label].strip():
        return EMPTY_LABEL
    return None
