"""Open SQLite files, with errors that name the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import BertbenchError, InputError, LockedError, StorageError

_WAIT_SECONDS = 10.0


@contextmanager
def database_errors(path: Path, remedy: str, write: bool) -> Iterator[None]:
    """Turn what sqlite3 raises into LockedError, StorageError and InputError that name the file.

    Args:
        path: the file.
        remedy: what to do with a damaged one.
        write: whether rows are added.
    """
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        failure: BertbenchError
        if "locked" in text or "busy" in text:
            failure = LockedError("folder-locked", f"{path} is used by another program ({text}): wait for it")
        elif write and "full" in text:
            failure = StorageError("disk-full", f"cannot write {path} ({text}): free some space, then run again")
        elif any(word in text for word in ("readonly", "unable to open", "I/O error")):
            why = f"cannot open {path} ({text}): check its permissions and the disk"
            failure = StorageError("write-failed" if write else "path-unreadable", why)
        else:
            failure = InputError("file-damaged", f"{path} is damaged or not a SQLite file ({text}): {remedy}")
        raise failure from error


@contextmanager
def connected(path: Path, remedy: str, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file that exists, to be read or written. Raises as `database_errors`."""
    # Who was killed while it wrote leaves a journal, by which the file is put right when it is opened for writing.
    unfinished = path.with_name(f"{path.name}-journal").exists()
    address = f"{path.resolve().as_uri()}?mode={'rw' if write or unfinished else 'ro'}"
    with (
        database_errors(path, remedy, write),
        closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection,
    ):
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        yield connection
