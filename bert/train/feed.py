"""Micro-batches on their way to the model, with the position of the data behind the last one that was taken."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from bert.data.batch import Batch
from bert.tasks.base import BatchStream


class Feed:
    """Iterates over a stream; for a GPU one batch ahead is put into page-locked memory by a thread.

    What was read ahead but not taken does not count for `position`. Close it when done.
    """

    def __init__(self, stream: BatchStream, pinned: bool) -> None:
        self._stream = stream
        self._batches = iter(stream)
        self._position = stream.state_dict()
        self._pool = pinning_thread() if pinned else None
        self._ahead: Future[tuple[Batch, dict[str, Any]]] | None = None

    @property
    def position(self) -> dict[str, Any]:
        """State of the stream after the last batch that was taken."""
        return dict(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """Itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next micro-batch, on the CPU."""
        if self._pool is None:
            batch, self._position = self._take()
            return batch
        ahead = self._ahead or self._pool.submit(self._take_pinned)
        # Asked for before this one is waited for, so that the thread never idles.
        self._ahead = self._pool.submit(self._take_pinned)
        batch, self._position = ahead.result()
        return batch

    def _take(self) -> tuple[Batch, dict[str, Any]]:
        batch = next(self._batches)
        return batch, self._stream.state_dict()

    def _take_pinned(self) -> tuple[Batch, dict[str, Any]]:
        batch, position = self._take()
        return batch.pin(), position

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def pinning_thread() -> ThreadPoolExecutor:
    """Return one thread that works on the caller's GPU: a new one would be on the first of the process."""
    begin = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed", initializer=begin)
