"""Detect the encoding of a CSV and read its records with their lines. Imports no torch."""

import codecs
import csv
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from bert.corpus.files import Source, find_encoding
from bert.tasks.classify.config import CsvForm
from common.errors import InputError, read_code

DELIMITERS = (",", ";", "\t", "|")
"""Those that are found out."""
MOST_CHARACTERS = 2**20
"""Characters of a line or of a field at most; a quote that is never closed is met here."""
MOST_LINES = 40
"""Usual lines of a row; more may be caused by unpaired quotes."""
CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})(\s|$)|={7}\s*$")
"""What git leaves at the beginning of lines where two versions could not be merged: seven characters, exactly."""
_SHORT_CONFLICT = re.compile(r"(<{6}|>{6}|\|{6})(\s|$)|={6}\s*$")
UNCLOSED = "a quoted field is not closed before the end of the file"
"""Why a quote is refused."""
_SEPARATOR = re.compile(r"\ufeff?\"?sep=([,;\t| ])\"?\r?(?:\n|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How fields are separated, as the csv module takes it."""

    delimiter: str
    quoting: bool = True
    """Whether fields may be quoted."""
    quote_char: str = '"'
    skip_initial_space: bool = False
    """Whether spaces after a delimiter are no part of the field: a quote after them opens it."""


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
    """Whether there is text after a quote that closes a field, which no writer of CSV makes."""
    literal: bool = False
    """Whether a quote that opens a field was taken for text: it held other rows."""

    @property
    def is_blank(self) -> bool:
        """Whether nothing but whitespace is in it."""
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
                f"{self.path} line {self.number} is longer than {MOST_CHARACTERS:,} characters: it is not a CSV of "
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
        """Line whose quote closed a field that a line before opened, with text after it."""

    def next(self) -> Record | None:
        """Return the next record; None at the end. Raises InputError if a field is too long."""
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
        # A whole record needs no line after its own.
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
        """Take the lines after a broken record that may be its end: with half of a pair of quotes, or too short."""
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

    Text after a quote that closes a field is always wrong: an earlier quote is unpaired or was not doubled.
    Where such a record takes several lines, and each of them alone has `width` fields, they are rows, and the quote
    that opened is text. Else they are one broken record, with what may be its end.

    Args:
        path: the file, for messages.
        file: it, opened with newline="".
        dialect: how fields are separated.
        width: columns; None if they are unknown: then no broken record is divided.

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
    """Return the error for a record that does not end."""
    return InputError(
        "file-damaged",
        f"{path} line {line}: {why}: correct the quotes there, or give --no-quoting if quotes are plain text",
    )


DAMAGE = "\udcff"
"""What stands for bytes that are none of the encoding: no valid file has it, whereas U+FFFD may be in the text."""
_SAMPLE_BYTES = 2**16
_WESTERN = ["cp1252", "latin_1"]
_WESTERN_CHAOS = 0.5
"""Chaos up to which text is Western: accents and typographic signs in a row look odd, other alphabets exceed it."""
_MOST_NULS, _MOST_CONTROLS, _MOST_BAD_LINES = 0.05, 0.01, 0.01
"""Shares of NUL bytes, of control characters and of damaged lines up to which a file is UTF-8 that was damaged."""
_BLANKS = dict.fromkeys((9, 10, 12, 13))
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig", "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16-be"),
)
"""Byte order marks, the encodings that take them off, and those that leave them as a character."""
_CODEC_NAMES = {"utf-8-sig": "utf-8"}
_PACKED = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "Zstandard",
    b"7z\xbc\xaf\x27\x1c": "7z", b"PK\x03\x04": "zip",
}  # fmt: skip
"""First bytes of compressed files."""
_SHEET_PARTS = (b"[Content_Types].xml", b"mimetypeapplication/vnd.oasis", b"_rels/.rels")
"""Names of the first files in the ZIP archive of a spreadsheet."""
_OLD_SHEET = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def check_file(path: Path, wanted: str = "a CSV file") -> None:
    """Refuse a path that is not a text file.

    Raises:
        InputError: there is none, or it is a folder, a pipe, compressed, or a spreadsheet.
    """
    if not path.is_file():
        if not path.exists():
            raise InputError("path-missing", f"{path} does not exist: give {wanted}")
        if path.is_dir():
            raise InputError("path-kind", f"{path} is a folder: give {wanted}")
        raise InputError(
            "path-kind",
            f"{path} is a pipe or a device, but bertbench reads the file several times: save it to a file first, then "
            "give that",
        )
    head = _head(path)
    if head.startswith(_OLD_SHEET) or (head.startswith(b"PK") and any(part in head for part in _SHEET_PARTS)):
        raise InputError("file-format", f"{path} is a spreadsheet, not a CSV: save it as CSV, then give that")
    for begin, name in _PACKED.items():
        # A CSV may begin with a "BZh" of its own, not with the digit and the sign after it.
        if head.startswith(begin) and (name != "bzip2" or head[4:10] == b"1AY&SY"):
            raise InputError("file-format", f"{path} is compressed with {name}: unpack it first, then give the CSV")


