"""The lines of a text that Nsight Compute wrote or that someone saved again: any encoding, line ending and size."""

import io
from collections.abc import Iterator
from pathlib import Path

from analysis.readers.packed import unpacked_stream
from analysis.readers.sqlite_database import SQLITE_HEADER
from common.errors import InputError

MOST_BYTES = 4 << 30
"""Unpacked; a larger file is refused: no session of ncu writes one, a zip bomb does."""
_LONGEST_LINE = 1 << 22
_REPORT = b"NVR\x00"


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines, without their ends, holding one at a time.

    Text is UTF-8, with or without a mark, UTF-16 with its mark (a redirect in PowerShell), or CP949; bytes of none of
    them become replacement characters. A line of more than 4 million characters comes in pieces.

    Raises:
        InputError: the file cannot be read, is damaged, too large, a report of ncu or a Git LFS pointer.
    """
    stream = unpacked_stream(path, "table", most_bytes=MOST_BYTES, remedy="give the table of one run of ncu")
    head = stream.peek(64)[:64]
    if head.startswith(_REPORT):
        raise InputError(
            "file-format", f"{path} is a report of ncu: export it with `ncu --import FILE --csv --page raw`"
        )
    if head.startswith(SQLITE_HEADER):
        raise InputError(
            "file-format",
            f"{path} is an SQLite database, as nsys and nvprof export timelines, and holds no counters of cores: give "
            "what `ncu --csv` wrote; `bertbench analyze` reads the database",
        )
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    # latin-1 keeps every byte, so that each line's own encoding can be found; the ends of lines are the same in all.
    text = io.TextIOWrapper(stream, "utf-16" if wide else "latin-1", errors="replace")
    while line := text.readline(_LONGEST_LINE):
        line = line.removesuffix("\n")
        yield line if wide or line.isascii() else _decoded(line)


def _decoded(line: str) -> str:
    raw = line.encode("latin-1")
    for encoding in ("utf-8-sig", "cp949"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8-sig", errors="replace")
