"""How long the samples of a folder of shards are: what made-up batches like them are drawn from. Imports no torch."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.loading.folder import ShardFolder
from common.errors import Code, InputError, content_code

Int64 = npt.NDArray[np.int64]

_MOST_SAMPLES = 2**18
"""So many samples are looked at, in whole shards spread over the folder: every mask of a large one takes long."""


@dataclass(frozen=True, slots=True)
class SampleLengths:
    """The lengths of a folder's samples, by bin; one bin where the folder is not binned."""

    bin_lengths: tuple[int, ...]
    """Tokens per sample of each bin, padding included."""
    weights: tuple[int, ...]
    """Samples of the folder in each bin."""
    histogram: Int64
    """[bins, seq_len + 1] samples of each length among those looked at."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that made-up batches depend on."""
        digest = hashlib.blake2b(repr((self.bin_lengths, self.weights)).encode(), digest_size=16)
        digest.update(self.histogram.astype("<i8").tobytes())
        return f"lengths-{digest.hexdigest()}"

    def draw(self, rng: np.random.Generator, which: int, count: int) -> Int64:
        """Return `count` lengths of a bin in random order: evenly spaced quantiles, so that few show the whole."""
        ends = np.cumsum(self.histogram[which])
        places = (np.arange(count) + 0.5) / count * ends[-1]
        return rng.permutation(np.searchsorted(ends, places, side="right"))

    def share(self, count: int) -> Int64:
        """Return [bins] how many of `count` batches are of each bin: in proportion, largest remainders rounded up."""
        exact = count * np.array(self.weights) / sum(self.weights)
        whole = exact.astype(np.int64)
        whole[np.argsort(whole - exact, kind="stable")[: count - int(whole.sum())]] += 1
        return whole


def folder_lengths(info: ShardFolder) -> SampleLengths:
    """Read the lengths of a folder's samples; the same folder gives the same ones.

    Raises:
        InputError: a shard is damaged or gone (named).
    """
    weights = tuple(int(total) for total in np.sum(info.counts, axis=0))
    histogram = np.zeros((len(info.bin_lengths), info.seq_len + 1), dtype=np.int64)
    for shard in _spread(info):
        lengths = _read_lengths(info, shard)
        bins = np.repeat(np.arange(len(histogram)), info.counts[shard])
        np.add.at(histogram, (bins, lengths), 1)
    # A bin that no shard looked at has samples of: take it to be full.
    for which in np.flatnonzero(histogram.sum(axis=1) == 0):
        histogram[which, info.bin_lengths[which]] = 1
    return SampleLengths(info.bin_lengths, weights, histogram)


def _spread(info: ShardFolder) -> list[int]:
    """Numbers of shards spread evenly over the folder, one at least."""
    shards = len(info.paths)
    wanted = max(1, min(shards, _MOST_SAMPLES * shards // info.samples))
    return [number * shards // wanted for number in range(wanted)]


def _read_lengths(info: ShardFolder, shard: int) -> Int64:
    import h5py

    path = info.paths[shard]
    try:
        with h5py.File(path, "r") as file:
            lengths: Int64 = file["input_mask"][:].sum(axis=1, dtype=np.int64)
    except (OSError, KeyError) as error:
        raise InputError(content_code(error), f"{path} is damaged or gone ({error}): make or copy it again") from error
    if len(lengths) != sum(info.counts[shard]) or lengths.min() < 1:
        code: Code = "file-changed" if len(lengths) != sum(info.counts[shard]) else "rows-invalid"
        raise InputError(code, f"{path} has changed, or holds samples without tokens: make it again")
    return lengths
