"""Worker processes that every stage shares: started once, results in the order of the work, the same for any number."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self, TypeVar

from common.errors import UsageError

Work = TypeVar("Work")
Result = TypeVar("Result")
Progress = Callable[[str, int, int | None], None]
"""Called with a stage, the units done, and the units in all (None = not known yet)."""

AHEAD_PER_WORKER = 2
"""Units handed out per worker before the first result is taken: memory does not grow with the work."""


class Workers:
    """`count` processes, or this process alone for 1; a context manager. The processes start with the first work."""

    def __init__(self, count: int) -> None:
        """Raises UsageError if `count` is below 1."""
        if count < 1:
            raise UsageError("option-value", f"--workers {count} must be at least 1")
        self.count = count
        # Not fork: the tokenizer's threads and a caller's torch do not survive it.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker)
        # Ctrl-C, which interrupts the main thread alone, must not find a process half started.
        self._starter = ThreadPoolExecutor(1)
        self._starter.submit(int)  # its thread is there

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the processes; after an error, units at work are not waited for."""
        self._starter.shutdown(cancel_futures=True)
        for process in list((self._pool._processes or {}).values()) if kind is not None else ():
            process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Work], Result], work: Iterable[Work]) -> Iterator[Result]:
        """Yield the result of each unit of work, in order; units are taken from `work` as workers become free.

        Raises UsageError (a worker died or ran out of memory), and what `function` raises.
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
        except (BrokenProcessPool, MemoryError) as error:
            raise UsageError(
                "worker-lost",
                "a worker process ended unexpectedly, most likely out of memory: run the same command again with "
                f"fewer than --workers {self.count}; finished files are kept",
            ) from error

    def _submit(self, function: Callable[[Work], Result], unit: Work) -> Future[Result]:
        try:
            return self._starter.submit(self._pool.submit, function, unit).result()
        except (ValueError, OSError) as error:  # a worker died while another was started: its pipes are closed
            raise BrokenProcessPool(str(error)) from error


def _begin_worker() -> None:
    # Ctrl-C is the parent's; a worker ends with its parent, even when that is killed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
