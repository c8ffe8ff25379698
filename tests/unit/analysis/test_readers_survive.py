"""Every registered reader against damaged files: a result or an InputError, soon, and nothing else."""

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.profiles import sample

from analysis.readers.registry import READERS, find_reader, read_head
from analysis.sources import open_sources
from common.errors import InputError

"""Processor time that one damaged input of a few KB may take."""


@pytest.mark.parametrize("name", READERS)
def test_the_sample_of_a_reader_is_recognised_and_read(name: str, tmp_path: Path) -> None:
    path = sample(name, tmp_path / "sample")
    assert find_reader(read_head(path)) == name and open_sources(path).kinds == (name,)


ODD: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "blank": lambda path: path.write_bytes(b" \n" * 1000),
    "empty gzip": lambda path: path.write_bytes(gzip.compress(b"")),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "junk": lambda path: path.write_bytes(random.Random(1).randbytes(100_000)),
    "text in UTF-16": lambda path: path.write_bytes("nothing of interest\n".encode("utf-16") * 100),
    "one long line": lambda path: path.write_text("a," * 2_000_000),
    "Git LFS pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "empty folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "loop of links": lambda path: path.symlink_to(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "SQLite header alone": lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(84)),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.timeout(20)
def test_files_that_are_no_profile_are_refused_with_their_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    ODD[kind](path)
    with pytest.raises(InputError, match=r"odd\.json"):
        open_sources(path)
