"""How a CSV is written, found out: encoding, delimiter, header, and which columns hold text and label."""

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.data.corpus.decode import find_encoding
from bert.data.corpus.files import Source
from bert.data.csv.config import CsvForm
from common.errors import InputError, UsageError

DELIMITERS = (",", ";", "\t", "|")
DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}
MOST_CHARACTERS = 2**20
"""Characters of a line or of a field at most; a quote that is never closed is met here."""
_SAMPLE_CHARACTERS = 2**14
"""What the sniffer looks at: its patterns take quadratic time."""
_SAMPLE_BYTES = 2**16
_WESTERN = ["cp1252", "latin_1"]
_WESTERN_CHAOS = 0.5
"""Chaos up to which text is Western: accents and typographic signs in a row look odd, other alphabets exceed it."""
_MOST_ODD_NULS = 0.05
_MOST_NULS, _MOST_CONTROLS, _MOST_BAD_LINES = 0.05, 0.01, 0.01
"""Shares of NUL bytes, of control characters and of damaged lines up to which a file is UTF-8 that was damaged."""
_NO_TEXT = ("Cc", "Cn", "Co", "Cs")
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
_SEPARATOR = re.compile(r"\ufeff?\"?sep=([,;\t| ])\"?\r?(?:\n|$)", re.IGNORECASE)
CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
"""What git leaves at the beginning of lines where two versions could not be merged."""


@dataclass(frozen=True, slots=True)
class FoundForm:
    """How a CSV is read."""

    encoding: str
    """Python's name of the encoding."""
    encoding_from: str
    """Who says so, in words."""
    delimiter: str
    """What is between two fields."""
    delimiter_from: str
    """Who says so, in words."""
    quoting: bool
    """Whether fields may stand in quotes."""
    header: tuple[str, ...] | None
    """Names of the columns; None where the first row is data."""
    text: int
    """Number of the column with the texts, from 0."""
    label: int | None
    """Number of the column with the labels, from 0; None where there need be none and there is none."""

    def column(self, number: int) -> str:
        """Return a column in words."""
        name = self.header[number] if self.header is not None and number < len(self.header) else ""
        return name or f"number {number + 1}"


def find_form(path: Path, given: CsvForm, needs_label: bool = True) -> FoundForm:
    """Find out how a file is written; what is `given` holds.

    The encoding: a byte order mark, else UTF-8 where all (or nearly all) bytes are that, UTF-16 by its NUL bytes, else
    windows-1252 or latin-1 where that reads as Western text, else what charset-normalizer takes it for. The delimiter:
    csv.Sniffer's, where the first row then has the columns asked for, else another one with which it has them.

    Args:
        path: the file.
        given: what is known of it.
        needs_label: whether there has to be a column of labels.

    Raises:
        InputError: it cannot be read, is empty, is no text, or has not the columns.
    """
    encoding, encoding_from = (
        (_given_encoding(path, given.encoding), "as given") if given.encoding else (_find_encoding(path))
    )
    sample = _read_sample(path, encoding)
    named = names_delimiter(sample)
    if named is not None:
        sample = sample[sample.index("\n") + 1 :] if "\n" in sample else ""
    sniffed = given.separator or named or _sniff(sample)
    separators = [given.separator] if given.separator else [named] if named else [sniffed or ",", *DELIMITERS]
    by_number = given.text.isdecimal() and given.label.isdecimal()
    reasons = []
    for separator in dict.fromkeys(separators):
        first = first_record(path, sample, separator, given.quoting, given.header and by_number)
        try:
            text = _place(path, given.text, "text", first, given.header)
            label = _label_place(path, given.label, first, given.header, needs_label)
        except InputError as error:
            reasons.append(error)
            continue
        if text == label:
            raise UsageError(
                f"--text {given.text} and --label {given.label} are the same column of {path}: give two columns"
            )
        if given.separator or named:
            who = "as given" if given.separator else "the first line"
        else:
            who = "csv.Sniffer" if separator == sniffed else "by the first row"
        header = tuple(name.strip() for name in first) if given.header else None
        return FoundForm(encoding, encoding_from, separator, who, given.quoting, header, text, label)
    raise reasons[0]


def names_delimiter(text: str) -> str | None:
    """Return the delimiter that the first line names, as Excel reads and writes it: sep=; on a line of its own."""
    found = _SEPARATOR.match(text)
    return found[1] if found else None


