"""What is counted over the rows of shards: block by block, added up over shards; bounded memory."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.inspecting.invariants import Layout, Specials
from bert.tasks.pretrain.inspecting.shard_files import Block

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

MOST_HASHES = 2**22
"""Hashes of instances kept at most; of larger data a random share of the instances is compared."""
MOST_PIECES = 2**20
"""Ids counted one by one where the vocabulary's size is not known."""
_DATASETS = ("input_ids", "masked_lm_positions", "masked_lm_ids", "segment_ids", "next_sentence_labels")


class Tally:
    """Counts over the rows of one split."""

    def __init__(self, seq_len: int, pieces: int) -> None:
        """Count rows of `seq_len` tokens with ids below `pieces` (others are left out of the counts of pieces)."""
        self.instances = 0
        self.lengths: Counts = np.zeros(seq_len + 1, np.int64)
        """[L + 1] instances of each real length."""
        self.first: Counts = np.zeros(seq_len + 1, np.int64)
        """[L + 1] instances whose segment A has so many pieces."""
        self.second: Counts = np.zeros(seq_len + 1, np.int64)
        """[L + 1] likewise segment B."""
        self.pieces: Counts = np.zeros(pieces, np.int64)
        """Real tokens of each id, as before masking."""
        self.masked = 0
        self.shown_mask = self.shown_same = 0
        """Masked positions that show [MASK], and their own piece."""
        self.random_second = 0
        self.distinct = Distinct()

    def add(self, block: Block, layout: Layout, specials: Specials | None) -> None:
        """Count a block of rows."""
        count, width = layout.ids.shape
        self.instances += count
        self.lengths += np.bincount(layout.lengths, minlength=width + 1)
        self.first += np.bincount(np.clip(layout.switches - 2, 0, width), minlength=width + 1)
        self.second += np.bincount(np.clip(layout.lengths - layout.switches - 1, 0, width), minlength=width + 1)
        self.pieces += self._count_pieces(layout)
        shown, hidden = (ids[layout.rows, layout.columns] for ids in (layout.ids, layout.original))
        is_mask = shown == specials.mask_id if specials else np.zeros(len(shown), bool)
        self.masked += len(shown)
        self.shown_mask += int(is_mask.sum())
        self.shown_same += int(((shown == hidden) & ~is_mask).sum())
        self.random_second += int(np.count_nonzero(block["next_sentence_labels"]))
        self.distinct.add(row_hashes([block[name] for name in _DATASETS]))

    def _count_pieces(self, layout: Layout) -> Counts:
        ids = layout.original.ravel()
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self.pieces)):
            ids = ids[(ids >= 0) & (ids < len(self.pieces))]
        counts: Counts = np.bincount(ids, minlength=len(self.pieces)).astype(np.int64)
        counts[:1] -= min(int(counts[:1].sum()), layout.real.size - int(layout.lengths.sum()))
        return counts

    def merge(self, other: "Tally") -> None:
        """Add the counts of another one of equal length."""
        for name in ("instances", "masked", "shown_mask", "shown_same", "random_second"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lengths", "first", "second", "pieces"):
            getattr(self, name).__iadd__(getattr(other, name))
        self.distinct.merge(other.distinct)


class Distinct:
    """How many rows equal an earlier one: exact up to MOST_HASHES rows, then estimated from a random share.

    Kept are the hashes that are a multiple of `modulus`, a power of two that doubles when there are too many: all
    copies of a row are kept or none, so duplicates among the kept ones times `modulus` estimate all.
    """

    def __init__(self) -> None:
        self.modulus = 1
        self._kept: list[Hashes] = []
        self._count = 0

    def add(self, hashes: Hashes) -> None:
        """Take the hashes of further rows."""
        kept = hashes if self.modulus == 1 else hashes[(hashes & np.uint64(self.modulus - 1)) == 0]
        self._kept.append(kept)
        self._count += len(kept)
        while self._count > MOST_HASHES:
            self._thin()

    def merge(self, other: "Distinct") -> None:
        """Take the rows of another one."""
        while self.modulus < other.modulus:
            self._thin()
        self.add(other.kept())

    def kept(self) -> Hashes:
        """Return the kept hashes."""
        return np.concatenate(self._kept) if self._kept else np.empty(0, np.uint64)

    def duplicates(self) -> int:
        """Return the rows that equal an earlier one; where `modulus` is above 1, an estimate."""
        kept = self.kept()
        return self.modulus * (len(kept) - len(np.unique(kept)))

    def shared_with(self, other: "Distinct") -> int:
        """Return how many rows of this one are also in `other`; an estimate where a `modulus` is above 1."""
        modulus = max(self.modulus, other.modulus)
        mine, theirs = (kept[(kept & np.uint64(modulus - 1)) == 0] for kept in (self.kept(), other.kept()))
        return modulus * int(np.isin(mine, theirs).sum())

    def _thin(self) -> None:
        self.modulus *= 2
        kept = self.kept()
        kept = kept[(kept & np.uint64(self.modulus - 1)) == 0]
        self._kept, self._count = [kept], len(kept)


def row_hashes(columns: Sequence[npt.NDArray[np.generic]]) -> Hashes:
    """Return a 64-bit hash of every row: equal rows have equal ones, and of n different rows two share one with a
    chance of about n^2 / 2^65.

    Args:
        columns: arrays of equal length, numbers, of one or more axes.
    """
    # Fixed odd factors: the hash of a row is the same in every process.
    rng = np.random.default_rng(20181011)
    total: Hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        words = _words(column)
        factors = rng.integers(0, 2**63, words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        # A multiple of a power of two loses the upper bits of the factor: the upper half must reach the lower one.
        words = words ^ (words >> np.uint64(32))
        words *= factors
        words ^= words >> np.uint64(29)
        total += words.sum(axis=1, dtype=np.uint64)
        total *= np.uint64(0xBF58476D1CE4E5B9)
    total ^= total >> np.uint64(31)
    total *= np.uint64(0x94D049BB133111EB)
    total ^= total >> np.uint64(30)
    return total


def _words(column: npt.NDArray[np.generic]) -> Hashes:
    """The bytes of every row as 8-byte words, filled up with zeros."""
    count = len(column)
    raw = np.ascontiguousarray(column).reshape(count, -1).view(np.uint8).reshape(count, -1)
    if excess := raw.shape[1] % 8:
        raw = np.concatenate([raw, np.zeros((count, 8 - excess), np.uint8)], axis=1)
    words: Hashes = raw.view(np.uint64)
    return words


def spread(share: float, count: int) -> tuple[float, float] | None:
    """Return between which bounds 99.9 % of the shares lie that `count` draws of chance `share` give; None for none.

    The normal approximation of the binomial distribution, 3.29 standard deviations, and half a draw for its steps.
    """
    if count < 1:
        return None
    half = 3.2905 * math.sqrt(share * (1 - share) / count) + 0.5 / count
    return max(0.0, share - half), min(1.0, share + half)


def confidence(found: int, count: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a chance from `found` of `count` draws (Wilson 1927); None for no draws."""
    if count < 1:
        return None
    share, z = found / count, 1.9600
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
