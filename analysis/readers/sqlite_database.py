"""Opens SQLite files that profilers wrote, plain or gzip-compressed, and takes columns out of them.

The file is not trusted: only tables are read, never views, computed columns or what a trigger would run; long texts and
endless trees of pages end the reading of their table.
"""

import gzip
import os
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.blocks import narrowest
from analysis.readers.columns import Integers, require_memory
from analysis.readers.sqlite_pages import PageTable, UnusualError, read_blocks
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

DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises; the second where a message of SQLite quotes its bytes."""

# Rows taken at a time.
_BLOCK = 1 << 16
_ASKED_EVERY = 16 << 20
_IDS_PER_QUERY = 500
_ROWID = "ifnull(CAST(rowid AS INTEGER), -1)"  # a column of that name may hold anything
_LONGEST_TEXT = 1 << 26
_TEXT = 1 << 16  # characters of a text that are kept
_MOST_TABLES = 5000
_SECONDS = 60.0
_BYTES_PER_SECOND = 1 << 21


class Database:
    """An open database. Tables and columns that it lacks read as empty and as defaults.

    Attributes:
        tables: columns by table, of all tables but SQLite's own and those of enumerations.
        problems: what could not be read, one sentence each.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Read the names of tables and columns. Raises one of DAMAGE."""
        # Names come from programs and need not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        self._connection = connection
        self._path = path
        self._bytes = path.stat().st_size
        # No file takes as long to read; one whose pages form a loop does.
        self._deadline = time.monotonic() + _SECONDS + self._bytes / _BYTES_PER_SECOND
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, 1_000_000)
        self.problems: list[str] = []
        self._roots: dict[str, int] = {}
        self._stored: dict[str, dict[str, int]] = {}
        query = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 1"
        for name, root in connection.execute(query).fetchmany(_MOST_TABLES):
            if isinstance(name, str) and isinstance(root, int) and not name.startswith(("sqlite_", "ENUM_")):
                self._roots[name] = root
                self._stored[name] = self._columns(name)
        self.tables = {name: tuple(columns) for name, columns in self._stored.items()}
        views = "SELECT count(*) FROM sqlite_master WHERE type = 'view' AND substr(name, 1, 6) = 'CUPTI_'"
        if connection.execute(views).fetchone()[0]:
            self.problems.append("tables of the profiler are views in this file, which are not read: export it again")

    def _columns(self, table: str) -> dict[str, int]:
        """Places of the stored columns in a record; -1 where it does not hold the value itself."""
        quoted = table.replace('"', '""')
        found = self._connection.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
        plain = all(hidden == 0 for *_, hidden in found)
        return {
            name: place if plain and not key else -1
            for place, name, _, _, _, key, hidden in found
            if hidden == 0 and isinstance(name, str)
        }

    def has_rows(self, table: str) -> bool:
        """Return whether a table exists and is not empty."""
        if table not in self.tables:
            return False
        try:
            query = f'SELECT 1 FROM "{table}" LIMIT 1'  # noqa: S608 # nosec B608 # constants of the readers
            return self._connection.execute(query).fetchone() is not None
        except DAMAGE:
            return True

    def integers(self, table: str, columns: Mapping[str, int], compact: bool = False) -> dict[str, Any]:
        """Return columns of whole numbers, in the order of the table, and "rowid" with them.

        Decodes the pages itself where they are of the usual kind. A damaged table gives the rows before the damage, and
        a problem.

        Args:
            table: table's name, a constant of the reader.
            columns: column -> value where it is NULL or the table has no such column.
            compact: columns are of the narrowest type that holds their values, and "rowid" is left out.

        Returns:
            Arrays of int64 (compact: int8 to int64), equally long.
        """
        present = self._stored.get(table, {})
        taken = [name for name in columns if name in present]
        names = taken if compact else ["rowid", *taken]
        kept = {name: _Column(compact) for name in names}
        if present:
            asked = {name: columns[name] for name in taken}
            try:
                _fill(kept, self._decoded(table, asked), self._path)
            except UnusualError:
                kept = {name: _Column(compact) for name in names}
                _fill(kept, self._queried(table, asked), self._path)
        found = {name: column.done() for name, column in kept.items()}
        rows = len(next(iter(found.values()), np.empty(0)))
        for name, value in columns.items():
            if name not in found:
                found[name] = np.full(rows, value, narrowest(value, value) if compact else np.int64)
        return found

    def _decoded(self, table: str, columns: Mapping[str, int]) -> Iterator[dict[str, Integers]]:
        places = {name: self._stored[table][name] for name in columns}
        if min(places.values(), default=0) < 0:
            raise UnusualError("a rowid column or computed columns")
        return read_blocks(PageTable(self._path, self._roots[table], places, columns))

    def _queried(self, table: str, columns: Mapping[str, int]) -> Iterator[dict[str, Integers]]:
        """Rows as SQLite gives them, into arrays one by one, never into a list."""
        # CAST: some versions declare no types, and one stray text must not end the reading.
        fields = [f'ifnull(CAST("{name}" AS INTEGER), {default})' for name, default in columns.items()]
        query = f'SELECT {", ".join([_ROWID, *fields])} FROM "{table}"'  # noqa: S608 # nosec B608 # constants
        dtype = np.dtype([(name, np.int64) for name in ("rowid", *columns)])
        damage: list[str] = []
        cursor, rows = self._until_damage(query, damage), 0
        while len(block := np.fromiter(islice(cursor, _BLOCK), dtype)):
            rows += len(block)
            yield {name: block[name] for name in ("rowid", *columns)}
        if damage:
            self.problems.append(f"{table} is damaged ({damage[0]}): only {rows:,} of its rows were read")

    def _until_damage(self, query: str, damage: list[str]) -> Iterator[tuple[Any, ...]]:
        most = self._bytes // 4
        try:
            for number, row in enumerate(self._connection.execute(query)):
                if number >= most:
                    damage.append("it has more rows than fit into the file")
                    return
                yield row
        except DAMAGE as error:
            damage.append(str(error))

    def texts(self, table: str, column: str) -> tuple[Integers, list[str]]:
        """Return the rowids and values of a column's texts; NULL and empty ones are left out, equal ones shared."""
        rowids: list[int] = []
        values: list[str] = []
        if column in self.tables.get(table, ()):
            shared: dict[str, str] = {}
            damage: list[str] = []
            text = f'substr(CAST("{column}" AS TEXT), 1, {_TEXT})'
            query = f'SELECT {_ROWID}, {text} FROM "{table}" WHERE "{column}" <> \'\''  # noqa: S608 # nosec B608 # constants
            for rowid, value in self._until_damage(query, damage):
                rowids.append(rowid)
                values.append(shared.setdefault(value, value))
            if damage:
                said = f"{table}.{column} is damaged ({damage[0]}): only {len(values):,} of its texts were read"
                self.problems.append(said)
        return np.array(rowids, dtype=np.int64), values

    def rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Return columns of a small table, None where it lacks one; [] where there is no such table."""
        present = self.tables.get(table, ())
        if not present:
            return []
        fields = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        damage: list[str] = []
        query = f'SELECT {fields} FROM "{table}"'  # noqa: S608 # nosec B608 # constants
        found = list(self._until_damage(query, damage))
        if damage:
            self.problems.append(f"{table} is damaged ({damage[0]}) and was skipped")
            return []
        return found

    def strings(self, ids: Numbers, table: str = "StringIds", key: str = "id") -> dict[int, str]:
        """Return the texts behind ids of a table of texts (columns `key` and value); ids without one are left out."""
        found: dict[int, str] = {}
        if not {key, "value"} <= set(self.tables.get(table, ())):
            return found
        wanted = [int(value) for value in np.unique(ids)]
        damage: list[str] = []
        text = f"substr(CAST(value AS TEXT), 1, {_TEXT})"
        query = f"SELECT {key}, {text} FROM {table} WHERE value <> ''"  # noqa: S608 # nosec B608 # constants
        if len(wanted) > 20 * _IDS_PER_QUERY:
            among = set(wanted)
            found.update(row for row in self._until_damage(query, damage) if row[0] in among)
        else:
            for first in range(0, len(wanted), _IDS_PER_QUERY):
                some = ", ".join(map(str, wanted[first : first + _IDS_PER_QUERY]))
                found.update(self._until_damage(f"{query} AND {key} IN ({some})", damage))
        if damage:
            self.problems.append(f"{table} is damaged ({damage[0]}): some names are missing")
        return found


class _Column:
    """One column that grows in place: parts that are joined at the end would take twice the memory."""

    def __init__(self, compact: bool) -> None:
        self._values: Numbers = np.empty(0, dtype=np.int8 if compact else np.int64)
        self._rows = 0

    def add(self, values: Integers) -> None:
        rows = self._rows + len(values)
        if self._values.dtype != np.int64 and len(values):
            kind = np.promote_types(self._values.dtype, narrowest(int(values.min()), int(values.max())))
            self._values = self._values.astype(kind, copy=False)
        if rows > len(self._values):
            self._values.resize(rows + rows // 8, refcheck=False)
        self._values[self._rows : rows] = values
        self._rows = rows

    @property
    def bytes(self) -> int:
        """What the rows take."""
        return self._rows * self._values.itemsize

    def done(self) -> Numbers:
        self._values.resize(self._rows, refcheck=False)
        return self._values


def _fill(columns: Mapping[str, _Column], blocks: Iterator[dict[str, Integers]], path: Path) -> None:
    asked = 0
    for block in blocks:
        for name, column in columns.items():
            column.add(block[name])
        size = sum(column.bytes for column in columns.values())
        if size > asked + _ASKED_EVERY:  # how much memory there is takes reading several files
            require_memory(path, size)
            asked = size


@contextmanager
def open_database(path: Path, given: Path | None = None) -> Iterator[Database]:
    """Open an SQLite database for reading alone.

    Args:
        path: the database, unpacked.
        given: the file that the user gave, for messages; `path` itself where it is not said.

    Raises:
        InputError: its tables cannot be listed.
    """
    # immutable: no lock and no journal, so that a read-only folder does.
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        try:
            database = Database(connection, path)
        except DAMAGE as error:
            raise InputError(
                "file-damaged", f"{given or path} is a damaged database ({error}): copy it or export it again"
            ) from error
        yield database
    finally:
        connection.close()


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the file itself, or, where it is gzip-compressed, what it holds as a temporary file.

    Raises:
        InputError: it cannot be read, is damaged, or unpacks to more than the limit.
    """
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
