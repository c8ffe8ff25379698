"""Read files that users name: bounded sizes, JSON objects, and notes that may be missing or damaged."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import InputError, read_code

MOST_BYTES = 2 * 2**30
"""Decompressed size beyond which a file is taken for something else (the largest that is read whole has 71 MB)."""
_DAMAGE = (OSError, EOFError, zlib.error, ValueError, RecursionError, csv.Error)


@contextmanager
def read_errors(place: object, remedy: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn an error of reading, unpacking or decoding a file, or a line of it, into one that names it."""
    try:
        yield
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        raise kind(read_code(error), f"cannot read {place}: {reason}; {remedy}") from error


def read_content(path: Path, what: str, remedy: str, packed: bool = False) -> bytes:
    """Return the content of a file that a user names, decompressed where it is gzip and may be (`packed`).

    Raises InputError: it cannot be read, is truncated or damaged, or has more than MOST_BYTES; `what` it must be and
    the `remedy` are for the message.
    """
    with read_errors(path, f"{remedy}, or download it again"), path.open("rb") as file:
        is_gzip = packed and file.peek(2)[:2] == b"\x1f\x8b"
        content = (gzip.GzipFile(fileobj=file) if is_gzip else file).read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InputError("file-limit", f"{path} has more than {MOST_BYTES >> 20} MiB, too large for a {what}: {remedy}")
    return content


def decoded(path: Path, content: bytes, what: str, remedy: str) -> str:
    """Return UTF-8 as text, without a byte order mark. Raises InputError if it is empty or no UTF-8, with the line."""
    if not content.strip():
        raise InputError("file-empty", f"the {what} {path} is empty: {remedy}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError("file-encoding", f"the {what} {path}, line {line}, is not UTF-8: save it as UTF-8") from error


def read_json(path: Path, remedy: str = "give a file that can be read") -> dict[str, Any]:
    """Return a JSON object from a file. Raises InputError: it cannot be read, or holds no JSON object."""
    with read_errors(path, remedy):
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(content, dict):
        raise InputError("file-format", f"{path} holds no JSON object: {remedy}")
    return content


def read_notes(path: Path) -> dict[str, Any]:
    """Return the JSON object that this program keeps in a file; empty if there is none, or it is damaged."""
    try:
        return read_json(path)
    except InputError:
        return {}
