"""What becomes of a worker that dies at the worst moment."""

import os
import signal
import struct
import sys
import time
from collections.abc import Generator
from typing import cast

import pytest

from bert.data.pool import Workers
from common.errors import UsageError


def die_half_way(unit: int) -> int:
    """Hand over the beginning of a large result, and die as by kill -9."""
    if unit != 1:
        return unit
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1_000_000) + b"x" * 100)
    os.kill(os.getpid(), signal.SIGKILL)
    return unit


def raise_timeout(unit: int) -> int:
    raise TimeoutError(f"the function's own, of unit {unit}")


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_in_the_middle_of_its_result_is_told_and_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="a worker process ended unexpectedly"), Workers(2) as workers:
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
def test_results_nobody_takes_do_not_disturb_the_executor_that_ends() -> None:
    with Workers(2) as workers:
        results = cast("Generator[int, None, None]", workers.map(wait_a_little, range(9)))
        assert next(results) == 0
        executor = workers._executor
        assert executor is not None
        pending = [item.future for item in executor._pending_work_items.values()]
        results.close()
        assert pending and not any(future.cancelled() for future in pending)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_executor_whose_thread_gets_no_memory_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(queue: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("multiprocessing.queues.Queue._start_thread", refuse)
    with pytest.raises(UsageError, match="lack of memory"), Workers(2) as workers:
        list(workers.map(abs, range(-3, 3)))
