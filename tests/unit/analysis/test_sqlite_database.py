"""Columns of SQLite files: values, defaults, texts, and packed files."""

import sqlite3
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.readers.sqlite_database import open_database


def write(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


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


def test_a_damaged_page_is_refused_in_the_words_of_sqlite(tmp_path: Path) -> None:
    rows = ", ".join(f"({place})" for place in range(5000))
    path = write(tmp_path / "a.db", f"CREATE TABLE t (a); INSERT INTO t VALUES {rows}")
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 4 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with refused("file-damaged", path, "malformed"), open_database(path) as database:
        database.integers("t", {"a": ("a", 0)})
