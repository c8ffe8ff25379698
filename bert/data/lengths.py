"""Names of synthetic data and distributions of their lengths. Imports no torch: plans check names with it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.errors import UsageError
from common.registry import lookup

Lengths = npt.NDArray[np.int64]

SYNTHETIC = "synthetic"
DEFAULT = "phase1"
SHORTEST = 5
"""[CLS] a [SEP] b [SEP]."""


def full(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Every sequence is full: no padding at all."""
    return np.full(count, seq_len, dtype=np.int64)


def phase1(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """A tenth of the sequences have a target that is uniform on 2 .. L-3, the others L-3; plus 3 special tokens.

    The rule of google-research/bert's create_pretraining_data.py, as if each sequence drew its own target: the original
    draws one per document, and the short last chunk of each document comes on top, so real shards have more padding.
    Mean 0.9 L + 0.1 (L + 5) / 2. `synthetic:<folder>` draws the lengths of real shards.
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


def is_synthetic(source: str) -> bool:
    """Whether a data source is made up: 'synthetic', or 'synthetic:' and a distribution or a folder."""
    return source == SYNTHETIC or source.startswith(f"{SYNTHETIC}:")


def lengths_folder(source: str) -> Path | None:
    """Return the folder whose samples' lengths 'synthetic:<folder>' asks for; None where no folder is named.

    What names a distribution is one; else a name is a folder if it has a separator in it, or if there is such a folder.
    """
    name = source.partition(":")[2] if is_synthetic(source) else ""
    if not name or name in DISTRIBUTIONS:
        return None
    return Path(name) if "/" in name or Path(name).is_dir() else None


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
