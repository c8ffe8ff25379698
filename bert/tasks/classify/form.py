"""Detect how a CSV is written: encoding, delimiter, quotes, header, and the columns of text and label."""

import io
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.records import (
    DELIMITERS,
    MOST_CHARACTERS,
    UNCLOSED,
    Dialect,
    Record,
    encoding_of,
    names_delimiter,
    read_records,
    unclosed,
)
from common.errors import Code, InputError, UsageError, read_code

DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}
LEAST_FITTING = 0.5
"""Share of the sampled rows that must have the same columns for a delimiter that nobody named."""
REMEDIES = (
    '--delimiter; --quote-char for quotes other than "; --no-quoting if quotes are plain text; --skip-initial-space '
    "if a space separates delimiter and quote"
)
"""What to give where a delimiter makes no sense, in words."""
_TEXT_NAMES = [
    "text", "sentence", "review", "message", "comment", "content", "body", "tweet", "question", "description",
]  # fmt: skip
_LABEL_NAMES = [
    "label", "class", "category", "sentiment", "intent", "target", "topic", "tag", "type", "emotion", "polarity",
]  # fmt: skip
_LEAST_ROWS = 4
"""Rows below which a column is proposed for its name alone."""
_MOST_LISTED = 500
_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Table:
    """The beginning of a file as split by one dialect."""

    dialect: Dialect
    first: tuple[str, ...]
    """The first row that is neither blank nor a marker of git, without whitespace around the fields."""
    header: bool
    """Whether that names the columns."""
    rows: tuple[tuple[str, ...], ...]
    """Rows of data, neither blank nor markers of git; the first one too where it is not a header."""
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
        remedies.append(f"give --{option} NAME, or its number, or --no-header if the first row is data")
    else:
        remedies.append(f"give --{option} a number up to {table.width}")
    others = [one for one in DELIMITERS if one != given.separator and any(one in name for name in table.first)]
    if given.separator and others:
        remedies.insert(
            0,
            f"leave out --delimiter {delimiter_name(given.separator)}: the first row has "
            f"{', '.join(map(delimiter_name, others))}",
        )
    quote = table.dialect.quote_char
    if any(name.startswith(quote) for name in table.first) and not table.dialect.skip_initial_space:
        remedies.append("give --skip-initial-space if a space separates delimiter and quote")
    raise InputError(
        "columns-missing",
        f"{path} has {' and '.join(missing)}; its first row has {', '.join(names[:_MOST_LISTED])}{more}: "
        f"{'; '.join(remedies)}",
    )


def _place(path: Path, wanted: str, option: str, table: Table, required: bool) -> int | None:
    """Return the number of a column, from 0; None if there is none."""
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
    return [f"the file looks like {shlex.join(said)}"]


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


_SAMPLE_CHARACTERS = 2**16
"""What delimiters, quotes and columns are judged by: the rows in so many characters at the beginning."""
_LEAST_QUOTED = 0.5
"""Share of the lines with a field in single quotes from which on those are quotes, and no apostrophes."""


