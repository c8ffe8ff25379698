"""Open SQLite files, with errors that name the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import BertbenchError, Code, InputError, LockedError, StorageError

_WAIT_SECONDS = 10.0
_KNOWN: dict[str, tuple[type[BertbenchError], Code, str]] = {
    "locked": (LockedError, "folder-locked", "close the other program, or wait for it"),
    "full": (StorageError, "disk-full", "free some space, then run again"),
    "readonly": (StorageError, "write-failed", "check the permissions of the file and its folder"),
    "unable to open": (StorageError, "path-unreadable", "check the permissions of the file and its folder"),
    "I/O error": (StorageError, "path-unreadable", "check the disk"),
}


@contextmanager
def database_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn what sqlite3 raises into LockedError, StorageError and InputError; `remedy` is for a damaged file."""
    try:
        yield
    except sqlite3.Error as error:
        matches = (_KNOWN[words] for words in _KNOWN if words in str(error))
        kind, code, advice = next(matches, (InputError, "file-damaged", remedy))
        raise kind(code, f"cannot use {path} ({error}): {advice}") from error


@contextmanager
def connected(path: Path, remedy: str, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file that exists, to be read or written. Raises as `database_errors`."""
    # Who was killed while it wrote leaves a journal, by which the file is put right when it is opened for writing.
    unfinished = path.with_name(f"{path.name}-journal").exists()
    address = f"{path.resolve().as_uri()}?mode={'rw' if write or unfinished else 'ro'}"
    with (
        database_errors(path, remedy),
        closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection,
    ):
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        yield connection
