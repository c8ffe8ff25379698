"""Text files of any origin as blocks of text: the encoding is found out, line ends made alike, controls taken out."""

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bert.corpus.files import Source
from common.errors import InputError, read_code

BLOCK_BYTES = 2**20
"""Bytes read and decoded at once."""
MOST_NUL_SHARE = 0.01
"""A file with a larger share of NUL bytes is not text."""
MOST_CONTROL_SHARE = 0.01
"""A file that is not UTF-8 and has a larger share of control characters is not text."""
MOST_DAMAGE = 0.1
"""Invalid sequences per valid one that a damaged UTF-8 file may have; beyond that it is another encoding."""

# Bytes no text has, apart from tab, line feed, form feed and carriage return.
_CONTROLS = bytes(code for code in range(1, 32) if code not in (9, 10, 12, 13))
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 files"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 files"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 files"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 files"),
)
_ASCII = bytes(range(0x80))
_WINDOWS_ONLY = frozenset(range(0x80, 0xA0))
_NOT_WINDOWS = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
# What is no text and no white space: taken out of the bytes where one byte is one of them, which is ten times faster.
_REMOVED = bytes((*range(9), *range(14, 28), 0x7F))
_REMOVED_LATIN1 = _REMOVED + bytes((*range(0x80, 0x85), *range(0x86, 0xA0)))
_REMOVED_UTF8 = re.compile(b"\xc2[\x80-\x84\x86-\x9f]")
_REMOVED_TEXT = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file is to be decoded."""

    codec: str
    """Python's name of it."""
    count_name: str | None
    """What such files are counted as; None for UTF-8."""
    nul_bytes: int = 0
    """NUL bytes that are taken out."""

    @property
    def is_wide(self) -> bool:
        """Whether a character takes two or four bytes."""
        return self.codec in ("utf-16", "utf-32")


@dataclass(slots=True)
class TextBlocks:
    r"""The text of one file in blocks, with `\n` for each line end; iterate once.

    Raises (while iterating):
        InputError: the file cannot be read.
    """

    source: Source
    encoding: Encoding
    consumed_bytes: int = field(default=0, init=False)
    """Bytes read so far."""

    def __iter__(self) -> Iterator[str]:
        inner = codecs.getincrementaldecoder(self.encoding.codec)("replace")
        decoder = io.IncrementalNewlineDecoder(inner, translate=True)
        held = b""
        for raw in _read(self.source.path):
            self.consumed_bytes += len(raw)
            if self.encoding.is_wide:
                yield _REMOVED_TEXT.sub("", decoder.decode(raw))
                continue
            both = held + raw
            # The first half of a two-byte control character waits for the second.
            held = both[-1:] if both.endswith(b"\xc2") else b""
            yield decoder.decode(self._without_controls(both[: len(both) - len(held)]))
        yield decoder.decode(held, final=True)

    def _without_controls(self, raw: bytes) -> bytes:
        if self.encoding.codec == "latin-1":
            return raw.translate(None, _REMOVED_LATIN1)
        raw = raw.translate(None, _REMOVED)
        return raw if self.encoding.codec == "cp1252" else _REMOVED_UTF8.sub(b"", raw)


def find_encoding(source: Source) -> Encoding:
    """Read a file once to find out its encoding.

    UTF-8 with or without a byte order mark, UTF-16 and UTF-32 with one. What is not valid UTF-8 is windows-1252 where
    it uses that encoding's extra characters, else latin-1; but a few invalid bytes among much valid UTF-8 are damage.

    Raises:
        InputError: the file cannot be read, or it is not text: too many NUL bytes or control characters.
    """
    strict = codecs.getincrementaldecoder("utf-8")("strict")
    size = nul_bytes = controls = 0
    is_utf8 = True
    for raw in _read(source.path):
        if size == 0:
            for mark, codec, count_name in _BYTE_ORDER_MARKS:
                if raw.startswith(mark):
                    return Encoding(codec, count_name)
        size += len(raw)
        nul_bytes += raw.count(0)
        controls += len(raw) - len(raw.translate(None, _CONTROLS))
        if is_utf8:
            try:
                strict.decode(raw)
            except UnicodeDecodeError:
                is_utf8 = False
    if is_utf8:
        is_utf8 = not strict.getstate()[0]  # a character that the end of the file cuts is invalid too
    _refuse_binary(source.path, "NUL", nul_bytes, size, MOST_NUL_SHARE)
    if is_utf8:
        return Encoding("utf-8-sig", None, nul_bytes)
    _refuse_binary(source.path, "control characters", controls, size, MOST_CONTROL_SHARE)
    return _other_encoding(source.path, nul_bytes)


def _refuse_binary(path: Path, what: str, count: int, size: int, most: float) -> None:
    if count > most * size:
        raise InputError(
            "file-encoding",
            f"{path} is not a text file ({count} of its {size} bytes are {what}): "
            "take it out of the folder, or convert it to UTF-8",
        )


def _other_encoding(path: Path, nul_bytes: int) -> Encoding:
    """Tell damaged UTF-8, windows-1252 and latin-1 apart."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    valid = invalid = 0
    upper: set[int] = set()
    for raw in _read(path):
        text = decoder.decode(raw)
        replaced = text.count("\ufffd")
        valid += len(text) - len(text.encode("ascii", "ignore")) - replaced
        invalid += replaced
        upper.update(raw.translate(None, _ASCII))
    invalid += bool(decoder.getstate()[0])
    if invalid <= MOST_DAMAGE * valid:
        return Encoding("utf-8-sig", "damaged UTF-8 files", nul_bytes)
    if upper & _WINDOWS_ONLY and not upper & _NOT_WINDOWS:
        return Encoding("cp1252", "windows-1252 files", nul_bytes)
    return Encoding("latin-1", "latin-1 files", nul_bytes)


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while raw := file.read(BLOCK_BYTES):
                yield raw
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {path}: {error.strerror}; check its permissions or take it out"
        ) from error
