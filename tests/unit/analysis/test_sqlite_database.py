"""Columns of SQLite files: values, defaults, texts, and packed files."""

import gzip
import sqlite3
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.readers.sqlite_database import open_database, unpacked
from analysis.timeline import MISSING


def write(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def test_numbers_of_every_kind_are_whole_numbers(tmp_path: Path) -> None:
    values = (1, -(2**63), 2**63 - 1, "NULL")
    rows = ", ".join(f"({value}, {place}, {'NULL' if place else 3})" for place, value in enumerate(values))
    path = write(tmp_path / "a.db", f"CREATE TABLE t (a, b INTEGER, c); INSERT INTO t VALUES {rows}")
    with open_database(path) as database:
        columns = {"a": ("a", -5), "b": ("b", 0), "c": ("c", -1), "none": ("lacking", MISSING)}
        read = database.integers("t", columns)
        assert read["a"].tolist() == [1, -(2**63), 2**63 - 1, -5] and read["b"].tolist() == list(range(4))
        assert read["c"].tolist() == [3, *[-1] * 3] and read["none"].tolist() == [MISSING] * 4
        assert [str(values.dtype) for values in read.values()] == ["int64", "int32", "int32", "int64"]
        assert [len(values) for values in database.integers("other", {"a": ("a", 0)}).values()] == [0]


@pytest.mark.parametrize("removed", ["0", "number = 70000", "number % 1000 < 999"])
def test_large_tables_are_read_in_order_with_and_without_holes(tmp_path: Path, removed: str) -> None:
    rows = "WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < 199999) SELECT n, -n FROM r"
    script = f"CREATE TABLE t (number, other); INSERT INTO t {rows}; DELETE FROM t WHERE {removed}"
    path = write(tmp_path / "a.db", script)
    connection = sqlite3.connect(path)
    expected = connection.execute("SELECT number, other FROM t ORDER BY rowid").fetchall()
    connection.close()
    with open_database(path) as database:
        read = database.integers("t", {"number": ("number", 0), "other": ("other", 0)})
    assert list(zip(read["number"].tolist(), read["other"].tolist(), strict=True)) == expected


def test_a_file_is_only_read(tmp_path: Path) -> None:
    # SQLite writes files beside a database with this journal on reading it.
    script = "PRAGMA journal_mode=WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)"
    (tmp_path / "folder").mkdir()
    path = write(tmp_path / "folder" / "with ?#% in it.sqlite", script)
    before = path.read_bytes()
    path.parent.chmod(0o500)
    try:
        with open_database(path) as database:
            assert database.integers("t", {"a": ("a", 0)})["a"].tolist() == [1]
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]
    path.write_bytes(before[:5000])
    with refused("file-truncated", path, "5,000"), open_database(path):
        pass


def test_a_packed_file_is_unpacked_for_a_while(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    packed = tmp_path / "a.db.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with unpacked(packed) as plain, open_database(plain, packed) as database:
        assert database.rows("t", "a") == [(1,)] and database.rows("u", "a") == []
    assert not plain.exists()
    packed.write_bytes(packed.read_bytes()[:-20])
    with refused("file-truncated", packed), unpacked(packed):
        pass


def test_a_damaged_page_is_refused_in_the_words_of_sqlite(tmp_path: Path) -> None:
    rows = ", ".join(f"({place})" for place in range(5000))
    path = write(tmp_path / "a.db", f"CREATE TABLE t (a); INSERT INTO t VALUES {rows}")
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 4 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with refused("file-damaged", path, "malformed"), open_database(path) as database:
        database.integers("t", {"a": ("a", 0)})
