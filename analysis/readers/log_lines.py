"""Lines of a text log, plain or gzip-compressed, in whatever encoding; bounded, so that no file fills the memory."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from analysis.readers.packed import require_regular, unreadable
from common.errors import InputError

MOST_BYTES = 512 << 20
"""Unpacked size up to which a log is read."""
LONGEST_LINE = 1 << 20
"""Characters; a longer line is given in pieces of this length, which match no format and so count as damaged."""

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))


def log_lines(path: Path) -> Iterator[str]:
    """Yield the lines without their ends; UTF-8, or UTF-16 by its mark; what cannot be decoded is replaced.

    Raises:
        InputError: it is no regular file, cannot be read, is a damaged gzip file, or is larger than MOST_BYTES.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield from _lines(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    bounded = io.BufferedReader(_Bounded(file, path))
    begin = bounded.peek(4)
    encoding = next((name for mark, name in _MARKS if begin.startswith(mark)), "utf-8")
    text = io.TextIOWrapper(bounded, encoding=encoding, errors="replace", newline=None)
    while line := text.readline(LONGEST_LINE):
        yield line.rstrip("\n")


class _Bounded(io.RawIOBase):
    """Reads on until more than the limit has come."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                "file-limit",
                f"{self._path} holds more than {MOST_BYTES >> 20} MiB of text: cut the part that matters out of it",
            )
        buffer[: len(data)] = data
        return len(data)
