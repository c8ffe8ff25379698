"""Files that may be gzip-compressed or cut short: their bytes and lines."""

import gzip
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Code, InputError, read_code

try:
    from zlib_ng import zlib_ng  # less than half the time of zlib
except ImportError:
    import zlib as zlib_ng  # type: ignore[no-redef]

_PIECE_BYTES = 64 << 10
ENDS_INSIDE = "it ends inside the compressed data"
UNENDED = "the last line does not end with a newline, so the file may be cut short: copy it again, or record again"


def is_packed(path: Path) -> bool:
    """Return whether a file is gzip-compressed. Raises InputError where it cannot be read."""
    with _opened(path) as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.exists() and not path.is_file():
            raise InputError(
                "path-kind",
                f"cannot read {path}: it is not a regular file; give a file, or save the pipe to a file first",
            )
        with path.open("rb") as file:
            yield file
    except OSError as error:
        why = f"cannot read {str(path)[:200]}: {error.strerror}; check the path and its permissions (chmod +r)"
        raise InputError(read_code(error), why) from error


def unpacked_blocks(
    path: Path, damaged: Callable[[str], None] | None = None, *, block_bytes: int = 8 << 20
) -> Iterator[bytes]:
    """Yield the content in blocks, unpacked where it is gzip-compressed.

    Where the packed form ends early or is damaged, `damaged` is called with the reason, behind what could be unpacked;
    without it this raises InputError.
    """
    packed = is_packed(path)
    with _opened(path) as file:
        if not packed:
            yield from iter(lambda: file.read(block_bytes), b"")
            return
        reason = yield from _members(file)
    if reason and damaged is not None:
        damaged(reason)
    elif reason:
        what = f"cannot read {path}: {reason}; the file is damaged or truncated; copy it again"
        raise InputError(damage_code(reason), what)


def _members(file: BinaryIO) -> Generator[bytes, None, str]:
    """Unpack gzip members, one behind the other; return why they end early, "" where they are whole."""
    damage: Any = zlib_ng.error
    member = zlib_ng.decompressobj(wbits=31)
    while piece := file.read(_PIECE_BYTES):
        while piece:
            member = zlib_ng.decompressobj(wbits=31) if member.eof else member
            try:
                yield member.decompress(piece)
            except damage as error:
                return str(error)
            piece = member.unused_data
    return "" if member.eof else ENDS_INSIDE


def read_start(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of the content, unpacked."""
    return next(unpacked_blocks(path, block_bytes=size), b"")[:size]


def damage_code(reason: str) -> Code:
    """Return the code of a file that is damaged for that reason."""
    return "file-truncated" if reason == ENDS_INSIDE else "file-damaged"


def log_lines(path: Path, unended: Callable[[str], None] | None = None) -> Iterator[str]:
    """Yield the lines of UTF-8 without their ends; what cannot be decoded is replaced.

    `unended` is called with UNENDED, before the last line, if that has no end.
    """
    opened = gzip.open if is_packed(path) else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            if unended is not None and not line.endswith("\n"):
                unended(UNENDED)
            yield line.rstrip("\n")
