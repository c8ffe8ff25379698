"""Read untrusted files: bounded sizes, regular files alone, and notes that may be missing or damaged."""

import errno
import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from common.errors import InputError, content_code, read_code

_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 2**22
_MOST_NOTE_BYTES = 16 << 20


class Readable(Protocol):
    """An open file of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, none at the end."""


def read_at_most(file: Readable, most: int) -> bytes:
    """Return the content of a file, or its first `most` + 1 bytes where it is longer.

    `file.read(most + 1)` alone would ask for `most` bytes at once: refused where memory is limited, whatever the file.
    """
    return b"".join(_chunks(file, most + 1))


def _chunks(file: Readable, left: int) -> Iterator[bytes]:
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


@contextmanager
def read_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn an OSError of reading `path` into an InputError that ends with `remedy`."""
    try:
        yield
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror or error}; {remedy}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read bytes; a pipe may never begin, a device never end.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it is no regular file, cannot be read, or (EFBIG) has more than `most_bytes`.
    """
    with open_regular(path) as file:
        content = read_at_most(file, most_bytes)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes >> 20} MiB", str(path))
    return content


def read_content(path: Path, what: str, remedy: str, most_bytes: int, packed: bool = False) -> bytes:
    """Return the content of a file that a user names.

    Args:
        path: the file.
        what: what it must be, for the messages: "SQuAD dataset".
        remedy: what the user can do where it is none.
        most_bytes: size beyond which it is taken for something else.
        packed: whether it may be gzip, recognized by its first bytes; it is then decompressed.

    Raises:
        InputError: it cannot be read, is truncated or damaged, or larger.
    """
    try:
        with path.open("rb") as file:
            is_gzip = packed and file.read(2) == _GZIP
            file.seek(0)
            if is_gzip:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    content = read_at_most(unpacked, most_bytes)
            else:
                content = read_at_most(file, most_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            content_code(error), f"the {what} {path} is a truncated or damaged gzip file ({error}): download it again"
        ) from error
    except OSError as error:
        raise InputError(
            content_code(error), f"cannot read the {what} {path}: {error.strerror or error}; {remedy}"
        ) from error
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB"
        raise InputError("file-limit", f"{path} has more than {size}, too large for a {what}: {remedy}")
    return content


def decoded(path: Path, content: bytes, what: str, remedy: str) -> str:
    """Return UTF-8 as text, without a byte order mark.

    Raises:
        InputError: it is empty, or no UTF-8; the message has the line.
    """
    if not content.strip():
        raise InputError("file-empty", f"the {what} {path} is empty: {remedy}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            "file-encoding",
            f"the {what} {path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8: save it as UTF-8",
        ) from error


def read_notes(path: Path) -> dict[str, Any]:
    """Return the JSON object that this program keeps in a file; empty if there is none, or it is damaged."""
    try:
        found = json.loads(read_regular(path, _MOST_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
