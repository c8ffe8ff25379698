"""Micro-batches on their way to a model, with the position of the data after the last one that was taken."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from bert.data.batch import Batch
from bert.data.batches import PADDINGS, Batches, DataSpec
from bert.model.config import model_config
from bert.parallel.base import Strategy
from bert.speed import FAST
from bert.tasks import task_data
from common.train_spec import TrainSpec

Adapt = Callable[[Batch], Batch]

POOL = 8
"""Successive micro-batches of a fast step on a GPU that get about the same number of tokens."""
# Of a pool, so that a reader of shards keeps those in memory that a pool is drawn from.
_MOST_SAMPLES = 4096


def data_spec(spec: TrainSpec, strategy: Strategy) -> DataSpec:
    """Return the batches of this rank.

    A fast step computes real tokens alone, so ranks divide a global batch by their work, and a GPU has pools. Rows that
    are padded to the longest of a batch have none: what computes padding would get more of it. The work is that of the
    suite's own model.
    """
    size, world_size = spec.micro_batch_size * strategy.devices_per_rank, strategy.world_size
    fast = spec.step == FAST and not spec.model
    pooled = fast and strategy.device.type == "cuda" and not task_data(spec.task).paddings
    pool = min(POOL, max(1, _MOST_SAMPLES // (size * world_size))) if pooled else 1
    return DataSpec.of(
        spec,
        micro_batch_size=size,
        rank=strategy.rank,
        world_size=world_size,
        padding=spec.padding or PADDINGS[0],
        token_work=model_config(spec).token_work if fast and pool * world_size > 1 else 0,
        pool=pool,
    )


class Feed:
    """Iterates over a stream. For a GPU a thread puts batches into page-locked memory ahead, which takes longer than
    copying them does.

    What was read ahead but not taken does not count for `position`. Close it when done. `adapt` gives a batch the
    tensors that an implementation reads, on the thread that makes it; `most_ahead` batches are read ahead for a GPU.
    """

    def __init__(self, stream: Batches, pinned: bool, adapt: Adapt | None = None, most_ahead: int = 1) -> None:
        self._stream = stream
        self._adapt = adapt
        self._batches = iter(stream)
        self._position = stream.state_dict()
        self._pool = _pinning_thread() if pinned else None
        self._ahead: deque[Future[tuple[Batch, dict[str, Any]]]] = deque()
        self._most_ahead = most_ahead

    @property
    def position(self) -> dict[str, Any]:
        """State of the stream after the last batch that was taken."""
        return dict(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """Return the feed itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next micro-batch, on the CPU."""
        batch, self._position = self._read()
        return batch

    def _read(self) -> tuple[Batch, dict[str, Any]]:
        if self._pool is None:
            return self._take()
        while len(self._ahead) <= self._most_ahead:  # before the first is waited for, so that the thread never idles
            self._ahead.append(self._pool.submit(self._take))
        return self._ahead.popleft().result()

    def _take(self) -> tuple[Batch, dict[str, Any]]:
        batch = next(self._batches)
        batch = batch if self._adapt is None else self._adapt(batch)
        return batch if self._pool is None else batch.pin(), self._stream.state_dict()

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _pinning_thread() -> ThreadPoolExecutor:
    """Return one thread that works on the caller's GPU: a new one would be on the first of the process."""
    begin = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed", initializer=begin)
