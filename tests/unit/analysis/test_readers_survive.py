"""Every registered reader against damaged files: a result or an InputError, soon, and nothing else."""

import gzip
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mutate import count_from_environment, mutations
from support.profiles import sample

from analysis.diagnose.explain import explain
from analysis.open import Source, open_sources
from analysis.readers.registry import READERS, find_reader, read_head
from analysis.render.perfetto import write_perfetto
from common.errors import InputError

SECONDS = 2.0
"""Processor time that one damaged input of a few KB may take."""


@pytest.mark.parametrize("name", READERS)
def test_the_sample_of_a_reader_is_recognised_and_read(name: str, tmp_path: Path) -> None:
    path = sample(name, tmp_path / "sample")
    assert find_reader(read_head(path)) == name and open_sources(path).kinds == (name,)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_a_result_that_can_be_explained_or_an_input_error(name: str, tmp_path: Path) -> None:
    data = sample(name, tmp_path / "sample").read_bytes()
    packed = gzip.compress(data)
    cuts = [packed[:end] for end in range(1, len(packed), max(1, len(packed) // 10))]
    path = tmp_path / "damaged"
    explained = 0
    for number, damaged in enumerate([*mutations(data, count_from_environment(), seed=len(name)), *cuts]):
        path.write_bytes(damaged)
        began = time.process_time()
        try:
            source: Source | None = open_sources(path)
        except InputError as error:
            assert str(error)
            source = None
        assert time.process_time() - began < SECONDS, f"damaged input {number} of {name} took too long"
        if source is not None and explained < 5:
            explained += len(explain(source)) > 0
            if source.timelines:
                write_perfetto(source.timelines, tmp_path / "out.json")
                json.loads((tmp_path / "out.json").read_text())
    assert explained


ODD: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "blank": lambda path: path.write_bytes(b" \n" * 1000),
    "empty gzip": lambda path: path.write_bytes(gzip.compress(b"")),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "junk": lambda path: path.write_bytes(random.Random(1).randbytes(100_000)),
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
