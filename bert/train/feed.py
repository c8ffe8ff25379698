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
from bert.speed.registry import balances
from common.train_spec import TrainSpec

Adapt = Callable[[Batch], Batch]


def data_spec(spec: TrainSpec, strategy: Strategy) -> DataSpec:
    """Return the batches of this rank."""
    divided = strategy.world_size > 1 and balances(spec)
    return DataSpec.of(
        spec,
        micro_batch_size=spec.micro_batch_size * strategy.devices_per_rank,
        rank=strategy.rank,
        world_size=strategy.world_size,
        padding=spec.padding or PADDINGS[0],
        token_work=model_config(spec).token_work if divided else 0,
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
