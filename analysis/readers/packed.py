"""Files that may be gzip-compressed, cut short, or a Git LFS pointer in place of the file: their bytes and lines."""

import codecs
import errno
import io
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import Code, InputError, content_code

MOST_BYTES = 16 << 30
"""Unpacked size of a file that is read: more is taken for a bomb."""
_BLOCK_BYTES = 8 << 20
_STREAM_BYTES = 1 << 20
CUT_SHORT = "it is cut short"
ENDS_INSIDE = "it ends inside the compressed data"
_GZIP = b"\x1f\x8b"
_POINTER = b"version https://git-lfs"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS


def unpacked_blocks(
    path: Path,
    what: str,
    damaged: Callable[[str], None],
    *,
    block_bytes: int = _BLOCK_BYTES,
    most_bytes: int = MOST_BYTES,
    remedy: str = "record fewer steps",
) -> Iterator[bytes]:
    """Yield the content in blocks of about `block_bytes`, unpacked where it is gzip-compressed (several members too).

    Args:
        path: the file.
        what: what it should be, for the message.
        damaged: called with the reason where the packed form ends early or is damaged; what was unpacked up to there
            has been yielded.
        block_bytes: size of a block.
        most_bytes: unpacked size that is accepted.
        remedy: what helps against more.
    """
    total = 0
    for number, block in enumerate(_blocks(path, damaged, block_bytes)):
        if not number and block.startswith(_POINTER):
            raise InputError(
                "file-format", f"{path} is a Git LFS pointer, not the {what} itself: run `git lfs pull`, then try again"
            )
        total += len(block)
        if total > most_bytes:
            raise InputError(
                "file-limit",
                f"{path} exceeds {most_bytes:,} bytes unpacked, the limit of a {what}: {remedy}",
            )
        yield block


def unpacked_stream(path: Path, what: str, *, most_bytes: int, remedy: str) -> io.BufferedReader:
    """Return the content as one stream of bytes, with the arguments of `unpacked_blocks`.

    Reading raises what that raises, and InputError where the packed form is damaged, behind what could be unpacked.
    """

    def damaged(reason: str) -> None:
        raise InputError(
            damage_code(reason), f"cannot read {path}: {reason}; the file is damaged or truncated; copy it again"
        )

    blocks = unpacked_blocks(path, what, damaged, block_bytes=_STREAM_BYTES, most_bytes=most_bytes, remedy=remedy)
    return io.BufferedReader(_Stream(blocks), _STREAM_BYTES)


class _Stream(io.RawIOBase):
    """Blocks one behind the other."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        given = self._rest[: len(buffer)]
        buffer[: len(given)] = given
        self._rest = self._rest[len(given) :]
        return len(given)


def damage_code(reason: str) -> Code:
    """Return the code of a file that is damaged for that reason."""
    return "file-truncated" if reason in (ENDS_INSIDE, CUT_SHORT) else "file-damaged"


def unreadable(path: Path, error: Exception) -> InputError:
    """Return the message for a file that could not be read: the cause and the remedy."""
    if isinstance(error, PermissionError):
        remedy = "ask its owner for permission (chmod +r)"
        return InputError("path-unreadable", f"cannot read {path}: permission denied; {remedy}")
    if isinstance(error, FileNotFoundError):
        return InputError("path-missing", f"{path} does not exist: check the path")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return InputError(content_code(error), f"cannot read {str(path)[:200]}: {error.strerror}; check the path")
    what = "the file is damaged or truncated; copy it again"
    return InputError(content_code(error), f"cannot read {path}: {error}; {what}")


def require_regular(path: Path) -> None:
    """Raise InputError for a pipe or a device: opening one waits for somebody to write. Raises OSError as stat does."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(
            "path-kind", f"cannot read {path}: it is not a regular file; give a file, or save the pipe to a file first"
        )


def _blocks(path: Path, damaged: Callable[[str], None], block_bytes: int) -> Iterator[bytes]:
    try:
        require_regular(path)
        with path.open("rb") as file:
            first = file.read(2)
            file.seek(0)
            if first != _GZIP:
                while block := file.read(block_bytes):
                    yield block
                return
            yield from _unpacked(iter(lambda: file.read(1 << 20), b""), damaged, block_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


@cache
def _zlib() -> tuple[Callable[..., Any], Any]:
    """Return decompressobj and its error: of zlib-ng, which takes less than half the time, else of zlib."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib.decompressobj, zlib.error
    return zlib_ng.decompressobj, zlib_ng.error


def _unpacked(packed: Iterator[bytes], damaged: Callable[[str], None], block_bytes: int) -> Iterator[bytes]:
    """Unpack member after member; zeros between and after them are padding."""
    decompressobj, damage = _zlib()
    member = decompressobj(_WITH_GZIP_HEADER)
    parts: list[bytes] = []
    size, reason, inside = 0, "", True
    for piece in packed:
        while not reason:
            room = block_bytes - size
            try:
                part = member.decompress(piece, room)
            except damage as error:
                reason = str(error)
                break
            parts.append(part)
            size += len(part)
            piece = member.unconsumed_tail
            inside = inside or bool(part)
            if member.eof:
                piece = member.unused_data.lstrip(b"\0")
                inside = bool(piece)
                member = decompressobj(_WITH_GZIP_HEADER)
            if size >= block_bytes:
                yield b"".join(parts)
                parts, size = [], 0
            elif not piece:
                break
        if reason:
            break
        inside = inside or member.unconsumed_tail != b""
    if size:  # an empty block would be taken for the end
        yield b"".join(parts)
    if not reason and inside:
        reason = ENDS_INSIDE
    if reason:
        damaged(reason)


MOST_LOG_BYTES = 512 << 20
"""Unpacked size up to which a log is read."""
LONGEST_LINE = 1 << 20
"""Characters; a longer line is given in pieces of this length, which match no format and so count as damaged."""

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))


UNENDED = "the last line does not end with a newline, so the file may be cut short: copy it again, or record again"


def log_lines(path: Path, unended: Callable[[str], None] | None = None) -> Iterator[str]:
    """Yield the lines without their ends; UTF-8, or UTF-16 by its mark; what cannot be decoded is replaced.

    Args:
        path: the file, plain or gzip-compressed.
        unended: called with UNENDED, before the last line, if that has no end.
    """
    stream = unpacked_stream(path, "log", most_bytes=MOST_LOG_BYTES, remedy="extract the relevant part")
    begin = stream.peek(4)
    encoding = next((name for mark, name in _MARKS if begin.startswith(mark)), "utf-8")
    text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline=None)
    while line := text.readline(LONGEST_LINE):
        if unended is not None and len(line) < LONGEST_LINE and not line.endswith("\n"):
            unended(UNENDED)
        yield line.rstrip("\n")
