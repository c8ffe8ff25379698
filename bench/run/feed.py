"""Batches on their way to an implementation: given the tensors it reads and, for a GPU, put into pinned memory."""

from collections.abc import Callable, Iterator

from bert.data.batch import Batch
from bert.train.feed import pinning_thread


def feed(batches: Iterator[Batch], adapt: Callable[[Batch], Batch], pinned: bool) -> Iterator[Batch]:
    """Yield adapted batches; pinned ones are made one ahead in a thread, because pinning takes longer than copying.

    On a CPU they are adapted on the caller's thread; a source that reads files may read ahead in one of its own.
    """
    if not pinned:
        yield from map(adapt, batches)
        return

    def make() -> Batch | None:
        batch = next(batches, None)
        return None if batch is None else adapt(batch).pin()

    with pinning_thread() as pool:
        ahead = pool.submit(make)
        while (batch := ahead.result()) is not None:
            ahead = pool.submit(make)
            yield batch
