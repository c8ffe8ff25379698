"""Columns decoded from pages must be what SQLite itself gives, for every table, and hostile files must not hang."""

import gzip
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from analysis.readers import sqlite_database
from analysis.readers.columns import MISSING
from analysis.readers.nsys.reader import read
from analysis.readers.sqlite_database import Database, open_database, unpacked
from analysis.readers.sqlite_pages import PageTable, UnusualError, read_blocks
from common.errors import InputError

EDGES = [
    0,
    1,
    -1,
    127,
    128,
    -128,
    -129,
    2**15 - 1,
    -(2**15),
    2**23,
    -(2**23) - 1,
    2**31 - 1,
    -(2**31),
    2**47,
    2**63 - 1,
]


def write(path: Path, script: str, rows: list[tuple[Any, ...]], page_size: int = 4096) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page_size}")
    connection.executescript(script)
    if rows:
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return path


def decoded(path: Path, columns: dict[str, int]) -> dict[str, list[int]]:
    """What the page decoder alone gives."""
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    places = {row[1]: row[0] for row in connection.execute("PRAGMA table_info(t)")}
    connection.close()
    found: dict[str, list[int]] = {name: [] for name in ("rowid", *columns)}
    for block in read_blocks(PageTable(path, root, {name: places[name] for name in columns}, columns)):
        for name in found:
            found[name] += block[name].tolist()
    return found


def queried(path: Path, columns: dict[str, int]) -> dict[str, list[int]]:
    connection = sqlite3.connect(path)
    fields = ", ".join(f"ifnull({name}, {value})" for name, value in columns.items())
    rows = connection.execute(f"SELECT rowid, {fields} FROM t").fetchall()
    connection.close()
    return {name: [row[at] for row in rows] for at, name in enumerate(("rowid", *columns))}


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
@pytest.mark.parametrize("rows", [0, 1, 7, 3000])
def test_pages_give_what_sqlite_gives(tmp_path: Path, page_size: int, rows: int) -> None:
    random_ = random.Random(page_size + rows)
    texts = [None, "", "a", "long " * 8, "longer than a type of one byte can say " * 2]

    def value() -> Any:
        return random_.choice([None, random_.choice(EDGES), random_.randrange(2 ** random_.randrange(1, 63))])

    data = [(value(), random_.choice(texts), 5, value(), 1.5, value()) for _ in range(rows)]
    path = write(tmp_path / "a.db", "CREATE TABLE t (a, name TEXT, b, c INTEGER, d REAL, e)", data, page_size)
    columns = {"a": MISSING, "b": -1, "c": -7, "e": 0}
    assert decoded(path, columns) == queried(path, columns)
    with open_database(path) as database:
        found = database.integers("t", columns)
        assert {name: found[name].tolist() for name in found} == queried(path, columns)
        assert database.problems == []


def test_rows_that_were_deleted_and_numbers_that_are_not_in_sequence_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a, b)", [(n, -n) for n in range(5000)])
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM t WHERE a % 3 = 1")
    connection.execute("INSERT INTO t (rowid, a, b) VALUES (9000, 1, 2), (2000000000000, 3, 4)")
    connection.commit()
    connection.close()
    assert decoded(path, {"a": 0, "b": 0}) == queried(path, {"a": 0, "b": 0})


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("CREATE TABLE t (a, b)", [(1, 2.5)]),
        ("CREATE TABLE t (a, b)", [(1, "12")]),
        ("CREATE TABLE t (a, b)", [(1, b"x")]),
        ("CREATE TABLE t (rowid INTEGER PRIMARY KEY, a, b)", [(-5, 1, 2)]),  # a rowid of 9 bytes
        ("CREATE TABLE t (x, a, b)", [("t" * 9000, 1, 2)]),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b) WITHOUT ROWID", [(1, 2)]),
    ],
)
def test_what_is_unusual_is_left_to_sqlite(tmp_path: Path, script: str, rows: list[tuple[Any, ...]]) -> None:
    path = write(tmp_path / "a.db", script, rows)
    with pytest.raises(UnusualError):
        decoded(path, {"a": 0, "b": 0})


def test_a_table_that_sqlite_must_read_gives_the_same_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a INTEGER PRIMARY KEY, b)", [(4, "12"), (9, None), (11, 7.9)])
    with open_database(path) as database:
        found = database.integers("t", {"a": 0, "b": -1, "none": 5})
    assert [found[name].tolist() for name in ("a", "b", "none")] == [[4, 9, 11], [12, -1, 7], [5, 5, 5]]


def test_a_column_that_was_added_later_has_its_default(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a)", [(1,), (2,)])
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE t ADD COLUMN b DEFAULT 77")
    connection.commit()
    connection.close()
    with open_database(path) as database:
        assert database.integers("t", {"a": 0, "b": 0})["b"].tolist() == [77, 77]


