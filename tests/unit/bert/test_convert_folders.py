"""What a killed conversion leaves is removed by the next one to the same folder, and nothing else is."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.bert_folders import loaded, saved, theirs

from bert.checkpoints.conversion import convert
from bert.checkpoints.folder import new_folder

ROOT = Path(__file__).resolve().parents[3]
# A conversion that stands still with half its folder written.
HALTED = """
import sys, time
from pathlib import Path
from bert.checkpoints.folder import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "model.safetensors").write_bytes(b"half")
    print(folder.name, flush=True)
    time.sleep(600)
"""


def halted(destination: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HALTED, str(destination)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, destination.parent / process.stdout.readline().strip()


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_what_a_killed_conversion_left_is_removed_and_what_a_running_one_writes_is_not(tmp_path: Path) -> None:
    source = saved(tmp_path / "src", theirs("BertModel"))
    ended, left = halted(tmp_path / "dst")
    running, written = halted(tmp_path / "dst")
    try:
        ended.send_signal(signal.SIGKILL)
        ended.wait()
        assert hidden(tmp_path) == {left.name, written.name} and left != written
        convert(source, tmp_path / "elsewhere")
        assert hidden(tmp_path) == {left.name, written.name}
        convert(source, tmp_path / "dst")
        assert hidden(tmp_path) == {written.name}
        assert (written / "model.safetensors").read_bytes() == b"half"
        loaded(tmp_path / "dst")
    finally:
        for process in (ended, running):
            process.kill()
            process.communicate()


def test_only_folders_that_a_conversion_to_the_same_place_makes_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("mine")
    kept = (".dst.tmp", ".dst.01234567.tmp.old", "a.dst.01234567.tmp", ".dst.thesis12.tmp", ".dst.x.01234567.tmp")
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".dst.89abcdef.tmp").write_text("a file")
    (tmp_path / ".dst.00000000.tmp").symlink_to(outside)
    (tmp_path / ".dst.01234567.tmp" / "deep").mkdir(parents=True)
    with new_folder(tmp_path / "dst") as folder:
        (folder / "x").write_text("x")
    assert {path.name for path in tmp_path.iterdir()} == {
        *kept, "dst", "outside", ".dst.89abcdef.tmp", ".dst.00000000.tmp",
    }  # fmt: skip
    assert (outside / "thesis.txt").read_text() == "mine"


def test_without_locks_on_folders_nothing_is_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / ".dst.01234567.tmp").mkdir()
    with new_folder(tmp_path / "dst") as folder:
        (folder / "x").write_text("x")
    assert {path.name for path in tmp_path.iterdir()} == {"dst", ".dst.01234567.tmp"}
    assert (tmp_path / "dst" / "x").read_text() == "x"


def test_a_folder_that_is_swept_before_it_is_held_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real = fcntl.flock
    swept: list[Path] = []

    def swept_first(handle: int, operation: int) -> None:
        for path in tmp_path.glob(".dst.*.tmp"):
            if not swept:
                swept.append(path)
                path.rmdir()
        real(handle, operation)

    monkeypatch.setattr("fcntl.flock", swept_first)
    with new_folder(tmp_path / "dst") as folder:
        assert folder not in swept and len(swept) == 1 and folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["dst"]


def test_no_handle_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        with new_folder(tmp_path / f"dst{number}"):
            pass
        with pytest.raises(RuntimeError), new_folder(tmp_path / f"failed{number}"):
            raise RuntimeError
    assert len(list(Path("/proc/self/fd").iterdir())) == before
