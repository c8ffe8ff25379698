"""Worker processes: results in order, errors of the work, a worker that dies."""

import os
import signal
import time

import psutil
import pytest
from support.refusals import refused

from bert.data.pool import Workers


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
