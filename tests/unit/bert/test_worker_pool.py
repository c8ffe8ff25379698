"""What becomes of a worker that dies at the worst moment."""

import os
import signal
import struct
import sys
import time

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
