"""Temporary folders of processes, and what is left of killed ones."""

import os
import tempfile
from pathlib import Path

import pytest

from bench.run.processes import own_folder


def test_a_folder_goes_with_its_process_and_those_of_killed_ones_go_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, begun, fresh, foreign = (tmp_path / name for name in ("mine-a", ".new-mine-b", ".new-mine-c", "other"))
    for folder in (killed, begun, fresh, foreign):
        folder.mkdir()
        (folder / "content").touch()
    (killed / "lock").touch()
    for folder in (begun, foreign):
        os.utime(folder, (0, 0))
    with own_folder("mine-") as first:
        os.utime(first, (0, 0))
        assert first.name.startswith("mine-") and not killed.exists() and not begun.exists()
        with own_folder("mine-") as second:
            assert first.is_dir() and second.is_dir() and first != second
            assert fresh.is_dir() and foreign.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-mine-c", "other"]
