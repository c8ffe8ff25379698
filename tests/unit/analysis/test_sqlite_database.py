"""Columns of SQLite files: values, defaults, texts, and packed files."""

import gzip
import sqlite3
from pathlib import Path

from support.refusals import refused

from analysis.readers.sqlite_database import open_database, unpacked


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


def test_texts_by_their_ids_leave_out_empty_ones(tmp_path: Path) -> None:
    for table, key in (("StringIds", "id"), ("StringTable", "_id_")):
        script = f"CREATE TABLE {table} ({key}, value); INSERT INTO {table} VALUES (3, 'a'), (5, ''), (9, NULL)"
        with open_database(write(tmp_path / f"{table}.db", script)) as database:
            assert database.strings == {3: "a"}
    with open_database(write(tmp_path / "none.db", "CREATE TABLE t (a)")) as database:
        assert database.strings == {}


def test_a_packed_file_is_unpacked_for_a_while(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    packed = tmp_path / "a.db.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with unpacked(packed) as plain, open_database(plain, packed) as database:
        assert database.has_rows("t") and not database.has_rows("u")
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
        database.integers("t", {"a": 0})
