"""Opens SQLite exports of Nsight Systems and takes columns out of them, whatever the version left out or added."""

import gzip
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import InputError

Integers = npt.NDArray[np.int64]

MISSING = -(2**63)
"""What `integers` gives for a value that the database does not hold, where no other default was asked for."""

_SQLITE_HEADER = b"SQLite format 3\0"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_OWN_TABLES = ("NVTX_EVENTS", "OSRT_API", "ANALYSIS_DETAILS", "META_DATA_EXPORT", "EXPORT_META_DATA")
# Rows taken at a time.
_BLOCK = 1 << 16
_IDS_PER_QUERY = 500


class NsysDatabase:
    """An open export. Tables and columns that it lacks read as empty and as defaults.

    Attributes:
        tables: columns by table, of all tables but SQLite's own and those of enumerations.
        problems: what could not be read, one sentence each.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read the names of tables and columns. Raises sqlite3.DatabaseError."""
        # Names come from programs and need not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        self._connection = connection
        self.problems: list[str] = []
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        self.tables = {name: self._columns(name) for name in names if not name.startswith(("sqlite_", "ENUM_"))}

    def _columns(self, table: str) -> tuple[str, ...]:
        quoted = table.replace('"', '""')
        return tuple(row[1] for row in self._connection.execute(f'PRAGMA table_info("{quoted}")'))

    def has_rows(self, table: str) -> bool:
        """Return whether a table exists and is not empty."""
        if table not in self.tables:
            return False
        try:
            return self._connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None  # noqa: S608
        except sqlite3.DatabaseError:
            return True

    def integers(self, table: str, columns: Mapping[str, int]) -> dict[str, Integers]:
        """Return columns of whole numbers, in the order of the table, and "rowid" with them.

        Rows go into arrays one by one, never into a list. A damaged table gives the rows before the damage, and a
        problem.

        Args:
            table: table's name.
            columns: column -> value where it is NULL or the table has no such column.
        """
        present = self.tables.get(table, ())
        # What is missing is filled in here: every value that SQLite hands over costs an object.
        taken = [name for name in columns if name in present]
        # CAST: some versions declare no types, and one stray text must not end the reading.
        fields = [f'ifnull(CAST("{name}" AS INTEGER), {columns[name]})' for name in taken]
        dtype = np.dtype([(name, np.int64) for name in ("rowid", *taken)])
        blocks = [np.empty(0, dtype)]
        if present:
            query = f'SELECT {", ".join(["rowid", *fields])} FROM "{table}"'  # noqa: S608 (constants of the readers)
            blocks += self._blocks(query, dtype, table)
        found = {name: np.concatenate([block[name] for block in blocks]) for name in ("rowid", *taken)}
        rows = len(found["rowid"])
        absent = {name: np.full(rows, value, np.int64) for name, value in columns.items() if name not in found}
        return {**found, **absent}

    def _blocks(self, query: str, dtype: np.dtype[np.void], table: str) -> Iterator[npt.NDArray[np.void]]:
        damage: list[sqlite3.DatabaseError] = []
        cursor, rows = self._until_damage(query, damage), 0
        while len(block := np.fromiter(islice(cursor, _BLOCK), dtype)):
            rows += len(block)
            yield block
        if damage:
            self.problems.append(f"{table} is damaged ({damage[0]}): {rows:,} of its rows were read, not the rest")

    def _until_damage(self, query: str, damage: list[sqlite3.DatabaseError]) -> Iterator[tuple[int, ...]]:
        try:
            yield from self._connection.execute(query)
        except sqlite3.DatabaseError as error:
            damage.append(error)

    def texts(self, table: str, column: str) -> tuple[Integers, list[str]]:
        """Return the rowids and values of a column's texts; NULL and empty ones are left out, equal ones shared."""
        rowids: list[int] = []
        values: list[str] = []
        if column in self.tables.get(table, ()):
            shared: dict[str, str] = {}
            query = f'SELECT rowid, CAST("{column}" AS TEXT) FROM "{table}" WHERE "{column}" <> \'\''  # noqa: S608
            try:
                for rowid, value in self._connection.execute(query):
                    rowids.append(rowid)
                    values.append(shared.setdefault(value, value))
            except sqlite3.DatabaseError as error:
                self.problems.append(f"{table}.{column} is damaged ({error}): {len(values):,} of its texts were read")
        return np.array(rowids, dtype=np.int64), values

    def rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
        """Return columns of a small table, None where it lacks one; [] where there is no such table."""
        present = self.tables.get(table, ())
        if not present:
            return []
        fields = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        try:
            return self._connection.execute(f'SELECT {fields} FROM "{table}"').fetchall()  # noqa: S608
        except sqlite3.DatabaseError as error:
            self.problems.append(f"{table} is damaged ({error}) and was left out")
            return []

    def strings(self, ids: Integers) -> dict[int, str]:
        """Return the texts behind ids of the table StringIds; ids without a text are left out."""
        found: dict[int, str] = {}
        if not {"id", "value"} <= set(self.tables.get("StringIds", ())):
            return found
        wanted = [int(value) for value in np.unique(ids)]
        try:
            for first in range(0, len(wanted), _IDS_PER_QUERY):
                some = wanted[first : first + _IDS_PER_QUERY]
                marks = ", ".join("?" * len(some))
                query = f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN ({marks}) AND value <> ''"  # noqa: S608
                found.update(self._connection.execute(query, some))
        except sqlite3.DatabaseError as error:
            self.problems.append(f"StringIds is damaged ({error}): some names are missing")
        return found


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[list[tuple[Any, ...]], npt.NDArray[np.intp]]:
    """Return the distinct rows of equally long columns, and for each row which of them it is. Hashes, never sorts."""
    import pandas as pd

    place = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        codes, values = pd.factorize(column)
        place = pd.factorize(place * max(1, len(values)) + codes)[0]
    first = np.full(int(place.max(initial=-1)) + 1, -1, dtype=np.intp)
    first[place[::-1]] = np.arange(len(place))[::-1]
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), place


