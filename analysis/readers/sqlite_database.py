"""Opens SQLite files that profilers wrote, plain or gzip-compressed, and takes columns out of them."""

import gzip
import os
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.readers.columns import Integers, require_memory
from common.errors import InputError, content_code

if TYPE_CHECKING:
    from analysis.readers.registry import Head


Numbers = npt.NDArray[np.integer[Any]]

SQLITE_HEADER = b"SQLite format 3\0"
REPORT_HEADER = b"NVIDIA Tegra Profiler"
"""What a report of nsys begins with, .nsys-rep and .qdrep."""
_UNPACKED = (SQLITE_HEADER, REPORT_HEADER, b"NVR\x00")
"""What a file must begin with to be unpacked as a whole: a database, or a report of nsys or ncu."""
UNPACKED_BYTES_ALWAYS = 1 << 30
UNPACKED_TIMES = 100
"""A packed file may unpack to the first, or to so many times its own size, whichever is more."""

_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises; the second where a message of SQLite quotes its bytes."""


class Database:
    """An open database. Tables and columns that it lacks read as empty and as defaults.

    Attributes:
        tables: columns by table, of all tables but SQLite's own and those of enumerations.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, given: Path) -> None:
        """Read the names of tables and columns. `given` is the file that the user gave, for messages."""
        # Names come from programs and need not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        self._connection, self._path, self._given = connection, path, given
        self._texts: dict[str, dict[int, str]] = {}
        names = [name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self.tables = {
            name: tuple(row[1] for row in self._query(f'PRAGMA table_info("{name.replace(chr(34), 2 * chr(34))}")'))
            for name in names
            if isinstance(name, str) and not name.startswith(("sqlite_", "ENUM_"))
        }

    def has_rows(self, table: str) -> bool:
        """Return whether a table exists and is not empty."""
        return table in self.tables and any(True for _ in self._query(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608 # nosec B608 # constants of the readers

    def integers(self, table: str, columns: Mapping[str, int]) -> dict[str, Integers]:
        """Return columns of whole numbers, int64 and equally long, in the order of the table.

        Args:
            table: table's name, a constant of the reader.
            columns: column -> value where it is NULL or the table has no such column.

        Raises:
            InputError: the table is damaged, or does not fit into the memory.
        """
        present = [name for name in columns if name in self.tables.get(table, ())]
        # CAST: some versions declare no types, and one stray text must not end the reading.
        fields = ", ".join(f'ifnull(CAST("{name}" AS INTEGER), {columns[name]})' for name in present)
        rows = np.empty(0, dtype=[(name, np.int64) for name in present])
        if present:
            (count,) = next(self._query(f'SELECT count(*) FROM "{table}"'))  # noqa: S608 # nosec B608 # constants
            require_memory(self._path, count * rows.itemsize)
            query = f'SELECT {fields} FROM "{table}" ORDER BY rowid'  # noqa: S608 # nosec B608 # constants
            rows = np.fromiter(self._query(query), rows.dtype, count=count)
        return {
            name: np.ascontiguousarray(rows[name]) if name in present else np.full(len(rows), value, dtype=np.int64)
            for name, value in columns.items()
        }

    def texts(self, table: str, column: str) -> list[str]:
        """Return a column of texts in the order of `integers`, "" where it is NULL; [] where the table lacks it."""
        if column not in self.tables.get(table, ()):
            return []
        query = f'SELECT ifnull(CAST("{column}" AS TEXT), \'\') FROM "{table}" ORDER BY rowid'  # noqa: S608 # nosec B608 # constants
        return [sys.intern(text) for (text,) in self._query(query)]

    def rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Return columns of a small table, None where it lacks one; [] where there is no such table."""
        present = self.tables.get(table, ())
        if not present:
            return []
        fields = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        return list(self._query(f'SELECT {fields} FROM "{table}"'))  # noqa: S608 # nosec B608 # constants

    def strings(self, table: str = "StringIds", key: str = "id") -> dict[int, str]:
        """Return the texts of a table by their ids (columns `key` and value); empty texts are left out."""
        if table not in self._texts:
            known = {key, "value"} <= set(self.tables.get(table, ()))
            query = f"SELECT {key}, CAST(value AS TEXT) FROM {table} WHERE value <> ''"  # noqa: S608 # nosec B608 # constants
            self._texts[table] = dict(self._query(query)) if known else {}
        return self._texts[table]

    def _query(self, query: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query)
        except _DAMAGE as error:
            raise InputError(
                "file-damaged", f"{self._given} is a damaged database ({error}): copy it or export it again"
            ) from error


@contextmanager
def open_database(path: Path, given: Path | None = None) -> Iterator[Database]:
    """Open an SQLite database for reading alone.

    Args:
        path: the database, unpacked.
        given: the file that the user gave, for messages; `path` itself where it is not said.
    """
    # immutable: no lock and no journal, so that a read-only folder does.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        yield Database(connection, path, given or path)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the file itself, or, where it is gzip-compressed, what it holds as a temporary file."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        if not compressed:
            yield path
            return
        handle, name = tempfile.mkstemp(suffix=".sqlite")
    except OSError as error:
        raise InputError(content_code(error), f"cannot read {path}: {error}") from error
    temporary = Path(name)
    try:
        try:
            with os.fdopen(handle, "wb") as out:
                # SQLite and ncu-report read from a file alone; an export can be larger than memory.
                _unpack(path, out)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                content_code(error),
                f"cannot unpack {path} into {temporary.parent}: {error}; the file is damaged or truncated, "
                "or the disk is full (TMPDIR selects another folder)",
            ) from error
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _unpack(path: Path, out: Any) -> None:
    limit = max(UNPACKED_BYTES_ALWAYS, UNPACKED_TIMES * path.stat().st_size)
    written = 0
    with gzip.open(path) as packed:
        while block := packed.read(1 << 20):
            if not written and not block.startswith(_UNPACKED):
                out.write(block[:4096])  # enough to tell what it is instead
                return
            written += len(block)
            if written > limit:
                raise InputError(
                    "file-limit",
                    f"{path} unpacks to more than {limit:,} bytes (1 GiB, or {UNPACKED_TIMES} times its own size): "
                    "if the file is intact, unpack it with gunzip and give the unpacked file",
                )
            out.write(block)


_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")


def is_of_nvprof(head: "Head") -> bool:
    """Return whether an SQLite database is nvprof's, by its tables."""
    if b"StringIds" in head.data:
        return False
    if b"StringTable" in head.data or not head.path.is_file():
        return b"StringTable" in head.data
    try:
        with head.path.open("rb") as file:
            plain = file.read(2) != b"\x1f\x8b"
        if not plain:
            return False
        with open_database(head.path) as database:
            return "StringTable" in database.tables and "StringIds" not in database.tables
    except (OSError, InputError):
        return False


def check_header(path: Path, plain: Path, writer: str) -> None:
    """Look at a database's header. Raises InputError where it is none, or is cut short.

    Args:
        path: the file that was given.
        plain: the same, unpacked.
        writer: what writes such a file, for the message.
    """
    with plain.open("rb") as file:
        head = file.read(128)
        size = file.seek(0, os.SEEK_END)
    if head.startswith(b"version https://git-lfs"):
        raise InputError(
            "file-format", f"{path} is a Git LFS pointer, not the export itself: run `git lfs pull`, then try again"
        )
    suffixes = path.suffixes[-2:]
    if head.startswith(REPORT_HEADER) or any(suffix in _REPORT_SUFFIXES for suffix in suffixes):
        raise InputError(
            "file-format",
            f"{path} is an nsys report, not an export: run `nsys export --type=sqlite --output="
            f"{path.name.split('.')[0]}.sqlite {path.name}` with the nsys that recorded it or a newer one, and give "
            "that file",
        )
    if not head.startswith(SQLITE_HEADER):
        what = "is empty" if not size else "is no SQLite database"
        raise InputError("file-format" if size else "file-empty", f"{path} {what}: give what {writer} wrote")
    page_size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = pages * (65536 if page_size == 1 else page_size)
    if size < expected:
        raise InputError(
            "file-truncated", f"{path} is truncated: {size:,} of {expected:,} bytes; copy it or export it again"
        )
