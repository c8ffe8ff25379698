"""Open SQLite files, with errors that name the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import InputError, LockedError, StorageError

_WAIT_SECONDS = 10.0
_FULL = ("disk is full", "disk I/O error")


@contextmanager
def database_errors(path: Path, remedy: str, write: bool) -> Iterator[None]:
    """Turn what sqlite3 raises into LockedError, StorageError and InputError that name the file.

    Args:
        path: the file.
        remedy: what to do with a damaged one.
        write: whether rows are added; otherwise no message mentions writing.
    """
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "locked" in said or "busy" in said:
            raise LockedError(
                "folder-locked", f"{path} is locked by another program ({said}): close the program, or wait for it"
            ) from error
        if write and any(word in said for word in _FULL):
            raise StorageError(
                "disk-full" if "full" in said else "write-failed",
                f"cannot write {path}: {said}: free some space or choose another folder, then run the same command "
                "again",
            ) from error
        if any(word in said for word in ("readonly", "unable to open", "I/O error")):
            raise StorageError(
                "write-failed" if write and "readonly" in said else "path-unreadable",
                f"cannot open {path} ({said}): check the permissions of the file and its folder, and the disk",
            ) from error
        raise InputError("file-damaged", f"{path} is damaged or not a SQLite file ({said}): {remedy}") from error


@contextmanager
def connected(path: Path, remedy: str, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file.

    Args:
        path: the file, which is there.
        remedy: what to do with a damaged one, for messages.
        write: whether rows are to be added; otherwise it is opened to be read.

    Raises: as `database_errors`.
    """
    # Who was killed while it wrote leaves a journal, by which the file is put right when it is opened for writing.
    unfinished = path.with_name(f"{path.name}-journal").exists()
    address = f"{path.resolve().as_uri()}?mode={'rw' if write or unfinished else 'ro'}"
    with (
        database_errors(path, remedy, write),
        closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection,
    ):
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        yield connection