@contextmanager
def open_export(path: Path) -> Iterator[NsysDatabase]:
    """Open an export, plain or gzip-compressed, for reading alone.

    Raises:
        InputError: the file cannot be read, is cut short, or is no SQLite export of nsys; the message says what it
            seems to be and what to give instead.
    """
    with _plain(path) as plain:
        _check_header(path, plain)
        # immutable: no lock and no journal, so that a read-only folder does.
        connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            try:
                database = NsysDatabase(connection)
            except sqlite3.DatabaseError as error:
                raise InputError(f"{path} is a damaged database ({error}): copy it or export it again") from error
            _check_tables(path, database)
            yield database
        finally:
            connection.close()


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        if not compressed:
            yield path
            return
        handle, name = tempfile.mkstemp(suffix=".sqlite")
        temporary = Path(name)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    try:
        try:
            # SQLite reads from a file alone; an export can be larger than memory.
            with gzip.open(path) as packed, os.fdopen(handle, "wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"cannot unpack {path} into {temporary.parent}: {error}; the file is damaged or cut short, "
                "or there is no room (TMPDIR names another folder)"
            ) from error
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _check_header(path: Path, plain: Path) -> None:
    with plain.open("rb") as file:
        head = file.read(128)
        size = file.seek(0, os.SEEK_END)
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the export itself: run `git lfs pull`, then try again")
    suffixes = path.suffixes[-2:]
    if head.startswith(b"NVIDIA Tegra Profiler") or any(suffix in _REPORT_SUFFIXES for suffix in suffixes):
        raise InputError(
            f"{path} is a report of nsys, not an export of it: run `nsys export --type=sqlite --output="
            f"{path.name.split('.')[0]}.sqlite {path.name}` with the nsys that recorded it or a newer one, and give "
            "that file"
        )
    if not head.startswith(_SQLITE_HEADER):
        what = "is empty" if not size else "is no SQLite database"
        raise InputError(f"{path} {what}: give what `nsys export --type=sqlite` wrote")
    page_size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = pages * (65536 if page_size == 1 else page_size)
    if size < expected:
        raise InputError(f"{path} is cut short: {size:,} of {expected:,} bytes; copy it or export it again")


def _check_tables(path: Path, database: NsysDatabase) -> None:
    if "StringTable" in database.tables and "StringIds" not in database.tables:
        raise InputError(f"{path} is a database of nvprof, not of nsys: give its CSV (nvprof --csv --print-gpu-trace)")
    known = [name for name in database.tables if name in _OWN_TABLES or name.startswith(("CUPTI_", "TARGET_INFO_"))]
    if not known:
        raise InputError(
            f"{path} is an SQLite database without any table of nsys (NVTX_EVENTS, CUPTI_ACTIVITY_KIND_...): "
            "give what `nsys export --type=sqlite` wrote"
        )