def first_record(path: Path, sample: str, delimiter: str, quoting: bool, unnamed: bool) -> list[str]:
    """Return the first row that is neither blank nor a marker of git.

    Args:
        path: the file, for messages.
        sample: its beginning.
        delimiter: between two fields.
        quoting: whether fields may stand in quotes.
        unnamed: a row of nothing but delimiters names the columns too: all of them are without a name.

    Raises:
        InputError: there is none.
    """
    csv.field_size_limit(MOST_CHARACTERS)
    lines = io.StringIO(sample, newline="")
    try:
        for record in csv.reader(
            lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE, skipinitialspace=True
        ):
            if unnamed and len(record) > 1 and not any(field.strip() for field in record):
                return record
            if any(field.strip() for field in record) and not record[0].startswith(CONFLICT):
                return record
    except csv.Error as error:
        raise InputError(f"{path} does not begin as a CSV does ({error}): give another file") from error
    raise InputError(f"{path} holds no row: give a CSV with a header and rows below it")


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
        raise InputError(f"{path} is empty: give a CSV with a header and rows below it")
    if not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)):
        wide = _without_mark(head)
        if wide is not None:
            return wide, "by its NUL bytes"
    try:
        found = find_encoding(Source(path, path.name, ""))
    except InputError as error:
        if not _is_utf8_with_nuls(head):
            raise InputError(
                f"{path} is not a text file ({head.count(0):,} of its first {len(head):,} bytes are NUL): give "
                "a CSV, or its --encoding, such as utf-16-le or utf-16-be for UTF-16 without a byte order mark"
            ) from error
        return "utf-8-sig", "every byte but NULs"
    if found.codec in ("cp1252", "latin-1"):
        return ("utf-8-sig", "nearly every line") if _is_damaged_utf8(path) else _by_bytes(path, found.codec)
    if found.codec == "utf-8-sig":
        who = "a byte order mark" if head.startswith(codecs.BOM_UTF8) else "every byte"
        return "utf-8-sig", who if found.count_name is None else "nearly every byte"
    return found.codec, "a byte order mark"


def _without_mark(head: bytes) -> str | None:
    """Name UTF-16 without a byte order mark: ASCII in it has a NUL in every other byte, and all of it is letters."""
    half = len(head) // 2
    if half < 2:
        return None
    even, odd = head[: 2 * half : 2].count(0) / half, head[1 : 2 * half : 2].count(0) / half
    if odd > 0.5 and even < _MOST_ODD_NULS:
        return "utf-16-le"
    if even > 0.5 and odd < _MOST_ODD_NULS:
        return "utf-16-be"
    # Of other alphabets only delimiters, digits, and line ends have a NUL.
    return next((codec for codec in ("utf-16-le", "utf-16-be") if 0 in head and _reads_as(head, codec)), None)


def _reads_as(head: bytes, codec: str) -> bool:
    """Whether bytes are lines of assigned characters in an encoding."""
    try:
        text = codecs.getincrementaldecoder(codec)("strict").decode(head)
    except UnicodeDecodeError:
        return False
    odd = any(unicodedata.category(character) in _NO_TEXT for character in set(text) - set("\t\n\r"))
    return not odd and "\n" in text and any(delimiter in text for delimiter in DELIMITERS)


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
    with path.open("rb") as file:
        while line := file.readline(MOST_CHARACTERS):
            lines += 1
            if line.isascii():
                continue
            text = line.decode("utf-8", "replace")
            bad = text.count("\ufffd")
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
        raise InputError(f"cannot read {path}: {error.strerror}; give a CSV file") from error


def _read_sample(path: Path, encoding: str) -> str:
    """Return the beginning of the text, whole lines where it has several."""
    try:
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            sample = file.read(_SAMPLE_CHARACTERS)
            rest = file.readline(MOST_CHARACTERS)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a CSV file") from error
    except UnicodeError as error:
        raise InputError(f"{path} is not {encoding} ({error}): leave --encoding out, or give another one") from error
    if not sample.strip():
        raise InputError(f"{path} holds no row: give a CSV with a header and rows below it")
    return sample + rest


def _sniff(sample: str) -> str | None:
    try:
        return csv.Sniffer().sniff(sample[:_SAMPLE_CHARACTERS], "".join(DELIMITERS)).delimiter
    except csv.Error:
        return None


def _label_place(path: Path, wanted: str, first: Sequence[str], header: bool, needed: bool) -> int | None:
    try:
        return _place(path, wanted, "label", first, header)
    except InputError:
        if needed:
            raise
        return None


def _place(path: Path, wanted: str, option: str, first: Sequence[str], header: bool) -> int:
    """Return the number of a column, from 0. Raises InputError that names the columns there are."""
    names = [name.strip() for name in first] if header else []
    for same in (names, [name.casefold() for name in names]):
        word = wanted if same is names else wanted.casefold()
        if same.count(word) == 1:
            return same.index(word)
        if same.count(word) > 1:
            numbers = ", ".join(str(number + 1) for number, name in enumerate(same) if name == word)
            raise InputError(f"{path} has {same.count(word)} columns {wanted!r}: give a number, --{option} {numbers}")
    if wanted.isdecimal() and 1 <= int(wanted) <= len(first):
        return int(wanted) - 1
    shown = ", ".join(repr(name[:40]) if name else f"number {number + 1}" for number, name in enumerate(first[:12]))
    remedy = f"give --{option} NAME, or its number"
    if header:
        remedy += ", or --no-header where that is a row like the others"
    raise InputError(f"{path} has no column {wanted!r} for --{option}; its first row has {shown}: {remedy}")


def encoding_name(codec: str) -> str:
    """Return the name that people know an encoding by."""
    return _CODEC_NAMES.get(codec, codec)
