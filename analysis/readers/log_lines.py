"""Lines of a text log, plain or gzip-compressed, in whatever encoding; bounded, so that no file fills the memory."""

import codecs
import io
from collections.abc import Iterator
from pathlib import Path

from analysis.readers.packed import unpacked_stream

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
    stream = unpacked_stream(path, "log", most_bytes=MOST_BYTES, remedy="cut the part that matters out of it")
    begin = stream.peek(4)
    encoding = next((name for mark, name in _MARKS if begin.startswith(mark)), "utf-8")
    text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline=None)
    while line := text.readline(LONGEST_LINE):
        yield line.rstrip("\n")