def test_compact_columns_are_narrow_where_all_values_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a, b, c)", [(1, 2**40, 2), (-(2**31), 1, -128)])
    with open_database(path) as database:
        found = database.integers("t", {"a": 0, "b": 0, "c": 0, "none": 300}, compact=True)
    assert [str(found[name].dtype) for name in ("a", "b", "c", "none")] == ["int32", "int64", "int8", "int16"]
    assert found["a"].tolist() == [1, -(2**31)] and found["b"].tolist() == [2**40, 1]


def test_a_compact_column_widens_where_a_late_row_needs_it(tmp_path: Path) -> None:
    rows = [(number, -1) for number in range(200_000)] + [(2**40, 2**31)]
    path = write(tmp_path / "a.db", "CREATE TABLE t (a, b)", rows)
    with open_database(path) as database:
        found = database.integers("t", {"a": 0, "b": 0}, compact=True)
    assert found["a"].tolist() == [row[0] for row in rows] and found["b"].tolist() == [row[1] for row in rows]


KERNELS = 'start, "end", globalPid, deviceId, streamId, demangledName'
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.mark.parametrize(
    "script",
    [
        f'CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS} SELECT i AS start, i AS "end" FROM n;',
        f"CREATE VIEW NVTX_EVENTS AS {ENDLESS} SELECT i AS start, i AS \"end\", 'x' AS text FROM n;",
        f"CREATE VIEW TARGET_INFO_GPU AS {ENDLESS} SELECT i AS id, 'x' AS name FROM n;",
        'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end" AS (length(hex(zeroblob(40000000)))) VIRTUAL);'
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1);",
        'CREATE TABLE "x""; DROP TABLE StringIds; --" (start, "end");',
    ],
)
def test_views_computed_columns_and_sql_in_names_are_never_run(tmp_path: Path, script: str) -> None:
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE StringIds (id, value); CREATE TABLE ANALYSIS_DETAILS (duration);" + script)
    connection.close()
    before = path.read_bytes()
    begin = time.process_time()
    with refused("trace-without-work", path):  # nothing of it was taken for work
        read(path)
    assert time.process_time() - begin < 5 and path.read_bytes() == before


def test_a_tree_whose_branches_share_their_leaves_ends(tmp_path: Path) -> None:
    rows = [(n, n + 1, 7 << 24, 0, 7, 3) for n in range(200_000)]
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(f"CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNELS})")
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    (root,) = connection.execute("SELECT max(rootpage) FROM sqlite_master").fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    page = content[(root - 1) * 4096 : root * 4096]
    assert page[0] == 5  # an interior page
    count = int.from_bytes(page[3:5], "big")
    first = int.from_bytes(page[12:14], "big")
    child = page[first : first + 4]
    for cell in range(count):
        at = (root - 1) * 4096 + int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
        content[at : at + 4] = child
    path.write_bytes(content)
    begin = time.process_time()
    found = read(path)
    assert time.process_time() - begin < 20
    assert sum(len(timeline.kernels) for timeline in found) <= len(content) // 4


def test_rows_beyond_what_the_file_has_room_for_end_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a)", [(0.5,)] * 100)
    with open_database(path) as database:
        monkeypatch.setattr(database, "_bytes", 40)
        assert len(database.integers("t", {"a": 0})["a"]) == 10
        assert "more rows than fit into the file" in database.problems[0]


def test_a_deadline_ends_a_table_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_database, "_SECONDS", -1e9)
    path = write(tmp_path / "a.db", "CREATE TABLE t (a)", [(0.5,)] * 500_000)
    connection = sqlite3.connect(path)
    database = Database(connection, path)
    assert len(database.integers("t", {"a": 0})["a"]) < 500_000
    assert "interrupted" in database.problems[0]
    connection.close()


def test_a_packed_file_is_unpacked_up_to_a_limit_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(sqlite_database, "UNPACKED_BYTES_ALWAYS", 1 << 20)
    path = tmp_path / "a.sqlite.gz"
    path.write_bytes(gzip.compress(b"SQLite format 3\0" + bytes(30 << 20)))
    with refused("file-limit", path, "bytes", "100 times", "gunzip"):
        read(path)
    assert list(temporary.iterdir()) == []


def test_a_packed_file_of_another_kind_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"no database " * 1_000_000))
    with unpacked(path) as plain:
        assert plain.stat().st_size == 4096


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = tmp_path / "a.sqlite.gz"
    path.write_bytes(gzip.compress(b"SQLite format 3\0" + bytes(5 << 20)))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_database, "_unpack", full)
    with refused("disk-full", path, "No space left on device", "TMPDIR", kind=InputError):
        read(path)
    assert list((tmp_path / "temporary").iterdir()) == []
