"""SQLite files of nsys and nvprof, plain or gzip-compressed, and columns out of them."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.readers.packed import is_packed, unpacked_blocks
from analysis.timeline import MISSING
from common.errors import InputError, read_code

if TYPE_CHECKING:
    from analysis.readers.registry import Head

SQLITE_HEADER = b"SQLite format 3\0"
_TEXTS = {"StringIds": "id", "StringTable": "_id_"}
"""Tables of texts by id, of nsys and of nvprof."""
_BLOCK_ROWS = 1 << 15
_MOST_THREADS = 4


@dataclass(frozen=True, eq=False)
class Database:
    """An open database. Tables and columns that it lacks read as empty and as defaults.

    Table and column names of all methods are constants of the readers.
    """

    path: Path
    connection: sqlite3.Connection

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """Names of columns by table."""
        columns = "sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table' GROUP BY t.name"
        return {table: names.split(",") for table, names in self._select("t.name, group_concat(c.name)", columns)}

    def integers(self, table: str, columns: Mapping[str, tuple[str, int]]) -> dict[str, npt.NDArray[np.signedinteger]]:
        """Return columns of whole numbers in the order of rowid.

        Args:
            table: the name of the table; one that is not there has no rows.
            columns: by name what to read: the table's column, and the value where it is NULL or missing.
        """
        known = self.tables.get(table, ())
        present = {name: (column, value) for name, (column, value) in columns.items() if column in known}
        lists = ", ".join(f'group_concat(coalesce("{column}", {value}))' for column, value in present.values())
        first = last = count = 0
        if present:
            ranges = ("min(rowid)", "max(rowid)", "count(*)")  # one by one: SQLite looks up the ends
            first, last, count = (next(self._select(number, table))[0] or 0 for number in ranges)
        step = _BLOCK_ROWS if last - first + 1 == count else last - first + 1  # rowids may have holes
        read = {name: np.empty(count, dtype=np.int64) for name in present}

        def fill(begin: int) -> int:
            rows = f"SELECT * FROM {table} WHERE rowid >= {begin} AND rowid < {begin + step} ORDER BY rowid"  # noqa: S608 # nosec B608
            with closing(_connect(self.path)) as connection:
                (texts,) = connection.execute(f"SELECT {lists} FROM ({rows})")  # noqa: S608 # nosec B608
            parts = [np.fromstring(text or "", dtype=np.int64, sep=",") for text in texts]
            for column, part in zip(read.values(), parts, strict=True):
                column[begin - first :][: len(part)] = part
            return sum(map(len, parts))

        # SQLite writes text, and does it beside other threads: an object of Python per value takes twice as long.
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
            filled = sum(pool.map(fill, range(first, last + 1, step) if count else ()))
        if filled != count * len(read):
            raise sqlite3.DatabaseError(f"it does not have all of {count:,} rows of {table}")
        return {
            name: _narrow(read.pop(name) if name in read else np.full(count, value), value)
            for name, (_, value) in columns.items()
        }

    def texts(self, table: str, column: str) -> list[str]:
        """Return a column of texts in the order of `integers`, "" where it is NULL; [] where the table lacks it."""
        known = column in self.tables.get(table, ())
        rows = self._select(f"ifnull(\"{column}\", '')", f"{table} ORDER BY rowid") if known else ()
        return [sys.intern(text) for (text,) in rows]

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table, None where it lacks one; [] where there is no such table."""
        present = self.tables.get(table, ())
        fields = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        return list(self._select(fields, f"{table} ORDER BY rowid")) if present else []

    @cached_property
    def strings(self) -> dict[int, str]:
        """Texts that are not empty, by id."""
        table = next((name for name in _TEXTS if name in self.tables), None)
        return dict(self._select(f"{_TEXTS[table]}, value", f"{table} WHERE value <> ''")) if table else {}

    def _select(self, fields: str, source: str) -> sqlite3.Cursor:
        return self.connection.execute(f"SELECT {fields} FROM {source}")  # noqa: S608 # nosec B608


def _connect(path: Path) -> sqlite3.Connection:
    # immutable: no lock and no journal, so that a read-only folder does.
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    # Names come from programs and need not be UTF-8.
    connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return connection


@contextmanager
def open_database(path: Path, given: Path | None = None) -> Iterator[Database]:
    """Open an unpacked SQLite database for reading alone; InputError, also within, where it is cut short or damaged.

    `given` is the file that the user gave, for messages.
    """
    given = given or path
    with path.open("rb") as file:
        head = file.read(32)
    page_size = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page_size == 1 else page_size)
    if (size := path.stat().st_size) < expected:
        raise InputError(
            "file-truncated", f"{given} is truncated: {size:,} of {expected:,} bytes; copy it or export it again"
        )
    try:
        with closing(_connect(path)) as connection:
            yield Database(path, connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes bytes of the file
        what = f"{given} is a damaged database ({error}): copy it or export it again"
        raise InputError("file-damaged", what) from error


def _narrow(values: npt.NDArray[np.int64], default: int) -> npt.NDArray[np.signedinteger]:
    """Return whole numbers in 32 bits if these hold them; times, which are added, stay as they are."""
    fits = default != MISSING and -(2**31) <= values.min(initial=0) <= values.max(initial=0) < 2**31
    return values.astype(np.int32) if fits else values


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the file itself, or, where it is gzip-compressed, what it holds as a temporary file."""
    if not is_packed(path):
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".unpacked") as plain:
        try:
            plain.writelines(unpacked_blocks(path))
            plain.flush()
        except OSError as error:
            where = f"cannot unpack {path} into {tempfile.gettempdir()}"
            raise InputError(read_code(error), f"{where}: {error}; set TMPDIR to a folder with space") from error
        yield Path(plain.name)


def is_of_nvprof(head: "Head") -> bool:
    """Return whether an SQLite database is nvprof's, by its table of texts."""
    if b"StringIds" in head.data:  # nsys's; the others' may be far into the file
        return False
    with unpacked(head.path) as plain, open_database(plain, head.path) as database:
        return "StringIds" not in database.tables and "StringTable" in database.tables