def encoding_of(path: Path, given: CsvForm) -> tuple[str, str]:
    """Return the encoding of a file and who says so.

    A byte order mark, else UTF-8 where all (or nearly all) bytes are that, else windows-1252 or latin-1 where that
    reads as Western text, else what charset-normalizer takes it for.

    Raises:
        InputError: it cannot be read, is empty, or is not text.
    """
    return (_given_encoding(path, given.encoding), "as given") if given.encoding else _find_encoding(path)


def damage_handler() -> str:
    """Return the name of the handler, for `errors` of an open file, that puts DAMAGE instead of invalid bytes."""
    codecs.register_error("bertbench-damage", _damage)
    return "bertbench-damage"


def encoding_name(codec: str) -> str:
    """Return the name that people know an encoding by."""
    return _CODEC_NAMES.get(codec, codec)


def _damage(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return DAMAGE, error.end


def _given_encoding(path: Path, given: str) -> str:
    """Return the encoding that was given, in the form that takes a byte order mark off where the file has one."""
    head = _head(path)
    for mark, codec, plain in _MARKS:
        if head.startswith(mark) and codecs.lookup(given).name == plain:
            return codec
    return given


def _find_encoding(path: Path) -> tuple[str, str]:
    """Return the encoding of a file and who says so."""
    head = _head(path)
    if not head:
        raise InputError("file-empty", f"{path} is empty: give a CSV with a header and rows below it")
    try:
        found = find_encoding(Source(path, path.name, ""))
    except InputError as error:
        if not _is_utf8_with_nuls(head):
            raise InputError(
                "file-encoding",
                f"{path} is not a text file ({head.count(0):,} of its first {len(head):,} bytes are NUL): give "
                "a CSV, or its --encoding, such as utf-16-le or utf-16-be for UTF-16 without a byte order mark",
            ) from error
        return "utf-8-sig", "every byte but NULs"
    if found.codec in ("cp1252", "latin-1"):
        return ("utf-8-sig", "nearly every line") if _is_damaged_utf8(path) else _by_bytes(path, found.codec)
    if found.codec == "utf-8-sig":
        who = "a byte order mark" if head.startswith(codecs.BOM_UTF8) else "every byte"
        return "utf-8-sig", who if found.count_name is None else "nearly every byte"
    return found.codec, "a byte order mark"


def _is_utf8_with_nuls(head: bytes) -> bool:
    """Whether bytes are UTF-8 but for some NULs among them."""
    try:
        text = codecs.getincrementaldecoder("utf-8")("strict").decode(head.replace(b"\0", b""))
    except UnicodeDecodeError:
        return False
    controls = sum(unicodedata.category(character) == "Cc" for character in text.translate(_BLANKS))
    return head.count(0) < _MOST_NULS * len(head) and controls <= _MOST_CONTROLS * len(text)


def _is_damaged_utf8(path: Path) -> bool:
    """Whether nearly all lines are UTF-8, and what is not ASCII in them is more often valid than not."""
    lines = bad_lines = valid = invalid = 0
    damage = damage_handler()
    with path.open("rb") as file:
        while line := file.readline(MOST_CHARACTERS):
            lines += 1
            if line.isascii():
                continue
            text = line.decode("utf-8", damage)
            bad = text.count(DAMAGE)
            bad_lines += bad > 0
            invalid += bad
            valid += sum(character > "\x7f" for character in text) - bad
    return valid >= invalid and bad_lines < _MOST_BAD_LINES * lines


def _by_bytes(path: Path, western: str) -> tuple[str, str]:
    """Tell Western encodings, which `western` is one of, from all others, by the lines that are not ASCII."""
    from charset_normalizer import from_bytes

    sample = bytearray()
    with path.open("rb") as file:
        while (line := file.readline(MOST_CHARACTERS)) and len(sample) < _SAMPLE_BYTES:
            if not line.isascii():
                sample += line
    content = bytes(sample[:_SAMPLE_BYTES])
    if from_bytes(content, cp_isolation=_WESTERN, threshold=_WESTERN_CHAOS).best() is not None:
        return western, "charset-normalizer"
    best = from_bytes(content).best()
    return (best.encoding, "charset-normalizer") if best is not None else (western, "no other fits")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SAMPLE_BYTES)
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror}; give a CSV file") from error
