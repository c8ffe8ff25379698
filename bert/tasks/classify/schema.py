"""The SQLite file of a CSV: its tables, opened and checked; what sqlite3 says of it, as errors people can act on.

meta       what it was made of and with, by name, as JSON
labels     code (from 0, in the order of the first text with it), label, texts with it
texts      number, line of the CSV, label, key (hash that the division goes by), split
samples    number, text, label, length (real tokens, the mask's sum), token_ids (little-endian, as meta says)
left_out   lines that could not be used, and why
runs       results of trainings, as JSON
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from common.errors import InputError, LockedError, SchemaError, StorageError

SCHEMA_VERSION = 4
"""Raised when tables change or hold other values for the same CSV and settings. Of version 1 texts are divided by how
they are written: some that are equal to the model may be in different splits. Up to version 2 spaces behind a delimiter
were left out, with quotes behind them, and rows with too few or, without a header, too many fields were used. Up to
version 3 two quotes that stand alone held all rows between them.
"""
DIVIDED_BY_PIECES, COUNTED_FIELDS, MENDED_QUOTES = 2, 3, 4
"""The first versions without these."""
OLDEST_VERSION = 1
"""The oldest that is read."""
APPLICATION_ID = 0x62627463
"""Tells these files from those of other programs."""
SPLITS = ("train", "validate", "test")
TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE labels (code INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, texts INTEGER NOT NULL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, line INTEGER NOT NULL, label INTEGER NOT NULL REFERENCES labels,
    key INTEGER NOT NULL, split TEXT NOT NULL CHECK (split IN ('train', 'validate', 'test')));
CREATE TABLE samples (number INTEGER PRIMARY KEY, text INTEGER NOT NULL REFERENCES texts,
    label INTEGER NOT NULL REFERENCES labels, length INTEGER NOT NULL, token_ids BLOB NOT NULL);
CREATE TABLE left_out (line INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE runs (number INTEGER PRIMARY KEY, ended TEXT NOT NULL, fingerprint TEXT NOT NULL, result TEXT NOT NULL);
"""
_WAIT_SECONDS = 10.0
_FULL = ("disk is full", "disk I/O error")


@contextmanager
def database_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn what sqlite3 raises into LockedError, StorageError and InputError that name the file."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "locked" in said or "busy" in said:
            raise LockedError(
                "folder-locked", f"{path} is locked by another program ({said}): close that, or wait for it"
            ) from error
        if any(word in said for word in _FULL):
            raise StorageError(
                "disk-full" if "full" in said else "write-failed",
                f"cannot write {path}: {said}: free some space or choose another folder, then run the same command "
                "again",
            ) from error
        if "readonly" in said or "unable to open" in said:
            raise StorageError(
                "write-failed" if "readonly" in said else "path-unreadable",
                f"cannot open {path} ({said}): check the permissions of the file and its folder",
            ) from error
        raise InputError(
            "file-damaged", f"{path} is damaged, or no SQLite file ({said}): remove it, then {remedy}"
        ) from error


@contextmanager
def opened(path: Path, remedy: str, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file of these tables.

    Args:
        path: the file.
        remedy: how to make it, for messages.
        write: whether rows are to be added; they are there, whole, when the block has ended.

    Raises:
        InputError: it is missing, damaged, or of another program.
        SchemaError: another version of these tables.
        LockedError: another program holds it for more than ten seconds.
        StorageError: it cannot be written.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError("path-kind" if path.is_dir() else "data-unprepared", f"{path} {what}: {remedy}")
    with suppress(OSError):
        if not path.stat().st_size:
            raise InputError("file-empty", f"{path} is empty, 0 bytes: remove it, then {remedy}")
    # Who was killed while it wrote leaves a journal, by which the file is put right when it is opened for writing.
    unfinished = path.with_name(f"{path.name}-journal").exists()
    address = f"{path.resolve().as_uri()}?mode={'rw' if write or unfinished else 'ro'}"
    with (
        database_errors(path, remedy),
        closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection,
    ):
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        _check(path, connection, remedy)
        yield connection
        connection.commit()


def is_database(path: Path) -> bool:
    """Say whether a file begins as SQLite's do."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _check(path: Path, connection: sqlite3.Connection, remedy: str) -> None:
    program = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if program != APPLICATION_ID:
        raise InputError("file-format", f"{path} is a SQLite file of another program: give one of `bertbench data csv`")
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        way_out = "update bertbench" if version > SCHEMA_VERSION else f"remove it, then {remedy}"
        raise SchemaError(
            "record-newer" if version > SCHEMA_VERSION else "data-mismatch",
            f"{path} has schema version {version}, and this version of bertbench reads {SCHEMA_VERSION}: {way_out}",
        )