@dataclass(frozen=True, slots=True)
class FoundForm:
    """How a CSV is read."""

    encoding: str
    """Python's name of the encoding."""
    encoding_from: str
    """Who says so, in words."""
    dialect: Dialect
    """How fields are separated."""
    delimiter_from: str
    """Who says so, in words."""
    header: tuple[str, ...] | None
    """Names of the columns; None if the first row is data."""
    width: int
    """Columns: those of the header, else the most frequent number of fields in the first rows."""
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Number of the column with the labels, from 0; None if there need be none and there is none."""
    tried: tuple[str, ...] = field(default=(), compare=False)
    """What each delimiter makes of the first rows, in words; empty if the delimiter was given."""

    def column(self, number: int) -> str:
        """Return a column in words."""
        name = self.header[number] if self.header is not None and number < len(self.header) else ""
        return name or f"number {number + 1}"

    def least(self, needs_label: bool = True) -> int:
        """Return the fields that a row has at least: up to the last column that has a name or is read.

        Args:
            needs_label: whether a row without a label cannot be used.
        """
        names = self.header or ("unnamed",) * self.width
        needed = {self.text, *(number for number, name in enumerate(names) if name)}
        if self.label is not None:
            needed = needed | {self.label} if needs_label else needed - {self.label}
        return 1 + max(needed)


class _Sample(NamedTuple):
    """The beginning of the text."""

    text: str
    """Whole lines, where there are several."""
    whole: bool
    """Whether that is all of the file."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A dialect with which the file has the requested columns."""

    form: FoundForm
    by_name: bool
    """Whether the header has a name that was asked for."""
    rows: int
    fitting: int
    """Those of them that have neither too few nor too many fields."""
    labels: int
    divided: int
    """Those whose label has another delimiter in it, as a piece that was cut in the wrong places has."""

    @property
    def is_likely(self) -> bool:
        """Whether it holds for most rows, or the header says so."""
        return self.by_name or self.fitting >= LEAST_FITTING * self.rows

    @property
    def worth(self) -> tuple[bool, bool, bool, float, float, int, bool, int]:
        """What it is better by: likely, with labels, with columns; then by how many rows fit and how few labels these
        have.
        """
        rows, dialect = max(1, self.rows), self.form.dialect
        repeated = (self.fitting - self.labels) / rows
        order = -DELIMITERS.index(dialect.delimiter) if dialect.delimiter in DELIMITERS else 0
        kind = self.is_likely, self.form.label is not None, self.form.width > 1
        return *kind, repeated, self.fitting / rows, -self.divided, dialect.quote_char == "'", order


def find_form(path: Path, given: CsvForm, needs_label: bool = True) -> FoundForm:
    """Detect how a file is written; what is `given` takes precedence.

    The encoding: as bert.tasks.classify.records finds it. Delimiter and quotes: those with which the file has the
    columns asked for and, of several, most of the first rows have them and the labels repeat most.

    Args:
        path: the file.
        given: what is known of it.
        needs_label: whether there must be a column of labels.

    Raises:
        InputError: it cannot be read, is empty, is not text, has not the columns, or no delimiter makes sense of it.
    """
    encoding, encoding_from = encoding_of(path, given)
    sample = _read_sample(path, encoding)
    named = given.separator or names_delimiter(sample.text)
    tables: list[Table] = []
    candidates: list[_Candidate] = []
    reasons: list[tuple[bool, int, int, InputError]] = []
    for dialect in _dialects(given, named, sample.text):
        table = None
        try:
            table = _table(path, given, dialect, sample)
            tables.append(table)
            text, label = find_columns(path, given, table, needs_label)
        except InputError as error:
            rank = (table.is_even, table.mode[1]) if table else (False, 0)
            reasons.append((*rank, -len(reasons), error))
            continue
        if text == label:
            raise UsageError(
                "option-conflict",
                f"--text {given.text} and --label {given.label} are the same column of {path}: give two columns",
            )
        who = ("as given" if given.separator else "the first line") if named else ""
        header = table.first if table.header else None
        form = FoundForm(encoding, encoding_from, dialect, who, header, table.width, text, label)
        candidates.append(_judged(given, form, table, needs_label))
    tried = tuple(table.described for table in tables)
    if candidates:
        best = max(candidates, key=lambda candidate: candidate.worth)
        if named:
            return best.form
        if best.is_likely:
            return _told(best, tried)
        raise _no_sense(
            "file-format", f"{path} has no delimiter that splits most rows into the same columns", tried, tables, path
        )
    even, _, _, reason = max(reasons, key=lambda found: found[:3])
    if named or even or not tables:
        raise reason
    raise _no_sense(reason.code, str(reason), tried, tables, path) from reason


def _told(best: _Candidate, tried: tuple[str, ...]) -> FoundForm:
    """Return a form that was found out, with the words that say by what."""
    said = f"{best.fitting:,} of the first {best.rows:,} rows fit"
    return replace(best.form, delimiter_from=said, tried=tried)


