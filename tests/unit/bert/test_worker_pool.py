"""What becomes of a worker that dies at the worst moment."""

import multiprocessing
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Generator
from typing import cast

import pytest
from support.refusals import refused

from bert.data.pool import Workers


def die_half_way(unit: int) -> int:
    """Hand over the beginning of a large result, and die as by kill -9."""
    if unit != 1:
        return unit
    frame = sys._getframe()
    while "connection" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["connection"].fileno(), struct.pack("!i", 1_000_000) + b"x" * 100)
    os.kill(os.getpid(), signal.SIGKILL)
    return unit


def raise_timeout(unit: int) -> int:
    raise TimeoutError(f"the function's own, of unit {unit}")


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_in_the_middle_of_its_result_is_told_and_not_waited_for() -> None:
    began = time.monotonic()
    with refused("worker-lost", "--workers 2"), Workers(2) as workers:
        list(workers.map(die_half_way, range(8)))
    assert time.monotonic() - began < 30
    with Workers(2) as workers:
        assert list(workers.map(abs, range(3))) == [0, 1, 2], "the next pool is not disturbed"


def test_a_function_that_raises_a_timeout_is_no_lost_worker() -> None:
    with pytest.raises(TimeoutError, match="own, of unit 0"), Workers(2) as workers:
        list(workers.map(raise_timeout, range(2)))


def wait_a_little(unit: int) -> int:
    time.sleep(0.2)
    return unit


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_results_that_nobody_takes_do_not_disturb_the_pool() -> None:
    with Workers(2) as workers:
        results = cast("Generator[int, None, None]", workers.map(wait_a_little, range(9)))
        assert next(results) == 0
        results.close()
        assert list(workers.map(abs, range(-3, 0))) == [3, 2, 1]
        processes = multiprocessing.active_children()
        assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)


@pytest.mark.timeout(60)
def test_a_pool_that_gets_no_thread_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with refused("worker-lost", "--workers 2"), Workers(2) as workers:
        monkeypatch.setattr("threading.Thread.start", refuse)
        list(workers.map(abs, range(-3, 3)))
    monkeypatch.undo()
    assert multiprocessing.active_children() == []


class UnreadableError(Exception):
    """Can be pickled, and not read again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def raise_unreadable(unit: int) -> int:
    raise UnreadableError("what happened", "")


def no_result(unit: int) -> Callable[[], int]:
    return lambda: unit


def raise_end_of_file(unit: int) -> int:
    raise EOFError(f"the function's own, of unit {unit}")


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (raise_unreadable, RuntimeError, "UnreadableError: what happened"),
        (no_result, Exception, "pickle"),
        (raise_end_of_file, EOFError, "own, of unit 0"),
    ],
)
def test_errors_of_every_kind_come_back_with_where_they_were_raised(
    function: Callable[[int], object], error: type[Exception], said: str
) -> None:
    with Workers(2) as workers:
        with pytest.raises(error, match=said) as found:
            list(workers.map(function, range(2)))
        assert list(workers.map(abs, [-1])) == [1], "the worker goes on"
    if error is EOFError:
        assert "raise_end_of_file" in "".join(found.value.__notes__)


def test_large_units_and_results_pass_both_ways() -> None:
    """Larger than a pipe holds: neither side may wait for the other."""
    units = [bytes([number]) * 3_000_000 for number in range(6)]
    with Workers(2) as workers:
        assert list(workers.map(bytes, units)) == units


def test_nothing_is_named_that_outlives_a_kill_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a named semaphore")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    with Workers(3) as workers:
        assert list(workers.map(abs, range(-9, 0))) == list(range(9, 0, -1))
