"""Step 5 of instance creation, for a block of rows at once: which tokens are predicted, and what replaces them.

A row's candidates are its tokens without the special ones; candidate i of a row with a first segment of n tokens is
in column i + 1 for i < n, else in column i + 2.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.vocabulary import Vocabulary

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
MASKED_SHARE = 0.8
KEPT_OR_MASKED_SHARE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """How instances are cut and masked: PrepareConfig for one length."""

    seq_len: int
    """Tokens per instance, [CLS], two [SEP] and padding included."""
    max_predictions: int
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    """Share of documents (in each duplicate) whose instances aim at a length drawn from 2 .. seq_len - 3."""
    dupe_factor: int = 5
    whole_word_mask: bool = False
    seed: int = 12345


@dataclass(frozen=True, slots=True)
class Pieces:
    """What masking needs to know of a vocabulary."""

    size: int
    """Word pieces, V."""
    cls_id: int
    sep_id: int
    mask_id: int
    continues: Bools
    """[V] the piece begins with ##: it belongs to the word before it."""


def pieces_of(vocabulary: Vocabulary) -> Pieces:
    """Return what masking needs."""
    continues = np.array([piece.startswith("##") for piece in vocabulary.pieces])
    return Pieces(len(continues), vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id, continues)


def prediction_counts(config: InstanceConfig) -> Int64:
    """Return how many positions to mask by the length of the instance, [seq_len + 1]: min(P, max(1, round(p n)))."""
    counts = [
        min(config.max_predictions, max(1, round(config.masked_lm_prob * length)), max(length - SPECIAL_TOKENS, 0))
        for length in range(config.seq_len + 1)
    ]
    return np.array(counts, dtype=np.int64)


def mask(
    ids: Int32,
    lengths: Int32,
    first_lengths: Int32,
    config: InstanceConfig,
    pieces: Pieces,
    rng: np.random.Generator,
) -> tuple[Int32, Int32]:
    """Choose the positions to predict and change `ids` there: 80 % [MASK], 10 % as they are, 10 % any piece.

    `ids` [k, L] are rows of [CLS] a [SEP] b [SEP], `lengths` [k] their tokens with the special ones, `first_lengths`
    [k] the tokens of a. Returns the columns of the predictions [k, P], ascending, and the ids before masking [k, P];
    0 ends the lists.
    """
    wanted = prediction_counts(config)[lengths]
    candidates = lengths - np.int32(SPECIAL_TOKENS)
    choose = _choose_words if config.whole_word_mask else _choose_tokens
    chosen = choose(ids, candidates, first_lengths, wanted, pieces, rng)
    places = np.flatnonzero(chosen)
    rows, columns = np.divmod(places, ids.shape[1])
    positions = np.zeros((len(ids), config.max_predictions), np.int32)
    labels = np.zeros_like(positions)
    counts = np.bincount(rows, minlength=len(ids))
    slots = np.arange(len(places)) + np.repeat(
        np.arange(len(ids)) * config.max_predictions - (np.cumsum(counts) - counts), counts
    )
    old = ids.ravel()[places]
    positions.ravel()[slots] = columns
    labels.ravel()[slots] = old
    draws = rng.random(len(places))
    new = np.where(draws < MASKED_SHARE, np.int32(pieces.mask_id), old)
    replaced = np.flatnonzero(draws >= KEPT_OR_MASKED_SHARE)
    new[replaced] = rng.integers(pieces.size, size=len(replaced))
    ids.ravel()[places] = new
    return positions, labels


def _choose_tokens(
    ids: Int32, candidates: Int32, first_lengths: Int32, wanted: Int64, pieces: Pieces, rng: np.random.Generator
) -> Bools:
    """Return [k, L] whether a token is predicted: `wanted` of the row's candidates, each set as likely.

    The first draws of a shuffle (Fisher and Yates), of all rows at once: the j-th one swaps candidate j with one of
    the candidates j .. n - 1. A number below m is 32 random bits times m, shifted: none is more likely than another
    by more than m / 2^32.
    """
    rows, seq_len = ids.shape
    draws = int(wanted.max())
    ranks = np.arange(draws, dtype=np.int64)[:, None]
    bits = rng.integers(2**32, size=(draws, rows), dtype=np.uint32).astype(np.int64)
    taken = ranks + ((bits * np.maximum(candidates - ranks, 1)) >> 32)
    begins = np.arange(rows) * seq_len
    taken += begins
    order = np.tile(np.arange(seq_len, dtype=np.int32), (rows, 1))
    flat = order.ravel()
    picks = np.empty((draws, rows), np.int32)
    for rank in range(draws):
        picks[rank] = flat[taken[rank]]
        flat[taken[rank]] = order[:, rank]
    columns = picks + 1 + (picks >= first_lengths)
    chosen = np.zeros(ids.shape, np.bool_)
    chosen.ravel()[(columns + begins)[ranks < wanted]] = True
    return chosen


def _choose_words(
    ids: Int32, candidates: Int32, first_lengths: Int32, wanted: Int64, pieces: Pieces, rng: np.random.Generator
) -> Bools:
    """Return [k, L] whether a token is predicted: words in random order; one that would overshoot is skipped.

    A word begins at a piece without ##, and after a special token whatever piece follows (a truncated word).
    """
    rows, seq_len = ids.shape
    columns = np.arange(seq_len)
    middle = first_lengths[:, None] + 1
    is_candidate = (columns > 0) & (columns <= candidates[:, None] + 1) & (columns != middle)
    begins = is_candidate & (~pieces.continues[ids] | (columns == 1) | (columns == middle + 1))
    word = np.cumsum(begins, axis=1) - 1
    words = word[:, -1] + 1
    places = word + np.arange(rows)[:, None] * seq_len
    sizes = np.bincount(places[is_candidate], minlength=rows * seq_len).reshape(rows, seq_len)
    # Words in random order: their numbers in the low bits of random keys, sorted; those a row does not have come last.
    bits = seq_len.bit_length()
    keys = rng.integers(2 ** (63 - bits), size=(rows, seq_len)) << bits
    keys = np.where(columns < words[:, None], keys, np.int64(2**63 - 2**bits)) | columns
    order = np.sort(keys, axis=1) & (2**bits - 1)
    ordered_sizes = np.take_along_axis(sizes, order, axis=1)
    is_taken = np.zeros((rows, seq_len), np.bool_)
    left = wanted.copy()
    for rank in range(int(words.max())):
        size = ordered_sizes[:, rank]
        fits = (size <= left) & (rank < words)
        is_taken[fits, order[fits, rank]] = True
        left -= size * fits
        if not left.any():
            break
    chosen: Bools = is_candidate & is_taken.ravel()[np.maximum(places, 0)]
    return chosen
