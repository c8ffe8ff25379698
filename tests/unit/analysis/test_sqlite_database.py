"""Columns of SQLite files: values, defaults, and files that are packed, damaged or of another kind."""

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from analysis.readers import sqlite_database
from analysis.readers.nsys.reader import read
from analysis.readers.sqlite_database import open_database, unpacked
from common.errors import InputError


def write(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def test_numbers_of_every_kind_are_whole_numbers(tmp_path: Path) -> None:
    values = (1, -(2**63), 2**63 - 1, "NULL", "'12'", 7.9)
    rows = ", ".join(f"({value}, {place})" for place, value in enumerate(values))
    path = write(tmp_path / "a.db", f"CREATE TABLE t (a, b INTEGER); INSERT INTO t VALUES {rows}")
    with open_database(path) as database:
        columns = database.integers("t", {"a": -5, "b": 0, "none": 300})
        assert {str(values.dtype) for values in columns.values()} == {"int64"}
        assert columns["a"].tolist() == [1, -(2**63), 2**63 - 1, -5, 12, 7]
        assert columns["b"].tolist() == list(range(6)) and columns["none"].tolist() == [300] * 6
        assert [len(values) for values in database.integers("other", {"a": 0}).values()] == [0]


def test_rows_are_in_the_order_of_the_table_also_beside_an_index(tmp_path: Path) -> None:
    rows = ", ".join(f"({-place}, 'text {place}')" for place in range(100))
    script = f"CREATE TABLE t (a, b); CREATE INDEX i ON t (a, b); CREATE INDEX j ON t (b); INSERT INTO t VALUES {rows}"
    with open_database(write(tmp_path / "a.db", script)) as database:
        assert database.integers("t", {"a": 0})["a"].tolist() == [-place for place in range(100)]
        assert database.texts("t", "b") == [f"text {place}" for place in range(100)]
        assert database.texts("t", "c") == []


def test_texts_by_their_ids_leave_out_empty_ones(tmp_path: Path) -> None:
    script = (
        "CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (3, 'a'), (5, ''), (9, NULL), (7, X'FF62')"
    )
    with open_database(write(tmp_path / "a.db", script)) as database:
        assert database.strings() == {3: "a", 7: "\ufffdb"}
        assert database.strings("StringTable", "_id_") == {}


def test_views_are_not_read_and_names_are_no_sql(tmp_path: Path) -> None:
    script = 'CREATE TABLE StringIds (id, value); CREATE TABLE "x""; DROP TABLE StringIds; --" (start, "end");'
    script += (
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    )
    path = write(tmp_path / "a.db", f'{script} SELECT i AS start, i AS "end" FROM n')
    with open_database(path) as database:
        assert set(database.tables) == {"StringIds", 'x"; DROP TABLE StringIds; --'}
        assert len(database.integers("CUPTI_ACTIVITY_KIND_KERNEL", {"start": 0})["start"]) == 0


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
