"""How a CSV is written, found out: encoding, delimiter, quotes, header, and which columns hold text and label."""

import io
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert.tasks.classify.columns import LEAST_FITTING, REMEDIES, Table, find_columns
from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.encoding import encoding_of
from bert.tasks.classify.records import (
    DELIMITERS,
    MOST_CHARACTERS,
    UNCLOSED,
    Dialect,
    Record,
    names_delimiter,
    read_records,
    unclosed,
)
from common.errors import Code, InputError, UsageError, read_code

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
    """How fields are told apart."""
    delimiter_from: str
    """Who says so, in words."""
    header: tuple[str, ...] | None
    """Names of the columns; None where the first row is data."""
    width: int
    """Columns: those of the header, else the most frequent number of fields in the first rows."""
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Number of the column with the labels, from 0; None where there need be none and there is none."""
    tried: tuple[str, ...] = field(default=(), compare=False)
    """What each delimiter makes of the first rows, in words; empty where the delimiter was given."""

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


@dataclass(frozen=True, slots=True)
class _Sample:
    """The beginning of the text."""

    text: str
    """Whole lines, where there are several."""
    whole: bool
    """Whether that is all of the file."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way of telling fields apart with which the file has the columns asked for."""

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
    """Find out how a file is written; what is `given` holds.

    The encoding: as bert.tasks.classify.encoding finds it. Delimiter and quotes: those with which the file has the
    columns asked for and, of several, most of the first rows have them and the labels repeat most.

    Args:
        path: the file.
        given: what is known of it.
        needs_label: whether there has to be a column of labels.

    Raises:
        InputError: it cannot be read, is empty, is no text, has not the columns, or no delimiter makes sense of it.
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
            "file-format", f"{path} has no delimiter that cuts most rows into the same columns", tried, tables, path
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
    """Return the refusal of a file that no delimiter makes sense of."""
    open_quotes = [table.unclosed for table in tables if table.unclosed is not None and table.dialect.quoting]
    if open_quotes:
        return unclosed(path, min(open_quotes), f"{what}, and {UNCLOSED}")
    return InputError(code, f"{what}; tried {'; '.join(tried)}: give {REMEDIES}")


def _dialects(given: CsvForm, named: str | None, text: str) -> list[Dialect]:
    """Return the ways of telling fields apart that come into question."""
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
    """Whether a single quote opens a field of a line and another one ends a field behind that."""
    opens = 0 if line.startswith("'") else line.find(delimiter + "'")
    closes = len(line) - 1 if line.endswith("'") else line.rfind("'" + delimiter)
    return 0 <= opens < closes - 1


def _table(path: Path, given: CsvForm, dialect: Dialect, sample: _Sample) -> Table:
    """Cut the sample into rows. Raises InputError where there is none."""
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
        raise InputError("file-empty", f"{path} holds no row: give a CSV with a header and rows below it")
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
        raise InputError("file-empty", f"{path} holds no row: give a CSV with a header and rows below it")
    return _Sample(sample + rest, whole)
