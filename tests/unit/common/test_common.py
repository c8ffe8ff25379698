"""Atomic writes, registries."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.refusals import refused

from common.atomic import atomic_path, check_writable, remove_left_overs, write_text
from common.registry import load, lookup


def test_a_failed_write_keeps_the_old_content_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_killed_processes_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        with atomic_path(tmp_path / "result.json"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    others = [".result.json", "mine.tmp", ".note.tmp", ".a.tmp.bak"]
    for name in others:
        (tmp_path / name).touch()
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    remove_left_overs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    remove_left_overs(tmp_path / "absent")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_a_storage_error_and_the_old_content_stays(tmp_path: Path) -> None:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        write_text(tmp_path / "kept", "old")
        with refused("disk-full", tmp_path / "kept"):
            write_text(tmp_path / "kept", "x" * 200_000)
        assert (tmp_path / "kept").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_folder_is_tried_before_something_is_made_for_it_and_left_as_it_was(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    check_writable(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"] and list((tmp_path / "mine").iterdir()) == []
    (tmp_path / "file").write_text("")
    with refused("write-failed", tmp_path / "file" / "folder"):
        check_writable(tmp_path / "file" / "folder" / "inner")
    with refused("write-failed", "/proc/bertbench"):
        check_writable(Path("/proc/bertbench"))


def test_a_file_written_over_a_link_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "result.json").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "result.json", "x")
    assert (tmp_path / "mine").read_text() == "precious" and not (tmp_path / "result.json").is_symlink()


def test_an_unknown_name_lists_the_choices_and_a_known_one_is_imported() -> None:
    with refused("option-choice", "preset", "'bas'", "base, large"):
        lookup({"base": 1, "large": 2}, "bas", "preset")
    assert load({"path": "pathlib:Path"}, "path", "class") is Path
