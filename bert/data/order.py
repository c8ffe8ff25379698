"""The order in which samples are trained on, and which rank computes which. Imports no torch."""

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from bert.data.rows import Int64

# What a permutation is of; the numbers tell the random streams apart.
_SHARDS, _SAMPLES = 1, 2
# A FLOP of attention takes this much of the time of a FLOP of the linear layers, on CPUs and GPUs alike. The division
# hardly depends on it: attention is a tenth of the work of 254 tokens in a large model.
_ATTENTION_COST = 3


class SampleOrder:
    """An endless stream of the samples of shards, the same on every rank, any position reached directly.

    Epoch after epoch the shards come in an order shuffled by (seed, epoch), the samples of each in an order shuffled by
    (seed, epoch, shard).

    Args:
        counts: samples of each shard [shards], at least one in all.
        seed: of the order.
    """

    def __init__(self, counts: Int64, seed: int) -> None:
        self._counts = counts
        self._total = int(counts.sum())
        self._shuffled = lru_cache(maxsize=8)(partial(_shuffled, abs(seed)))
        self._shards = lru_cache(maxsize=4)(self._shards_of)

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, Int64]]:
        """Yield (shard, rows of its samples) for samples start .. stop - 1 of the stream."""
        while start < stop:
            shard, begin, end = self.piece(start)
            last = min(stop, end)
            samples = self._shuffled(end - begin, _SAMPLES, start // self._total, shard)
            yield shard, samples[start - begin : last - begin]
            start = last

    def piece(self, sample: int) -> tuple[int, int, int]:
        """Return the shard that holds a sample of the stream, and which samples [begin, end) it holds."""
        epoch, offset = divmod(sample, self._total)
        order, ends = self._shards(epoch)
        slot = int(ends.searchsorted(offset, side="right"))
        shard = int(order[slot])
        end = epoch * self._total + int(ends[slot])
        return shard, end - int(self._counts[shard]), end

    def _shards_of(self, epoch: int) -> tuple[Int64, Int64]:
        order = self._shuffled(len(self._counts), _SHARDS, epoch)
        return order, np.cumsum(self._counts[order])


def _shuffled(seed: int, count: int, *stream: int) -> Int64:
    return np.random.default_rng([seed, *stream]).permutation(count)


def work_of(lengths: Int64, token_work: int) -> Int64:
    """Return the work of sequences of these lengths [N] in a layer, in units of 4 H FLOPs of its linear layers.

    A token costs `token_work` there, a sequence of S tokens 4 H S^2 FLOPs in attention. Heads are left out: their work
    is a small multiple of the tokens or the same for every sequence.
    """
    return lengths * token_work + _ATTENTION_COST * lengths**2


def divide(work: Int64, ranks: int) -> Int64:
    """Return which samples each rank computes, [ranks, B] numbers of the ranks x B samples with this `work`, ascending.

    Longest first: of each `ranks` samples in descending order of work, the rank with the least work so far takes the
    largest, the next one the second, and so on (Graham 1969, SIAM Journal on Applied Mathematics 17(2), with as many
    samples for every rank). If this does not lower the largest work of a rank, the samples stay in runs. It depends on
    `work` alone, in whole numbers: every rank finds the same division.
    """
    runs = np.arange(len(work)).reshape(ranks, -1)
    descending = np.argsort(-work, kind="stable").reshape(-1, ranks)
    own = np.empty_like(descending)
    loads = np.zeros(ranks, dtype=np.int64)
    for turn, samples in enumerate(descending):
        least = np.argsort(loads, kind="stable")
        own[turn, least] = samples
        loads[least] += work[samples]
    return np.sort(own.T, axis=1) if loads.max() < work[runs].sum(axis=1).max() else runs


def spread(count: int, samples: int) -> Int64:
    """Return the numbers of some of `count` samples, spread evenly and ascending; all of them where `samples` is 0."""
    wanted = min(samples, count) if samples > 0 else count
    return np.arange(wanted, dtype=np.int64) * count // max(1, wanted)