def _no_sense(code: Code, what: str, tried: tuple[str, ...], tables: list[Table], path: Path) -> InputError:
    """Return the error for a file that no delimiter fits."""
    open_quotes = [table.unclosed for table in tables if table.unclosed is not None and table.dialect.quoting]
    if open_quotes:
        return unclosed(path, min(open_quotes), f"{what}, and {UNCLOSED}")
    return InputError(code, f"{what}; tried {'; '.join(tried)}: give {REMEDIES}")


def _dialects(given: CsvForm, named: str | None, text: str) -> list[Dialect]:
    """Return the candidate dialects."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    for delimiter in [named] if named else [one for one in DELIMITERS if one != given.quote_char]:
        quotes = [given.quote_char or '"']
        if given.quoting and given.quote_char is None and delimiter != "'":
            quoted = sum(_has_quoted_field(line, delimiter) for line in lines)
            quotes += ["'"] if quoted >= _LEAST_QUOTED * len(lines) else []
        skips = given.skip_initial_space and delimiter != " "
        found += [Dialect(delimiter, given.quoting, quote, skips) for quote in quotes]
    return found


def _has_quoted_field(line: str, delimiter: str) -> bool:
    """Whether a single quote opens a field of a line and another one ends a field after that."""
    opens = 0 if line.startswith("'") else line.find(delimiter + "'")
    closes = len(line) - 1 if line.endswith("'") else line.rfind("'" + delimiter)
    return 0 <= opens < closes - 1


def _table(path: Path, given: CsvForm, dialect: Dialect, sample: _Sample) -> Table:
    """Cut the sample into rows. Raises InputError if there is none."""
    by_number = given.text.isdecimal() and given.label.isdecimal()
    first: tuple[str, ...] | None = None
    rows: list[tuple[str, ...]] = []
    open_line = None
    for record in _records(path, dialect, sample):
        fields = tuple(cell.strip() for cell in record.fields)
        is_nameless_header = first is None and given.header and by_number and len(fields) > 1
        if record.is_marker(least=2) or (record.is_blank and not is_nameless_header):
            continue
        if sample.whole and not record.closed:
            open_line = record.line
            if first is not None:
                break
        if first is None:
            first = fields
            if given.header:
                continue
        rows.append(fields)
    if first is None:
        raise InputError("file-empty", f"{path} holds no rows: give a CSV with a header and rows below it")
    return Table(dialect, first, given.header, tuple(rows), open_line)


def _records(path: Path, dialect: Dialect, sample: _Sample) -> list[Record]:
    """Return the records of the sample up to one that is too long, and without one that its end may cut."""
    found: list[Record] = []
    try:
        found.extend(read_records(path, io.StringIO(sample.text, newline=""), dialect))
    except InputError:
        if not found:
            raise
        return found
    return found if sample.whole or len(found) < 2 else found[:-1]


def _judged(given: CsvForm, form: FoundForm, table: Table, needs_label: bool) -> _Candidate:
    names = {name.casefold() for name in form.header or ()}
    by_name = len(names) > 1 and (given.text.casefold() in names or given.label.casefold() in names)
    fitting = [row for row in table.rows if len(row) >= form.least(needs_label) and not any(row[form.width :])]
    labels = [row[form.label] for row in fitting if form.label is not None and form.label < len(row)]
    others = [delimiter for delimiter in DELIMITERS if delimiter != form.dialect.delimiter]
    divided = sum(any(delimiter in label for delimiter in others) for label in labels)
    return _Candidate(form, by_name, len(table.rows), len(fitting), len(set(labels)), divided)


def _read_sample(path: Path, encoding: str) -> _Sample:
    """Return the beginning of the text, whole lines where it has several."""
    try:
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            sample = file.read(_SAMPLE_CHARACTERS)
            rest = file.readline(MOST_CHARACTERS)
            whole = not file.read(1)
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror}; give a CSV file") from error
    except UnicodeError as error:
        raise InputError(
            "file-encoding", f"{path} is not {encoding} ({error}): leave --encoding out, or give another one"
        ) from error
    if not sample.strip():
        raise InputError("file-empty", f"{path} holds no rows: give a CSV with a header and rows below it")
    return _Sample(sample + rest, whole)
