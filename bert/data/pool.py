"""Worker processes that every stage shares: started once, results in the order of the work, the same for any number."""

import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, Self, TypeVar

from common.errors import UsageError

Work = TypeVar("Work")
Result = TypeVar("Result")
Progress = Callable[[str, int, int | None], None]
"""Called with a stage, the units done, and the units in all (None = not known yet)."""

_working: list[bool] = []
AHEAD_PER_WORKER = 2
"""Units handed out per worker before the first result is taken: memory does not grow with the work."""
_WATCH_SECONDS = 0.5
_LOOKS_BEFORE_LOST = 4
"""A worker that has ended is given up where the executor has not said so by then."""


class Workers:
    """`count` processes, or this process alone for 1; a context manager.

    The processes are started by the first `map` and used again by the later ones. Ctrl-C is left to the parent, and a
    worker ends when its parent does, even when that is killed.
    """

    def __init__(self, count: int) -> None:
        """Raises UsageError where `count` is below 1."""
        if count < 1:
            raise UsageError(f"--workers {count} must be at least 1")
        self.count = count
        self._executor: ProcessPoolExecutor | None = None
        self._before: set[multiprocessing.process.BaseProcess] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes; work that has begun is abandoned."""
        if self._executor is None:
            return
        has_lost, results = self._has_lost(), getattr(self._executor, "_result_queue", None)
        self._executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - self._before:
            child.terminate()  # it removes what it was writing
            child.join(5)
            child.kill()
        if has_lost and results is not None:
            # The executor's thread may wait for the rest of a result; now it meets the end of the pipe.
            with suppress(AttributeError, OSError):
                results._writer.close()
        self._executor = None

    def map(self, function: Callable[[Work], Result], work: Iterable[Work]) -> Iterator[Result]:
        """Yield function(unit) for each unit, in order; a few units ahead are at work.

        `function` and the units go to other processes: a function of a module, and picklable values. `work` is drawn
        from lazily, on the caller's thread. What was handed out is worked on even where no more results are taken: the
        executor's own thread may be about to write an error into a future, which one that was cancelled refuses.

        Raises:
            UsageError: a worker died, most likely for lack of memory.
            Whatever `function` raises.
        """
        if self.count == 1:
            yield from map(function, work)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for unit in work:
                waiting.append(self._submit(function, unit))
                if len(waiting) > AHEAD_PER_WORKER * self.count:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        except BrokenProcessPool as error:
            raise UsageError(
                "a worker process ended unexpectedly, most likely for lack of memory: use fewer than "
                f"--workers {self.count}, or more --shards; finished files are kept"
            ) from error

    def _submit(self, function: Callable[[Work], Result], unit: Work) -> "Future[Result]":
        if self._executor is None:
            # Not fork: the tokenizer's threads and a caller's torch do not survive it.
            context = multiprocessing.get_context("spawn")
            self._before = set(multiprocessing.active_children())
            self._executor = ProcessPoolExecutor(self.count, context, initializer=_begin_worker)
        return self._executor.submit(_call, function, unit)

    def _result(self, future: "Future[Result]") -> Result:
        """Wait for a result; of a worker that died while it handed one over the executor itself never knows."""
        looks = 0
        while looks < _LOOKS_BEFORE_LOST:
            try:
                return future.result(timeout=_WATCH_SECONDS)
            except TimeoutError:
                if future.done():
                    return future.result()  # the function's own error
                looks = looks + 1 if self._has_lost() else 0
        raise BrokenProcessPool("a worker ended while it handed over a result")

    def _has_lost(self) -> bool:
        # Its own alone: other pools of this process begin and end meanwhile.
        own = getattr(self._executor, "_processes", None) or {}
        # The executor's thread ends where it gets no memory for another one, and tells nobody.
        thread = getattr(self._executor, "_executor_manager_thread", None)
        return any(child.exitcode is not None for child in list(own.values())) or not (
            thread is None or thread.is_alive()
        )


def _call(function: Callable[[Work], Result], unit: Work) -> Result:
    """Call a function in a worker; where it is told to stop, end the worker once the function has cleaned up."""
    _working.append(True)
    try:
        return function(unit)
    except _Stopped:
        os._exit(1)
    finally:
        _working.clear()


class _Stopped(BaseException):
    """The worker was told to end: passes by what handles errors, and by nothing that cleans up."""


def _stop(number: int, frame: object) -> None:
    # Between two units there is nothing to clean up.
    if not _working:
        os._exit(1)
    raise _Stopped


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, end with it even when it is killed, and use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    with suppress(BaseException):
        parent.join()
    os._exit(1)
