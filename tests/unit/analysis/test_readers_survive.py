"""Every registered reader against damaged and hostile files: a result or an InputError, soon, and nothing else."""

import gzip
import importlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.mutate import count_from_environment, mutations
from support.profiles import NSYS, NVVP, kineto, sample, sqlite_with

from analysis.counters import KernelCounters, Summary
from analysis.diagnose.explain import explain
from analysis.readers.registry import FORMS, READERS, find_reader, read_head
from analysis.render.perfetto import write_perfetto
from analysis.sources import open_sources
from analysis.timeline import Timeline
from common.errors import InputError

SECONDS = 2.0
"""Processor time that one damaged input of a few KB may take."""
TYPES = {"timelines": Timeline, "counters": KernelCounters, "summaries": Summary}


def use(path: Path, own: str) -> None:
    """Find a reader and read; also with the sample's own reader, where its damage hides what it is."""
    for module in (lambda: getattr(find_reader(read_head(path)), "module", None), lambda: own_module(own)):
        try:
            found = module()
            if found is not None:
                check(found, found.read(path))
        except InputError as error:
            assert str(error)


def own_module(name: str) -> Any:
    return importlib.import_module(READERS[name])


def check(module: Any, found: Any) -> int:
    assert module.FORM in FORMS
    items = found if isinstance(found, list | tuple) else [found]
    assert all(isinstance(item, TYPES[module.FORM]) for item in items)
    return len(items)


@pytest.mark.parametrize("name", READERS)
def test_the_sample_of_a_reader_is_recognised_and_read(name: str, tmp_path: Path) -> None:
    path = sample(name, tmp_path / "sample")
    reader = find_reader(read_head(path))
    assert reader is not None and reader.name == name
    assert check(reader.module, reader.module.read(path)) > 0


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_a_result_or_an_input_error(name: str, tmp_path: Path) -> None:
    data = sample(name, tmp_path / "sample").read_bytes()
    path = tmp_path / "damaged"
    for number, damaged in enumerate(mutations(data, count_from_environment(), seed=len(name))):
        path.write_bytes(damaged)
        began = time.process_time()
        try:
            use(path, name)
        except Exception as error:
            error.add_note(f"damaged input {number} of {name}")
            raise
        assert time.process_time() - began < SECONDS, f"damaged input {number} of {name} took too long"


@pytest.mark.parametrize("name", READERS)
def test_what_damaged_files_give_can_be_explained_and_exported(name: str, tmp_path: Path) -> None:
    data = sample(name, tmp_path / "sample").read_bytes()
    path = tmp_path / "damaged"
    explained = 0
    for number, damaged in enumerate(mutations(data, max(20, count_from_environment() // 15), seed=100 + len(name))):
        path.write_bytes(damaged)
        try:
            source = open_sources(path)
            explained += len(explain(source)) > 0
            if source.timelines:
                write_perfetto(source.timelines, tmp_path / "out.json")
                json.loads((tmp_path / "out.json").read_text())
        except InputError as error:
            assert str(error)
        except Exception as error:
            error.add_note(f"damaged input {number} of {name}")
            raise
    assert explained


@pytest.mark.parametrize("name", READERS)
def test_packed_files_cut_anywhere_give_a_result_or_an_input_error(name: str, tmp_path: Path) -> None:
    data = gzip.compress(sample(name, tmp_path / "sample").read_bytes())
    path = tmp_path / "cut.gz"
    for end in [*range(20), *range(20, len(data), max(1, len(data) // 20)), len(data) - 1]:
        path.write_bytes(data[:end])
        use(path, name)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "blank": lambda path: path.write_bytes(b" \n" * 1000),
    "empty gzip": lambda path: path.write_bytes(gzip.compress(b"")),
    "truncated gzip": lambda path: path.write_bytes(gzip.compress(kineto().encode())[:-20]),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "junk": lambda path: path.write_bytes(random.Random(1).randbytes(100_000)),
    "text in UTF-16": lambda path: path.write_bytes("nothing of interest\n".encode("utf-16") * 100),
    "deep JSON": lambda path: path.write_text('{"traceEvents": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep list": lambda path: path.write_text("[" * 100_000),
    "one long line": lambda path: path.write_text("a," * 2_000_000),
    "Git LFS pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "empty folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "loop of links": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/null"),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "SQLite header alone": lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(84)),
}


PARTLY_READABLE = ("truncated gzip", "deep JSON")


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind not in PARTLY_READABLE])
@pytest.mark.timeout(20)
def test_files_that_are_no_profile_are_refused_with_their_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    HOSTILE[kind](path)
    with pytest.raises(InputError, match=r"hostile\.json"):
        open_sources(path)


@pytest.mark.parametrize("kind", PARTLY_READABLE)
def test_what_is_partly_readable_is_refused_or_read_with_its_loss(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    HOSTILE[kind](path)
    try:
        problems = open_sources(path).problems
    except InputError as error:
        problems = (str(error),)
    assert problems


def test_a_hostile_name_is_a_name(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>'; DROP TABLE StringIds; --"
    path = tmp_path / "a.json"
    path.write_text(kineto(name))
    (timeline,) = open_sources(path).timelines
    assert set(map(str, timeline.kernels["name"])) == {name}


@pytest.mark.parametrize(("name", "tables"), [("nsys", NSYS), ("nvvp", NVVP)])
def test_sql_in_the_name_of_a_table_is_not_run(name: str, tables: Any, tmp_path: Path) -> None:
    odd = 'x"; DROP TABLE StringIds; DROP TABLE StringTable; --'
    path = tmp_path / "a.sqlite"
    sqlite_with({odd: ("a INTEGER", [(1,)]), **tables})(path)
    before = path.read_bytes()
    assert check(own_module(name), own_module(name).read(path)) == 1 and path.read_bytes() == before


def test_ten_gigabytes_of_zeros_in_ten_megabytes_are_of_no_known_kind(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(100_000_000), 9) * 100)
    began = time.process_time()
    with pytest.raises(InputError, match=r"bomb\.gz"):
        open_sources(path)
    assert time.process_time() - began < SECONDS
