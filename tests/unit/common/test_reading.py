"""Reading files up to a size, and nothing but files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refusals import refused

from common.reading import read_json, read_notes
from records.files import read_record, typed_rows


@pytest.mark.parametrize("read", [read_record, read_json, lambda path: list(typed_rows(path, {}))])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("path-unreadable", tmp_path / "pipe"):
        read(tmp_path / "pipe")
    assert read_notes(tmp_path / "pipe") == {}


@pytest.mark.parametrize("read", [read_record, read_json])
def test_a_sparse_file_is_refused_by_its_size_not_read_whole(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "record.json"
    path.touch()
    os.truncate(path, 2**40)
    with refused("file-limit", path):
        read(path)
