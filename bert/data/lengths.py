"""Named distributions of sequence lengths for synthetic batches. Imports no torch: plans check names with it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from common.errors import UsageError
from common.registry import lookup

Lengths = npt.NDArray[np.int64]

DEFAULT = "phase1"
SHORTEST = 5
"""[CLS] a [SEP] b [SEP]."""


def full(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Every sequence is full: no padding at all."""
    return np.full(count, seq_len, dtype=np.int64)


def phase1(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """BERT's own rule: with short_seq_prob 0.1 the target is uniform on 2 .. L-3, else L-3; plus 3 special tokens.

    Source: google-research/bert, create_pretraining_data.py. Mean 0.9 L + 0.1 (L + 5) / 2. The short last chunk of each
    document is left out, so text of short documents has more padding than this.
    """
    short = rng.random(count) < 0.1
    return np.where(short, uniform(rng, count, seq_len), seq_len)


def uniform(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Every length from 5 to L is equally likely; mean (L + 5) / 2."""
    return rng.integers(SHORTEST, seq_len + 1, count)


def mean254(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Phase 2 on Wikipedia, 512 tokens: a little over half of all tokens is padding, mean 254.

    The mean follows Krell et al. 2021 (arXiv 2107.02027: padding in excess of 50 % at length 512); the shape is ours:
    20 % are full, the others uniform on 5 .. 374, so the mean is 0.2 x 512 + 0.8 x 189.5 = 254.
    """
    return np.where(rng.random(count) < 0.2, 512, rng.integers(SHORTEST, 375, count))


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], Lengths]] = {
    "full": full,
    "phase1": phase1,
    "uniform": uniform,
    "mean254": mean254,
}


def check_distribution(source: str, seq_len: int | None = None) -> str:
    """Return the name of the distribution that 'synthetic' or 'synthetic:<name>' asks for.

    Raises:
        UsageError: no such name, or (when `seq_len` is given) the distribution is none for that length.
    """
    name = source.partition(":")[2] or DEFAULT
    lookup(DISTRIBUTIONS, name, "length distribution")
    if seq_len is not None and seq_len < SHORTEST:
        raise UsageError(f"seq_len={seq_len} is too short for pretraining: use {SHORTEST} or more")
    if name == "mean254" and seq_len not in (None, 512):
        raise UsageError(f"synthetic:mean254 describes 512 tokens, not seq_len={seq_len}: use 512, phase1 or uniform")
    return name


def default_max_predictions(seq_len: int) -> int:
    """Masked positions per sequence when none are given: 128 -> 20 and 512 -> 80 as published, else 15 %."""
    return {128: 20, 512: 80}.get(seq_len, max(1, round(0.15 * seq_len)))
