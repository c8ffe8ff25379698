"""Read files that users name: bounded sizes, JSON objects, and notes that may be missing or damaged."""

import errno
import gzip
import json
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from common.errors import InputError, content_code

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
_MOST_JSON_BYTES = 16 << 20


@contextmanager
def read_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn an error of reading or unpacking `path` into an InputError that ends with `remedy`."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(content_code(error), f"cannot read {path}: {reason}; {remedy}") from error


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError, with EFBIG where it has more than `most_bytes`."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes >> 20} MiB", str(path))
    return path.read_bytes()


def read_content(path: Path, what: str, remedy: str, most_bytes: int, packed: bool = False) -> bytes:
    """Return the content of a file that a user names, decompressed where it is gzip and may be (`packed`).

    Raises:
        InputError: it cannot be read, is truncated or damaged, or has more than `most_bytes`; `what` it must be and the
            `remedy` are for the message.
    """
    with read_errors(path, f"{remedy}, or download it again"), path.open("rb") as file:
        is_gzip = packed and file.peek(2)[:2] == _GZIP
        source = gzip.GzipFile(fileobj=file) if is_gzip else file
        blocks = iter(lambda: source.read(_BLOCK_BYTES), b"")
        content = b"".join(islice(blocks, most_bytes // _BLOCK_BYTES + 1))
    if len(content) > most_bytes:
        raise InputError("file-limit", f"{path} has more than {most_bytes >> 20} MiB, too large for a {what}: {remedy}")
    return content


def decoded(path: Path, content: bytes, what: str, remedy: str) -> str:
    """Return UTF-8 as text, without a byte order mark. Raises InputError if it is empty or no UTF-8, with the line."""
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


def read_json(
    path: Path, what: str = "configuration", remedy: str = "give a file that can be read", strict: bool = False
) -> dict[str, Any]:
    """Return a JSON object from a file; `strict` refuses NaN and infinity, which JSON does not have.

    Raises:
        InputError: it is no regular file, cannot be read, has more than 16 MiB, or holds no JSON object.
    """
    with read_errors(path, remedy):
        raw = read_regular(path, _MOST_JSON_BYTES)
    try:
        content = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant if strict else None)
    except (ValueError, RecursionError) as error:
        raise InputError(content_code(error), f"the {what} {path} is not JSON ({error}): {remedy}") from error
    if not isinstance(content, dict):
        raise InputError("file-format", f"the {what} {path} holds no JSON object: {remedy}")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def read_notes(path: Path) -> dict[str, Any]:
    """Return the JSON object that this program keeps in a file; empty if there is none, or it is damaged."""
    try:
        return read_json(path)
    except InputError:
        return {}
