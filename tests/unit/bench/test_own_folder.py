"""Temporary folders of processes, and what is left of killed ones."""

import os
import tempfile
from pathlib import Path

import pytest

from bench.own_folder import own_folder


def test_a_folder_goes_with_its_process_and_those_of_killed_ones_go_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, fresh, foreign = tmp_path / "mine-killed", tmp_path / "mine-fresh", tmp_path / "other"
    for folder in (killed, fresh, foreign):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "content").touch()
    for folder in (killed, foreign):
        os.utime(folder, (0, 0))
    with own_folder("mine-") as first:
        os.utime(first, (0, 0))
        with own_folder("mine-") as second:
            assert first.is_dir() and second.is_dir() and first != second
            assert fresh.is_dir() and foreign.is_dir() and not killed.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-fresh", "other"]
