"""What the counts of one split amount to: rates, balances, lengths, duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.inspecting.invariants import Specials
from bert.tasks.pretrain.inspecting.tallies import Tally, confidence, spread

MASK_SHARE, SAME_SHARE, RANDOM_SHARE = 0.8, 0.1, 0.1
"""What a masked position shows: [MASK], its own piece, a random one (Devlin et al. 2018)."""
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
        """Whether the share lies where chance allows; None where that is not known."""
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
    """Masked positions per instance at most."""
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
    """Masked positions that show [MASK]; None where its id is not known."""
    shown_same: Share | None
    """Masked positions that show their own piece."""
    shown_random: Share | None
    random_second: Share
    short: int
    """Instances shorter than seq_len."""
    mean_first: float
    mean_second: float
    unknown_share: float | None
    """[UNK] / pieces; None where its id is not known."""
    duplicates: int
    """Instances that equal an earlier one, masks included."""
    duplicates_estimated: bool
    """From a random share of the instances: there are too many to keep the hashes of all."""
    lengths: tuple[int, ...]
    """[L + 1] instances of each real length."""
    first_lengths: tuple[int, ...]
    """[L + 1] instances with so many pieces in segment A."""
    second_lengths: tuple[int, ...]
    """[L + 1] likewise segment B."""
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
    specials: Specials | None,
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
        duplicates=tally.distinct.duplicates(),
        duplicates_estimated=tally.distinct.modulus > 1,
        lengths=tuple(tally.lengths.tolist()),
        first_lengths=tuple(tally.first.tolist()),
        second_lengths=tuple(tally.second.tolist()),
        frequent=_frequent(tally.pieces, specials, pieces),
    )


def _shares(
    tally: Tally, specials: Specials | None, vocab_size: int | None
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
    counts: npt.NDArray[np.int64], specials: Specials | None, pieces: Sequence[str] | None
) -> tuple[tuple[str, int], ...]:
    left = counts.copy()
    left[:1] = 0
    for number in () if specials is None else (specials.cls_id, specials.sep_id, specials.mask_id):
        left[number : number + 1] = 0
    best = np.argsort(-left, kind="stable")[:MOST_FREQUENT].tolist()
    names = [pieces[number] if pieces is not None and number < len(pieces) else str(number) for number in best]
    return tuple((name, int(left[number])) for name, number in zip(names, best, strict=True) if left[number] > 0)
