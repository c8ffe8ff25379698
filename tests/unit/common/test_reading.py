"""Reading a bounded part of a file, and nothing but a file."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refusals import refused

from bert.checkpoints.tensor_files import read_tensors
from common.json_file import read_json
from common.reading import read_at_most, read_notes
from records.files import read_record, typed_rows


@pytest.mark.parametrize(("most", "length"), [(0, 1), (99, 100), (100, 100), (10**15, 100)])
def test_one_byte_more_than_the_most_is_read_and_memory_only_for_what_is_there(most: int, length: int) -> None:
    content = bytes(range(100))
    assert read_at_most(io.BytesIO(content), most) == content[:length]


def test_memory_is_asked_for_in_small_pieces() -> None:
    asked: list[int] = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    assert read_at_most(Watched(b"abc"), 2**40) == b"abc"
    assert max(asked) <= 2**23


@pytest.fixture
def endless(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A path that names a pipe that nobody writes to, or a device that never ends."""
    path = tmp_path / "file"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("endless", ["pipe", "device"], indirect=True)
@pytest.mark.parametrize("read", [read_record, read_json, lambda path: list(typed_rows(path, {})), read_tensors])
def test_what_is_no_regular_file_is_refused(endless: Path, read: Callable[[Path], object]) -> None:
    with refused("path-unreadable", endless, "regular"):
        read(endless)


def test_a_sparse_file_is_refused_by_its_size_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.touch()
    os.truncate(path, 2**40)
    for read in (read_record, read_json):
        with refused("file-limit", path):
            read(path)


def test_notes_that_are_no_regular_file_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_notes(tmp_path / "pipe") == {}
