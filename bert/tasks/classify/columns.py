"""Which columns of a CSV hold text and label: found by name or number, or proposed. Imports no torch."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.records import DELIMITERS, Dialect
from common.errors import InputError

DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}
LEAST_FITTING = 0.5
"""Share of the sampled rows that have to have the same columns for a delimiter that nobody named."""
REMEDIES = (
    '--delimiter; --quote-char for other quotes than "; --no-quoting where quotes are plain text; --skip-initial-space '
    "where a space stands between delimiter and quote"
)
"""What to give where a delimiter makes no sense, in words."""
_TEXT_NAMES = (
    "text",
    "sentence",
    "review",
    "message",
    "comment",
    "content",
    "body",
    "tweet",
    "question",
    "description",
)
_LABEL_NAMES = (
    "label", "class", "category", "sentiment", "intent", "target", "topic", "tag", "type", "emotion", "polarity",
)  # fmt: skip
_LEAST_ROWS = 4
"""Rows below which a column is proposed for its name alone."""
_MOST_LISTED = 500
_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Table:
    """The beginning of a file as one way of telling fields apart cuts it."""

    dialect: Dialect
    first: tuple[str, ...]
    """The first row that is neither blank nor a marker of git, without white space around the fields."""
    header: bool
    """Whether that names the columns."""
    rows: tuple[tuple[str, ...], ...]
    """Rows of data, neither blank nor markers of git; the first one too where it is no header."""
    unclosed: int | None = None
    """Line of a quote that is not closed before the end of the file."""

    @property
    def width(self) -> int:
        """Columns: those of the header, else the most frequent number of fields of a row."""
        return len(self.first) if self.header else self.mode[0]

    @property
    def mode(self) -> tuple[int, int]:
        """The most frequent number of fields, and the rows that have it; of several the first met."""
        counts = Counter(map(len, self.rows or (self.first,)))
        return counts.most_common(1)[0]

    @property
    def is_even(self) -> bool:
        """Whether most rows have the same number of columns, two or more."""
        width, rows = self.mode
        return width > 1 and rows >= LEAST_FITTING * len(self.rows)

    @property
    def described(self) -> str:
        """What it makes of the rows, in words."""
        width, rows = self.mode
        quote = f" with quotes {self.dialect.quote_char}" * (self.dialect.quote_char != '"')
        share = 100 * rows / max(1, len(self.rows))
        return (
            f"{delimiter_name(self.dialect.delimiter)}{quote}: {width} column{'s' * (width != 1)} in {share:.0f} % of "
            f"{len(self.rows):,} row{'s' * (len(self.rows) != 1)}"
        )


def delimiter_name(delimiter: str) -> str:
    """Return a delimiter in words."""
    return DELIMITER_NAMES.get(delimiter, repr(delimiter))


def find_columns(path: Path, given: CsvForm, table: Table, needs_label: bool) -> tuple[int, int | None]:
    """Return the numbers of the columns with text and label, from 0; None for a label that there is not, nor need be.

    Raises:
        InputError: there is no such column, or several; the message names all columns and those that look right.
    """
    text = _place(path, given.text, "text", table, required=True)
    label = _place(path, given.label, "label", table, required=needs_label)
    if text is not None and (label is not None or not needs_label):
        return text, label
    missing = [] if text is not None else [f"no column {given.text!r} for --text"]
    if label is None and needs_label:
        missing.append(f"no column {given.label!r} for --label")
    names = [repr(name[:_MOST_SHOWN]) if name else f"number {place + 1}" for place, name in enumerate(table.first)]
    more = f" and {len(names) - _MOST_LISTED:,} more" if len(names) > _MOST_LISTED else ""
    option = "text" if text is None else "label"
    remedies = _proposals(table, text, label, needs_label)
    if table.header:
        remedies.append(f"give --{option} NAME, or its number, or --no-header where that is a row like the others")
    else:
        remedies.append(f"give --{option} a number up to {table.width}")
    others = [one for one in DELIMITERS if one != given.separator and any(one in name for name in table.first)]
    if given.separator and others:
        remedies.insert(
            0,
            f"leave out --delimiter, which was given as {delimiter_name(given.separator)}: the first row has "
            f"{', '.join(map(delimiter_name, others))}",
        )
    quote = table.dialect.quote_char
    if any(name.startswith(quote) for name in table.first) and not table.dialect.skip_initial_space:
        remedies.append("give --skip-initial-space where a space stands between delimiter and quote")
    raise InputError(
        "columns-missing",
        f"{path} has {' and '.join(missing)}; its first row has {', '.join(names[:_MOST_LISTED])}{more}: "
        f"{'; '.join(remedies)}",
    )


def _place(path: Path, wanted: str, option: str, table: Table, required: bool) -> int | None:
    """Return the number of a column, from 0; None where there is none."""
    names = list(table.first) if table.header else []
    for same in (names, [name.casefold() for name in names]):
        word = wanted if same is names else wanted.casefold()
        if same.count(word) == 1:
            return same.index(word)
        if same.count(word) > 1 and required:
            numbers = ", ".join(str(number + 1) for number, name in enumerate(same) if name == word)
            raise InputError(
                "data-ambiguous",
                f"{path} has {same.count(word)} columns {wanted!r}: give a number, --{option} {numbers}",
            )
    if wanted.isdecimal() and 1 <= int(wanted) <= table.width:
        return int(wanted) - 1
    return None


def _proposals(table: Table, text: int | None, label: int | None, needs_label: bool) -> list[str]:
    """Return which columns look right, in words; none where nothing speaks for one.

    The text is the column of the most words; the label one with a name like that, else that of the fewest values, each
    of two rows or more on average.
    """
    columns = list(zip(*(row for row in table.rows if len(row) == table.width), strict=True))
    if not columns or table.width < 2:
        return []
    words = [sum(len(cell.split()) for cell in column) / len(column) for column in columns]
    found_text = text if text is not None else _text_column(table, words, label)
    found_label = label if label is not None else _label_column(table, columns, found_text)
    if found_text is None or (found_label is None and needs_label):
        return []
    # Where the first row has one of the labels itself, it is a row like the others.
    data = found_label is not None and table.header and table.first[found_label] in map(str.strip, columns[found_label])
    said = ["--no-header"] if data else []
    said += ["--text", _column_name(table, found_text, data)]
    if found_label is not None and needs_label:
        said += ["--label", _column_name(table, found_label, data)]
    return [f"it looks like {shlex.join(said)}"]


def _text_column(table: Table, words: Sequence[float], label: int | None) -> int | None:
    others = [place for place in range(table.width) if place != label]
    best = max(others, key=lambda place: (words[place], _is_named(table, place, _TEXT_NAMES)))
    return best if words[best] > 1 or _is_named(table, best, _TEXT_NAMES) else None


def _label_column(table: Table, columns: Sequence[Sequence[str]], text: int | None) -> int | None:
    found = []
    for place, column in enumerate(columns):
        values, few = len(set(column)), len(column) < _LEAST_ROWS
        named = _is_named(table, place, _LABEL_NAMES) and (few or values < len(column))
        if place != text and values > 1 and (named or (not few and 2 * values <= len(column))):
            found.append((not named, values, place))
    return min(found)[-1] if found else None


def _is_named(table: Table, place: int, names: Sequence[str]) -> bool:
    return table.header and any(name in table.first[place].casefold() for name in names)


def _column_name(table: Table, place: int, data: bool) -> str:
    name = table.first[place] if table.header and not data else ""
    is_own = table.header and sum(name.casefold() == other.casefold() for other in table.first) == 1
    return name if name and is_own and not name.isdecimal() and len(name) <= _MOST_SHOWN else str(place + 1)
