"""Columns that go from process to process through memory without a name."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refused
from support.squad_columns import dataset, make, paragraph, question, small_vocabulary

from bert.data.columns import write_columns
from bert.data.pool import LostWorkerError
from bert.data.stages import Counts
from bert.tasks.squad import prepare, unit
from bert.tasks.squad.reading import Place, RawParagraph, parse, read_dataset, together
from bert.tasks.squad.unit import Part, Unit
from common.errors import StorageError

needs_memory = pytest.mark.skipif(not unit.shares_memory(), reason="no anonymous files on this system")


def rows(tmp_path: Path, count: int) -> Path:
    return dataset(
        tmp_path / "train.json",
        *(paragraph(f"{n} a b c", question(f"q{n}", "what is it?", ("a", len(str(n)) + 1))) for n in range(count)),
    )


@needs_memory
def test_columns_written_by_another_process_are_read_without_a_file_of_a_name(tmp_path: Path) -> None:
    writer = (
        "import sys; import numpy as np; from bert.tasks.squad import unit;"
        "from bert.data.columns import write_columns\n"
        "shared, file = unit.new_shared_file()\n"
        "with file: write_columns(file, {'x': [np.arange(5)]}, {})\n"
        "print(shared.process, shared.descriptor, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdin
        shared = unit.SharedFile(*map(int, child.stdout.readline().split()))
        part = prepare.received(Part(0, shared, (), Counts()))
        child.stdin.close()
        child.wait(60)
    assert isinstance(part.columns, dict)
    assert part.columns["x"].tolist() == list(range(5)), "they outlive the process that wrote them"
    with pytest.raises(LostWorkerError):
        prepare.received(Part(0, shared, (), Counts()))


def test_without_such_memory_the_columns_come_with_the_part_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, vocab = rows(tmp_path, 40), small_vocabulary(tmp_path)
    monkeypatch.setattr(prepare, "LEAST_UNIT_BYTES", 1000)
    first = make(source, vocab, tmp_path / "memory", split="training", workers=2)
    monkeypatch.delattr("os.memfd_create", raising=False)
    assert not unit.shares_memory()
    second = make(source, vocab, tmp_path / "pipe", split="training", workers=2)
    assert first.features.read_bytes() == second.features.read_bytes()


def test_a_file_of_any_size_has_a_bounded_number_of_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs = read_dataset(rows(tmp_path, 100)).paragraphs
    monkeypatch.setattr(prepare, "LEAST_UNIT_BYTES", 1)
    monkeypatch.setattr(prepare, "MOST_UNIT_BYTES", 1)
    monkeypatch.setattr(prepare, "MOST_UNITS", 10)
    runs = list(prepare.cut(paragraphs, 2))
    assert 5 <= len(runs) <= 11
    assert [one for run in runs for one in run] == list(paragraphs)


def test_paragraphs_together_are_parsed_as_each_alone(tmp_path: Path) -> None:
    paragraphs: tuple[RawParagraph, ...] = read_dataset(rows(tmp_path, 7)).paragraphs
    places = [one.place for one in paragraphs]
    assert places[6] == Place(1, places[0].title, 7)
    every = parse(tmp_path, places, together(paragraphs))
    alone = [parse(tmp_path, [one.place], together([one]))[0] for one in paragraphs]
    assert every == alone and [paragraph.context for paragraph in every][6] == "6 a b c"


@needs_memory
def test_a_part_written_into_memory_is_what_was_written(tmp_path: Path) -> None:
    shared, file = unit.new_shared_file()
    with file:
        write_columns(file, {"x": [np.arange(3)], "y": [np.zeros(0, np.uint8)]}, {})
    part = prepare.received(Part(0, shared, (), Counts()))
    assert isinstance(part.columns, dict)
    assert part.columns["x"].tolist() == [0, 1, 2] and len(part.columns["y"]) == 0


@needs_memory
def test_a_worker_without_descriptors_sends_the_columns_back_with_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    source, vocab = rows(tmp_path, 3), small_vocabulary(tmp_path)
    whole = make(source, vocab, tmp_path / "whole", split="training")
    kept: list[object] = []

    make_and_keep = prepare.make_and_keep

    def keep(unit: Unit, place: prepare.Place) -> Part:
        with monkeypatch.context() as context:
            context.setattr("os.memfd_create", failing)
            part = make_and_keep(unit, "memory")
        kept.append(part.columns)
        return part

    monkeypatch.setattr(prepare, "make_and_keep", keep)
    again = make(source, vocab, tmp_path / "again", split="training")
    assert kept and all(isinstance(columns, dict) for columns in kept)
    assert whole.features.read_bytes() == again.features.read_bytes()


@needs_memory
def test_memory_that_is_used_up_while_it_is_written_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = os.memfd_create

    def created(name: str) -> int:
        made.append(create(name))
        return made[-1]

    def full(*given: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("os.memfd_create", created)
    monkeypatch.setattr(prepare, "write_columns", full)
    assert prepare._in_memory({"x": [np.arange(3)]}) is None
    with pytest.raises(OSError) as closed:
        os.fstat(made[0])
    assert closed.value.errno == errno.EBADF


@needs_memory
def test_only_a_worker_that_is_gone_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(prepare, "map_columns", failing)
    alive = Part(0, unit.SharedFile(os.getpid(), 1), (), Counts())
    with refused("path-unreadable", "Too many open files", "--workers", "ulimit -n", kind=StorageError):
        prepare.received(alive)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LostWorkerError):
            prepare.received(Part(0, unit.SharedFile(child.pid, 5), (), Counts()))
