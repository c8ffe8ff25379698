"""Atomic writes: temporary file, fsync, rename."""

import contextlib
import errno
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import StorageError


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a write into a StorageError that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("disk-full", f"{problem}; free some space, then run the same command again") from error
        raise StorageError("write-failed", f"{problem}; choose another folder or change its owner") from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    Raises:
        StorageError: the folder cannot be written or the disk is full; `path` keeps its old content.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_left_overs(folder: Path, *below: str) -> None:
    """Remove what killed processes left of `atomic_path` in a folder, and in those that the patterns `below` match.

    Nobody else may be writing there.
    """
    for place in (folder, *(path for pattern in below for path in folder.glob(pattern))):
        for path in place.glob(".*.????????.tmp"):
            with contextlib.suppress(OSError):
                path.unlink()


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before long work; nothing is left there. Raises StorageError."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    with storage_errors(folder), tempfile.TemporaryFile(dir=place) as file:
        file.write(bytes(4096))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, atomically. Raises StorageError."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, atomically. Raises StorageError."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path`, atomically. NaN is refused. Raises StorageError."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    # A file name that is not UTF-8 is written as its bytes are escaped.
    write_text(path, text.encode("utf-8", "backslashreplace").decode() + "\n")
