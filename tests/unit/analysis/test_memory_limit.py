"""Reading ends with a message before a trace takes more memory than there is."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from support.profiles import sample
from support.refusals import refused

from analysis.readers import columns
from analysis.readers.columns import Columns
from analysis.readers.kineto.reader import read
from analysis.readers.sqlite_database import open_database
from common import memory


def test_a_trace_is_refused_before_it_takes_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample("kineto", tmp_path / "t.json")
    monkeypatch.setattr(columns, "_ALWAYS_BYTES", 0)
    monkeypatch.setattr(columns, "available_bytes", lambda: 10)
    with refused("file-limit", "t.json", "record fewer steps"):
        read(path)
    for enough in (1 << 30, None):
        monkeypatch.setattr(columns, "available_bytes", lambda free=enough: free)
        assert len(read(path).operators)


def test_a_database_is_refused_before_it_takes_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER NOT NULL)")
        connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    monkeypatch.setattr(columns, "available_bytes", lambda: 10)
    with open_database(path) as database:
        assert database.integers("t", {"a": 0})["a"].tolist() == list(range(1000))  # small ones are always read
        monkeypatch.setattr(columns, "_ALWAYS_BYTES", 0)
        with refused("file-limit", "t.sqlite"):
            database.integers("t", {"a": 0})


def test_columns_know_what_their_rows_take() -> None:
    found = Columns()
    for _ in range(5):
        found.add({"a": np.arange(10, dtype=np.int64), "b": np.zeros(10, dtype=np.int8)})
    assert found.bytes == 50 * 9
    joined = found.joined(a="int64", b="int8", c="int32")
    assert joined["a"].tolist() == list(range(10)) * 5 and (len(joined["b"]), len(joined["c"])) == (50, 0)


def test_the_memory_is_that_of_the_container_where_it_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    monkeypatch.setattr(memory, "_MACHINE", machine)
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    assert memory.available_bytes() == 50 * 1024
    for name, text in (("max", "30000"), ("current", "25000"), ("stat", "anon 1\ninactive_file 4000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.available_bytes() == 30000 - 25000 + 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() == 50 * 1024
    machine.unlink()
    assert memory.available_bytes() is None
