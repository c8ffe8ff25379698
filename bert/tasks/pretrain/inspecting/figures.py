"""What is counted over the rows of shards, block by block, and figures of a split: rates, balances,
lengths, duplicates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bert.tasks.pretrain.folder import Block
    from bert.tasks.pretrain.inspecting.rows import Layout, Specials

MASK_SHARE, SAME_SHARE, RANDOM_SHARE = 0.8, 0.1, 0.1
"""What a masked position shows: [MASK], its own piece, a random one (Devlin et al. 2018)."""

Hashes = npt.NDArray[np.uint64]


Counts = npt.NDArray[np.int64]


MOST_HASHES = 2**25
"""Hashes of instances kept at most, 256 MiB of them; of more instances the duplicates are not known."""


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
        """[L + 1] instances by pieces in segment B."""
        self.pieces: Counts = np.zeros(pieces, np.int64)
        """Real tokens of each id, as before masking."""
        self.masked = 0
        self.shown_mask = self.shown_same = 0
        """Masked positions that show [MASK], and their own piece."""
        self.random_second = 0
        self._hashes: list[Hashes] | None = []
        """Of each instance; None if there are more than MOST_HASHES."""

    def add(self, block: "Block", layout: "Layout", specials: "Specials | None") -> None:
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
        if self._hashes is not None:
            self._keep([row_hashes([block[name] for name in _DATASETS])])

    def _count_pieces(self, layout: "Layout") -> Counts:
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
        self._keep(other._hashes)

    def _keep(self, hashes: list[Hashes] | None) -> None:
        fits = self.instances <= MOST_HASHES
        self._hashes = [*self._hashes, *hashes] if fits and self._hashes is not None and hashes is not None else None

    def _all_hashes(self) -> Hashes | None:
        return None if self._hashes is None else np.concatenate([np.empty(0, np.uint64), *self._hashes])

    def duplicates(self) -> int | None:
        """Return the rows that equal an earlier one; None if there are too many rows to tell."""
        hashes = self._all_hashes()
        return None if hashes is None else len(hashes) - len(np.unique(hashes))

    def shared_with(self, other: "Tally") -> int | None:
        """Return how many rows of this one are also in `other`; None if there are too many rows to tell."""
        mine, theirs = self._all_hashes(), other._all_hashes()
        return None if mine is None or theirs is None else int(np.isin(mine, theirs).sum())


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


MOST_FREQUENT = 10


@dataclass(frozen=True, slots=True)
class Share:
    """A share of draws, with what chance allows or what it tells of the true one."""

    count: int
    total: int
    expected: float | None
    """The chance they should have; None = not fixed by the algorithm."""
    interval: tuple[float, float] | None
    """Where `expected` is known, bounds of 99.9 % of such shares, else the 95 % interval of the chance; None without
    draws."""

    @property
    def value(self) -> float | None:
        """The share itself, None without draws."""
        return self.count / self.total if self.total else None

    @property
    def by_chance(self) -> bool | None:
        """Whether the share lies where chance allows; None if that is not known."""
        if self.expected is None or self.interval is None or self.value is None:
            return None
        return self.interval[0] <= self.value <= self.interval[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFigures:
    """The instances of one split of a folder."""

    split: str
    """"training" or "test"."""
    shards: int
    instances: int
    seq_len: int
    """Tokens per instance, padding included."""
    max_predictions: int
    """Maximum masked positions per instance."""
    real_tokens: int
    """Tokens without padding."""
    padding_efficiency: float
    """Real tokens / all tokens."""
    file_bytes: int
    bins: int
    """Bins of length in a shard at most; 0 = not binned."""
    masked: int
    mask_rate: float
    """Masked positions / real tokens."""
    mask_rate_of_pieces: float
    """Masked positions / real tokens without [CLS] and [SEP]."""
    shown_mask: Share | None
    """Masked positions that show [MASK]; None if its id is not known."""
    shown_same: Share | None
    """Masked positions that show their own piece."""
    shown_random: Share | None
    random_second: Share
    short: int
    """Instances shorter than seq_len."""
    mean_first: float
    mean_second: float
    unknown_share: float | None
    """[UNK] / pieces; None if its id is not known."""
    duplicates: int | None
    """Instances that equal an earlier one, masks included; None if there are too many instances to tell."""
    lengths: tuple[int, ...]
    """[L + 1] instances of each real length."""
    first_lengths: tuple[int, ...]
    """[L + 1] instances with so many pieces in segment A."""
    second_lengths: tuple[int, ...]
    """[L + 1] instances by pieces in segment B."""
    frequent: tuple[tuple[str, int], ...]
    """The most frequent pieces, without the special ones, and how often they occur (as before masking)."""


def figures_of(
    split: str,
    tally: Tally,
    shards: int,
    file_bytes: int,
    *,
    max_predictions: int,
    bins: int,
    specials: "Specials | None",
    vocab_size: int | None,
    pieces: Sequence[str] | None,
) -> SplitFigures:
    """Work the counts of a split out; it has at least one instance."""
    seq_len = len(tally.lengths) - 1
    every = np.arange(seq_len + 1)
    real = int(tally.lengths @ every)
    inner = max(1, real - 3 * tally.instances)
    shares = _shares(tally, specials, vocab_size)
    unknown = None if specials is None or specials.unk_id is None else int(tally.pieces[specials.unk_id])
    return SplitFigures(
        split=split,
        shards=shards,
        instances=tally.instances,
        seq_len=seq_len,
        max_predictions=max_predictions,
        real_tokens=real,
        padding_efficiency=real / (tally.instances * seq_len),
        file_bytes=file_bytes,
        bins=bins,
        masked=tally.masked,
        mask_rate=tally.masked / max(1, real),
        mask_rate_of_pieces=tally.masked / inner,
        shown_mask=shares[0],
        shown_same=shares[1],
        shown_random=shares[2],
        random_second=_estimate(tally.random_second, tally.instances),
        short=tally.instances - int(tally.lengths[seq_len]),
        mean_first=float(tally.first @ every) / tally.instances,
        mean_second=float(tally.second @ every) / tally.instances,
        unknown_share=None if unknown is None else unknown / inner,
        duplicates=tally.duplicates(),
        lengths=tuple(tally.lengths.tolist()),
        first_lengths=tuple(tally.first.tolist()),
        second_lengths=tuple(tally.second.tolist()),
        frequent=_frequent(tally.pieces, specials, pieces),
    )


def _shares(
    tally: Tally, specials: "Specials | None", vocab_size: int | None
) -> tuple[Share, Share, Share] | tuple[None, None, None]:
    if specials is None:
        return None, None, None
    # A random piece may be [MASK], or the piece itself.
    hit = RANDOM_SHARE / vocab_size if vocab_size else 0.0
    expected = (MASK_SHARE + hit, SAME_SHARE + hit, RANDOM_SHARE - 2 * hit)
    random = tally.masked - tally.shown_mask - tally.shown_same
    counts = (tally.shown_mask, tally.shown_same, random)
    mask, same, other = (
        Share(count, tally.masked, chance, spread(chance, tally.masked))
        for count, chance in zip(counts, expected, strict=True)
    )
    return mask, same, other


def _estimate(count: int, total: int) -> Share:
    return Share(count, total, None, confidence(count, total))


def _frequent(
    counts: npt.NDArray[np.int64], specials: "Specials | None", pieces: Sequence[str] | None
) -> tuple[tuple[str, int], ...]:
    left = counts.copy()
    left[:1] = 0
    for number in () if specials is None else (specials.cls_id, specials.sep_id, specials.mask_id):
        left[number : number + 1] = 0
    best = np.argsort(-left, kind="stable")[:MOST_FREQUENT].tolist()
    names = [pieces[number] if pieces is not None and number < len(pieces) else str(number) for number in best]
    return tuple((name, int(left[number])) for name, number in zip(names, best, strict=True) if left[number] > 0)
