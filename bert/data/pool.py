"""Worker processes that every stage shares: started once, results in the order of the work, the same for any number.

A worker is a process at the other end of a pipe of its own, and takes one unit at a time from a thread of this process.
The pools of the standard library use queues: their named semaphores outlive a kill -9 of all processes, and a worker
that dies while it holds one of their locks stops the others.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from common.errors import UsageError

Work = TypeVar("Work")
Result = TypeVar("Result")
Progress = Callable[[str, int, int | None], None]
"""Called with a stage, the units done, and the units in all (None = not known yet)."""

_working: list[bool] = []
AHEAD_PER_WORKER = 2
"""Units handed out per worker before the first result is taken: memory does not grow with the work."""
_SECONDS_TO_TIDY_UP = 5


class LostWorkerError(Exception):
    """A worker process ended before finishing its work."""


class Workers:
    """`count` processes, or this process alone for 1; a context manager.

    The processes are started by the first `map` and used again by the later ones. Ctrl-C is left to the parent, and a
    worker ends when its parent does, even when that is killed.
    """

    def __init__(self, count: int) -> None:
        """Raises UsageError if `count` is below 1."""
        if count < 1:
            raise UsageError("option-value", f"--workers {count} must be at least 1")
        self.count = count
        self._threads: ThreadPoolExecutor | None = None
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes; work that has begun is abandoned."""
        if self._threads is None:
            return
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.process.terminate()  # it removes what it was writing
        for worker in self._workers:
            worker.process.join(_SECONDS_TO_TIDY_UP)
            worker.process.kill()
            worker.process.join()
        self._threads.shutdown()  # each meets the end of its worker's pipe
        for worker in self._workers:
            worker.connection.close()
        self._threads, self._workers, self._idle = None, [], SimpleQueue()

    def map(self, function: Callable[[Work], Result], work: Iterable[Work]) -> Iterator[Result]:
        """Yield function(unit) for each unit, in order; a few units ahead are at work.

        `function` and the units go to other processes: a function of a module, and picklable values. `work` is drawn
        from lazily, on the caller's thread. What was handed out is worked on even where no more results are taken.

        Raises:
            UsageError: a worker died, most likely out of memory.
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
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except LostWorkerError as error:
            raise UsageError(
                "worker-lost",
                "a worker process ended unexpectedly, most likely out of memory: use fewer than "
                f"--workers {self.count} or more --shards; finished files are kept",
            ) from error

    def _submit(self, function: Callable[[Work], Result], unit: Work) -> "Future[Result]":
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.count)
        if len(self._workers) < self.count:
            worker = _Worker()
            self._workers.append(worker)
            self._idle.put(worker)
        try:
            return self._threads.submit(self._call, function, unit)
        except RuntimeError as error:
            raise LostWorkerError(f"cannot start a worker thread: {error}") from error

    def _call(self, function: Callable[[Work], Result], unit: Work) -> Result:
        worker = self._idle.get()
        try:
            return worker.call(function, unit)
        finally:
            self._idle.put(worker)


class _Worker:
    """One process, idle or at work on one unit."""

    def __init__(self) -> None:
        # Not fork: the tokenizer's threads and a caller's torch do not survive it.
        context = multiprocessing.get_context("spawn")
        self.connection, its = context.Pipe()
        try:
            self.process = context.Process(target=_work, args=(its,), daemon=True)
            self.process.start()
        finally:
            its.close()  # the pipe ends when the process does

    def call(self, function: Callable[[Work], Result], unit: Work) -> Result:
        """Return function(unit), or raise what it raised; LostWorkerError if the process ended instead."""
        work = ForkingPickler.dumps((function, unit))
        try:
            self.connection.send_bytes(work)
            answer = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LostWorkerError("a worker ended before it finished its unit") from error
        done, found = ForkingPickler.loads(answer)
        if not done:
            raise found
        result: Result = found
        return result


def _work(connection: "Connection[Any, Any]") -> None:
    """Answer requests until the parent is gone."""
    _begin_worker()
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _answer(work: bytes) -> memoryview:
    """Return (True, what the function returns) or (False, what it raises), pickled; exit if out of memory."""
    try:
        try:
            function, unit = ForkingPickler.loads(work)
            return ForkingPickler.dumps((True, _call(function, unit)))
        except Exception as error:
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            with suppress(Exception):
                told = ForkingPickler.dumps((False, error))
                ForkingPickler.loads(told)  # some can be written and not read
                return told
            return ForkingPickler.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    except MemoryError:
        os._exit(1)


def _call(function: Callable[[Work], Result], unit: Work) -> Result:
    """Call a function in a worker; on a stop request, end the worker once the function has cleaned up."""
    _working.append(True)
    try:
        return function(unit)
    except _Stopped:
        os._exit(1)
    finally:
        _working.clear()


class _Stopped(BaseException):
    """The worker was asked to end: bypasses error handlers, but not clean-up."""


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
