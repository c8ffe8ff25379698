"""The order in which samples are trained on: endless, the same on every rank, any position reached directly."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K")
V = TypeVar("V")
Int64 = npt.NDArray[np.int64]

# What a permutation is of; the numbers tell the random streams apart.
_SHARDS, _SAMPLES, _SAMPLES_OF_A_BIN, _BINS = 1, 2, 3, 4


class SampleOrder:
    """Global batches of G samples out of shards whose samples fall into bins (by length), one bin without binning.

    Bin b is an endless stream of samples: epoch after epoch, c_b samples each, the shards in an order shuffled by
    (seed, epoch), the samples of each in an order shuffled by (seed, epoch, shard) and, with several bins, the bin.
    Batch k of bin b covers samples o_b + k G to o_b + (k + 1) G - 1 of its stream, where o_b is its origin: 0, or
    where an earlier run with another G stopped. An incomplete last batch is so filled from the bin's next epoch.

    The batches of bin b whose first sample is in [e c_b, (e + 1) c_b) belong to epoch e: every bin has its share of
    each epoch. They come in an order shuffled by (seed, epoch). Not thread-safe.
    """

    def __init__(self, counts: Int64, seed: int, global_batch: int, origins: Sequence[int] | None = None) -> None:
        """Take the samples of each bin in each shard, counts [shards, bins], of which there is at least one."""
        self.counts = counts
        self.seed = abs(seed)
        self.global_batch = global_batch
        self.origins = [0] * self.bins if origins is None else [int(origin) for origin in origins]
        self._totals = [int(total) for total in counts.sum(axis=0)]
        self._permutations: OrderedDict[tuple[int, ...], Int64] = OrderedDict()
        self._slots: OrderedDict[tuple[int, int], tuple[Int64, Int64]] = OrderedDict()
        self._sequences: OrderedDict[int, tuple[npt.NDArray[np.int16], npt.NDArray[np.int32]]] = OrderedDict()

    @property
    def bins(self) -> int:
        """Number of bins, empty ones too."""
        return int(self.counts.shape[1])

    def batch(self, number: int) -> tuple[int, int]:
        """Return the bin of global batch `number`, and the number of its first sample in that bin's stream."""
        if self.bins == 1:
            return 0, self.origins[0] + number * self.global_batch
        epoch = self._epoch(number)
        labels, ranks = self._sequence(epoch)
        index = number - self._batches_before(epoch)
        which = int(labels[index])
        return which, self.origins[which] + (self._first(which, epoch) + int(ranks[index])) * self.global_batch

    def positions(self, batches: int) -> list[int]:
        """Return the number of the next sample of each bin after so many batches."""
        if self.bins == 1:
            return [self.origins[0] + batches * self.global_batch]
        epoch = self._epoch(batches)
        labels = self._sequence(epoch)[0][: batches - self._batches_before(epoch)]
        made = np.bincount(labels, minlength=self.bins)
        return [
            origin + (self._first(which, epoch) + int(made[which])) * self.global_batch
            for which, origin in enumerate(self.origins)
        ]

    def rows(self, which: int, start: int, stop: int) -> Iterator[tuple[int, Int64]]:
        """Yield (shard, rows of its samples of the bin) for samples start .. stop - 1 of a bin's stream."""
        while start < stop:
            shard, begin, end = self.piece(which, start)
            epoch = start // self._totals[which]
            last = min(stop, end)
            yield shard, self._samples(which, epoch, shard)[start - begin : last - begin]
            start = last

    def piece(self, which: int, sample: int) -> tuple[int, int, int]:
        """Return the shard that holds a sample of a bin's stream, and which samples [begin, end) it holds."""
        epoch, offset = divmod(sample, self._totals[which])
        order, ends = self._shards(which, epoch)
        slot = int(ends.searchsorted(offset, side="right"))
        shard = int(order[slot])
        end = epoch * self._totals[which] + int(ends[slot])
        return shard, end - int(self.counts[shard, which]), end

    def _first(self, which: int, epoch: int) -> int:
        """Number of batches of a bin that begin before `epoch`."""
        return max(0, -((self.origins[which] - epoch * self._totals[which]) // self.global_batch))

    def _batches_before(self, epoch: int) -> int:
        return sum(self._first(which, epoch) for which in range(self.bins))

    def _epoch(self, number: int) -> int:
        epoch = (sum(self.origins) + number * self.global_batch) // sum(self._totals)
        while self._batches_before(epoch) > number:
            epoch -= 1
        while self._batches_before(epoch + 1) <= number:
            epoch += 1
        return epoch

    def _sequence(self, epoch: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int32]]:
        if epoch not in self._sequences:
            numbers = [self._first(which, epoch + 1) - self._first(which, epoch) for which in range(self.bins)]
            rng = np.random.default_rng([self.seed, _BINS, epoch])
            labels = rng.permutation(np.repeat(np.arange(self.bins, dtype=np.int16), numbers))
            ranks = np.empty(len(labels), dtype=np.int32)
            ranks[np.argsort(labels, kind="stable")] = np.concatenate([np.arange(count) for count in numbers])
            _keep(self._sequences, epoch, (labels, ranks), 2)
        return self._sequences[epoch]

    def _shards(self, which: int, epoch: int) -> tuple[Int64, Int64]:
        if (which, epoch) not in self._slots:
            order = self._shuffled(len(self.counts), _SHARDS, epoch)
            _keep(self._slots, (which, epoch), (order, np.cumsum(self.counts[order, which])), 4 * self.bins)
        return self._slots[which, epoch]

    def _samples(self, which: int, epoch: int, shard: int) -> Int64:
        count = int(self.counts[shard, which])
        if self.bins == 1:
            return self._shuffled(count, _SAMPLES, epoch, shard)
        return self._shuffled(count, _SAMPLES_OF_A_BIN, epoch, shard, which)

    def _shuffled(self, count: int, *stream: int) -> Int64:
        if stream not in self._permutations:
            rng = np.random.default_rng([self.seed, *stream])
            _keep(self._permutations, stream, rng.permutation(count), 4 * self.bins + 4)
        return self._permutations[stream]


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)


def spread(count: int, samples: int) -> npt.NDArray[np.int64]:
    """Return the numbers of some of `count` samples, spread evenly and ascending; all of them where `samples` is 0."""
    wanted = min(samples, count) if samples > 0 else count
    return np.arange(wanted, dtype=np.int64) * count // max(1, wanted)
