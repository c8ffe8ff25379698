"""The lines of a text that Nsight Compute wrote or that someone saved again: any encoding, line ending and size."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from analysis.readers.packed import require_regular, unreadable
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
    try:
        require_regular(path)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield from _decoded_lines(path, io.BufferedReader(gzip.GzipFile(fileobj=file)) if packed else file)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def _decoded_lines(path: Path, buffered: io.BufferedReader) -> Iterator[str]:
    head = buffered.peek(64)[:64]
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
    if head.startswith(b"version https://git-lfs"):
        raise InputError(
            "file-format", f"{path} is a Git LFS pointer, not the table itself: run `git lfs pull`, then try again"
        )
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    # latin-1 keeps every byte, so that each line's own encoding can be found; the ends of lines are the same in all.
    text = io.TextIOWrapper(buffered, "utf-16" if wide else "latin-1", errors="replace")
    size = 0
    while line := text.readline(_LONGEST_LINE):
        size += len(line)
        if size > MOST_BYTES:
            raise InputError(
                "file-limit", f"{path} holds more than {MOST_BYTES >> 30} GiB of text: give the table of one run of ncu"
            )
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
