"""SQLite files of nsys and nvprof, plain or gzip-compressed, and columns out of them."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.readers.packed import is_packed, unpacked_blocks
from analysis.timeline import MISSING
from common.errors import InputError, content_code

if TYPE_CHECKING:
    from analysis.readers.registry import Head

SQLITE_HEADER = b"SQLite format 3\0"
_TEXTS = {"StringIds": "id", "StringTable": "_id_"}
"""Tables of texts by id, of nsys and of nvprof."""
_BLOCK_ROWS = 1 << 16
_MOST_THREADS = 4


class Database:
    """An open database. Tables and columns that it lacks read as empty and as defaults.

    Table and column names of all methods are constants of the readers.
    """

    def __init__(self, path: Path, given: Path) -> None:
        """Open a file and read the names of columns by table. `given` is the file that the user gave, for messages."""
        self._path, self._given = path, given
        self._connection = self._connect()
        columns = "sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
        self.tables: dict[str, list[str]] = {}
        try:
            for table, column in self._select("t.name, c.name", columns):
                self.tables.setdefault(table, []).append(column)
        except InputError:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # immutable: no lock and no journal, so that a read-only folder does.
        connection = sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        # Names come from programs and need not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        return connection

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def has_rows(self, table: str) -> bool:
        """Return whether a table exists and is not empty."""
        return table in self.tables and any(True for _ in self._select("1", f"{table} LIMIT 1"))

    def integers(self, table: str, columns: Mapping[str, tuple[str, int]]) -> dict[str, npt.NDArray[np.signedinteger]]:
        """Return columns of whole numbers in the order of rowid.

        Args:
            table: the name of the table; one that is not there has no rows.
            columns: by name what to read: the table's column, and the value where it is NULL or missing.
        """
        known = self.tables.get(table, ())
        present = {name: (column, value) for name, (column, value) in columns.items() if column in known}
        first, last, count = 0, 0, 0
        if present:
            (first,), (last,), (count,) = (
                next(self._select(of, table)) for of in ("min(rowid)", "max(rowid)", "count(*)")
            )
        read = {name: np.empty(count, dtype=np.int64) for name in present}
        fields = ", ".join(f'coalesce("{column}", {value})' for column, value in present.values())
        lines = f"(SELECT rowid AS number, printf('{'%d ' * len(present)}', {fields}) AS line FROM {table}"  # noqa: S608 # nosec B608

        def fill(place: int, after: int, until: int) -> int:
            begin = place
            with closing(self._connect()) as connection:
                while after < until:  # rowids may have holes
                    block = f"{lines} WHERE rowid > {after} AND rowid <= {until} ORDER BY rowid LIMIT {_BLOCK_ROWS})"
                    ((after, text),) = self._select("max(number), group_concat(line, '')", block, connection)
                    if text is None:
                        break
                    rows = np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, len(read))
                    for column, part in zip(read.values(), rows.T, strict=True):
                        column[place : place + len(part)] = part
                    place += len(rows)
            return place - begin

        if count:
            # SQLite writes text, and does it beside other threads: an object of Python per value takes twice as long.
            threads = min(_MOST_THREADS, os.cpu_count() or 1, 1 + count // _BLOCK_ROWS)
            parts = threads if last - first + 1 == count else 1
            places = [count * part // parts for part in range(parts)]
            begins = [first - 1 + place for place in places]
            with ThreadPoolExecutor(parts) as pool:
                filled = sum(pool.map(fill, places, begins, [*begins[1:], last]))
            if filled != count:
                text = f"{self._given} is a damaged database ({filled:,} of {count:,} rows of {table}): export it again"
                raise InputError("file-damaged", text)
        return {
            name: _narrow(read.pop(name) if name in read else np.full(count, value, dtype=np.int64), value)
            for name, (_, value) in columns.items()
        }

    def texts(self, table: str, column: str) -> list[str]:
        """Return a column of texts in the order of `integers`, "" where it is NULL; [] where the table lacks it."""
        if column not in self.tables.get(table, ()):
            return []
        texts = self._select(f"ifnull(CAST(\"{column}\" AS TEXT), '')", f"{table} ORDER BY rowid")
        return [sys.intern(text) for (text,) in texts]

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table, None where it lacks one; [] where there is no such table."""
        present = self.tables.get(table, ())
        fields = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        return list(self._select(fields, f"{table} ORDER BY rowid")) if present else []

    @cached_property
    def strings(self) -> dict[int, str]:
        """Texts that are not empty, by id."""
        table = next((name for name in _TEXTS if name in self.tables), None)
        return (
            dict(self._select(f"{_TEXTS[table]}, CAST(value AS TEXT)", f"{table} WHERE value <> ''")) if table else {}
        )

    def _select(
        self, fields: str, source: str, connection: sqlite3.Connection | None = None
    ) -> Iterator[tuple[Any, ...]]:
        try:
            yield from (connection or self._connection).execute(f"SELECT {fields} FROM {source}")  # noqa: S608 # nosec B608
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes bytes of the file
            raise InputError(
                "file-damaged", f"{self._given} is a damaged database ({error}): copy it or export it again"
            ) from error


@contextmanager
def open_database(path: Path, given: Path | None = None) -> Iterator[Database]:
    """Open an unpacked SQLite database for reading alone. Raises InputError where it is none, or is cut short."""
    given = given or path
    with path.open("rb") as file:
        head = file.read(128)
    size = path.stat().st_size
    if not head.startswith(SQLITE_HEADER):
        raise InputError(
            "file-format" if size else "file-empty",
            f"{given} {'is no SQLite database' if size else 'is empty'}: give the output of `nsys export "
            "--type=sqlite` or `nvprof --export-profile`",
        )
    page_size = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page_size == 1 else page_size)
    if size < expected:
        raise InputError(
            "file-truncated", f"{given} is truncated: {size:,} of {expected:,} bytes; copy it or export it again"
        )
    with closing(Database(path, given)) as database:
        yield database


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
            for block in unpacked_blocks(path):
                plain.write(block)
            plain.flush()
        except OSError as error:
            raise InputError(
                content_code(error),
                f"cannot unpack {path} into {tempfile.gettempdir()}: {error}; set TMPDIR to a folder with space",
            ) from error
        yield Path(plain.name)


def is_of_nvprof(head: "Head") -> bool:
    """Return whether an SQLite database is nvprof's, by its table of texts."""
    named = [table for table in _TEXTS if table.encode() in head.data]
    if not named:  # its pages are far into the file
        with unpacked(head.path) as plain, open_database(plain, head.path) as database:
            named = [table for table in _TEXTS if table in database.tables]
    return named == ["StringTable"]
