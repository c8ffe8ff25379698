"""Dumps, tables and databases that would run code, fill memory or read other files are refused."""

import gzip
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.csv_files import colours_and_animals, prepared, write_rows
from support.refusals import refused

from bert.checkpoints.files import read_tensors
from bert.tasks.classify.store import opened
from bert.tasks.glue import tables
from bert.tasks.glue.tables import TASKS, read_hub


def test_a_packed_table_of_glue_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_BYTES", 4 << 20)
    path = tmp_path / "train.tsv"
    path.write_bytes(gzip.compress(b"sentence\tlabel\n" + b"good\t1\n" * (8 << 20)))
    with refused("file-limit", "train.tsv", "4 MiB"):
        tables.read_table(path, TASKS["sst2"], "train")


def test_views_of_a_foreign_database_may_call_no_function_that_touches_the_machine(tmp_path: Path) -> None:
    path = prepared(write_rows(tmp_path / "a.csv", colours_and_animals(20))).source.path
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE left_out RENAME TO kept")
        connection.execute("CREATE VIEW left_out AS SELECT 1 AS line, load_extension('/tmp/evil') AS reason")
    connection.close()
    with opened(path) as database:
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match=r"unsafe use|not authorized|no such function"):
            database.execute("SELECT * FROM left_out").fetchall()


def test_a_release_of_datasets_that_runs_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    old = SimpleNamespace(__version__="3.6.0", load_dataset=lambda *words: asked.append(words))
    monkeypatch.setitem(sys.modules, "datasets", old)
    with refused("tool-version", "datasets 3.6.0", "'datasets>=4'"):
        read_hub("somebody/glue", TASKS["sst2"])
    assert asked == []


def test_what_trainings_save_beside_weights_still_loads(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "size": torch.Size([2]),
               "device": torch.device("cpu"), "half": torch.bfloat16, "list": [1.5, None, ("é", 2)],
               "parameters": dict(model.named_parameters())}  # fmt: skip
    for name, is_zip in (("zip.bin", True), ("old.bin", False)):
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=is_zip)
        assert read_tensors(tmp_path / name).keys() == {"weight", "bias"}
