"""Finished stages are kept and found again; worker processes give results in order, errors, and may die."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.refusals import refused

from bert.data.finished import Counts, Finished, Stage
from bert.data.pool import Workers
from common.errors import UsageError


def die(unit: int) -> int:
    if unit == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def out_of_memory(unit: int) -> int:
    raise MemoryError


def process_of(unit: int) -> int:
    time.sleep(0.2)
    return os.getpid()


@pytest.mark.timeout(120)
def test_a_worker_that_dies_is_one_error_and_the_next_pool_is_not_disturbed() -> None:
    for function in (die, out_of_memory):
        with refused("worker-lost", "--workers 2"), Workers(2) as workers:
            list(workers.map(function, range(8)))
    with Workers(2) as workers:
        assert list(workers.map(abs, range(-3, 0))) == [3, 2, 1]


def test_no_process_is_left_after_an_interruption_and_units_at_work_are_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        processes = set(workers.map(process_of, range(6)))
        next(workers.map(time.sleep, [0, 100, 100]))
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60 and len(processes) == 2
    assert not any(map(psutil.pid_exists, processes))


def test_one_worker_is_the_process_itself() -> None:
    with Workers(1) as workers:
        assert set(workers.map(process_of, range(2))) == {os.getpid()}
    with refused("option-value", "--workers 0"):
        Workers(0)


@dataclass(frozen=True)
class Letter:
    name: str
    size: int = 2


def stage(path: Path, source: str = "input", **settings: object) -> Stage:
    return Stage(path, "letters", 1, settings, source)


def write(unit: Letter, path: Path) -> Counts:
    if unit.name == "x":
        raise UsageError("option-value", "no x")
    path.write_text(unit.name)
    return Counts({"letters": 2}, {"letters": [unit.name]})


def make(folder: Stage, names: Sequence[str], workers: int = 1, calls: list[object] | None = None) -> Finished:
    with Workers(workers) as pool:
        seen = [] if calls is None else calls
        return folder.make(write, map(Letter, names), pool, lambda *call: seen.append(call), 2 * len(names), Counts())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_finished_stage_is_found_again_with_its_counts(tmp_path: Path, workers: int) -> None:
    assert stage(tmp_path).finished() is None
    calls: list[object] = []
    done = make(stage(tmp_path), "ba", workers, calls)
    assert calls[0] == ("letters", 0, 4) and calls[-1] == ("letters", 4, 4)
    assert done == stage(tmp_path).finished()
    assert [file.read_text() for file in done.files] == ["b", "a"]
    assert (done.counts.get("letters"), done.counts.names["letters"]) == (4, ["b", "a"])


def test_what_is_whole_is_kept_and_the_rest_made(tmp_path: Path) -> None:
    with refused("option-value", "no x"):
        make(stage(tmp_path), "abx")
    written = (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / ".c.5v3hkxvo.tmp").write_text("half")  # of a run that was killed
    assert stage(tmp_path).finished() is None
    done = make(stage(tmp_path), "abc")
    assert (tmp_path / "a").stat().st_mtime_ns == written and not [*tmp_path.glob("*.tmp")]
    assert done.counts.get("letters") == 6
    (tmp_path / "b").unlink()
    assert stage(tmp_path).finished() is None and make(stage(tmp_path), "abc") == done
