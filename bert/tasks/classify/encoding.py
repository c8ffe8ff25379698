"""The encoding of a CSV, found out; bytes that are none of it, told from characters that are. Imports no torch."""

import codecs
import unicodedata
from pathlib import Path

from bert.corpus.decode import find_encoding
from bert.corpus.files import Source
from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.records import MOST_CHARACTERS
from common.errors import InputError, read_code

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
"""Names that stand in front in a zip of a spreadsheet."""
_OLD_SHEET = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def check_file(path: Path, wanted: str = "a CSV file") -> None:
    """Refuse what is no file of text by its kind.

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
            f"{path} is a pipe or a device, and the file is read several times: write it to a file first, then give "
            "that",
        )
    head = _head(path)
    if head.startswith(_OLD_SHEET) or (head.startswith(b"PK") and any(part in head for part in _SHEET_PARTS)):
        raise InputError("file-format", f"{path} is a spreadsheet, no CSV: save it as CSV, then give that")
    for begin, name in _PACKED.items():
        # A CSV may begin with a "BZh" of its own, not with the digit and the sign behind it.
        if head.startswith(begin) and (name != "bzip2" or head[4:10] == b"1AY&SY"):
            raise InputError(
                "file-format", f"{path} is compressed with {name}: unpack it first, then give the CSV in it"
            )


def encoding_of(path: Path, given: CsvForm) -> tuple[str, str]:
    """Return the encoding of a file and who says so.

    A byte order mark, else UTF-8 where all (or nearly all) bytes are that, else windows-1252 or latin-1 where that
    reads as Western text, else what charset-normalizer takes it for.

    Raises:
        InputError: it cannot be read, is empty, or is no text.
    """
    return (_given_encoding(path, given.encoding), "as given") if given.encoding else _find_encoding(path)


def damage_handler() -> str:
    """Return the name of the handler, for `errors` of an open file, that puts DAMAGE in place of invalid bytes."""
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
