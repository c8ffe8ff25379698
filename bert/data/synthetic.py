"""Synthetic data, for speed measurements only: their names, distributions of lengths, and rows of random content.

Imports no torch: plans check names with it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert.data.batches import DataSpec, lengths_fingerprint
from bert.data.rows import Ragged, TokenRows, offsets_of
from common.errors import UsageError
from common.registry import lookup

Lengths = npt.NDArray[np.int64]

SYNTHETIC = "synthetic"
DEFAULTS = {"pretrain": "phase1", "squad": "squad", "glue": "glue"}
"""Which distribution `synthetic` stands for in each task; in those that are not here it is squad's."""
SHORTEST = 5
"""[CLS] a [SEP] b [SEP]."""
_MOST_SAMPLES, _MOST_TOKENS = 2**11, 2**20

# Word pieces of the contexts and questions of SQuAD's dev-v1.1.json in BERT's uncased vocabulary, one context for each
# of the 10,570 questions: (percent of them, so many word pieces or fewer).
_CONTEXT_PIECES = (
    (0, 30), (1, 39), (5, 73), (10, 95), (15, 104), (20, 111), (25, 117), (30, 122), (35, 128), (40, 134), (45, 140),
    (50, 147), (55, 154), (60, 161), (65, 169), (70, 179), (75, 188), (80, 202), (85, 220), (90, 247), (95, 284),
    (97, 319), (98, 354), (99, 432), (99.5, 505), (100, 789),
)  # fmt: skip
_QUESTION_PIECES = (
    (0, 4), (5, 7), (15, 9), (25, 10), (35, 11), (45, 11), (55, 12), (65, 13), (75, 15), (85, 17), (95, 20), (99, 25),
    (100, 38),
)  # fmt: skip
_CONTEXTS, _QUESTIONS = 500, 20
# Tokens of the 5,749 pairs that STS-B trains on, in BERT's uncased vocabulary, special tokens included.
_PAIR_TOKENS = (
    (0, 10), (2, 14), (5, 15), (10, 16), (20, 18), (30, 19), (40, 21), (50, 23), (60, 25), (70, 28), (75, 31),
    (80, 35), (85, 42), (90, 51), (95, 60), (98, 70), (99, 74), (99.5, 80), (100, 125),
)  # fmt: skip
_DOC_STRIDE, _MAX_QUERY = 128, 64


def full(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """No padding at all."""
    return np.full(count, seq_len, dtype=np.int64)


def phase1(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """A tenth uniform on 5 .. L, the others L, as google-research/bert's create_pretraining_data.py draws its targets.

    The original draws one target per document, and the short last chunk of each document comes on top, so real shards
    have more padding. Mean 0.9 L + 0.1 (L + 5) / 2.
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


def squad(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Windows of SQuAD's questions at doc_stride 128 and max_query_length 64, for any L.

    500 contexts and 20 questions at evenly spaced quantiles of those of dev-v1.1.json, each pair cut into windows by
    the published rule; of their lengths evenly spaced quantiles in random order. Mean and root mean square agree with
    those of the dev set within 0.5 %: at L = 384 178.9 and 191.9, 2.6 % of the windows are full.
    """
    return quantiles(rng, count, squad_windows(seq_len))


def glue(rng: np.random.Generator, count: int, seq_len: int) -> Lengths:
    """Pairs of sentences, drawn through the quantiles of STS-B's training pairs and cut at L; mean 28.0 at L = 128."""
    return np.minimum(_at(_PAIR_TOKENS, rng.random(count)), seq_len)


def quantiles(rng: np.random.Generator, count: int, histogram: Lengths) -> Lengths:
    """Return lengths whose numbers are in a histogram [longest + 1]: evenly spaced quantiles in random order, so that
    few show the whole."""
    ends = np.cumsum(histogram)
    places = (np.arange(count) + 0.5) / count * ends[-1]
    return rng.permutation(np.searchsorted(ends, places, side="right")).clip(SHORTEST, len(histogram) - 1)


def squad_windows(seq_len: int) -> Lengths:
    """Return how many windows of n tokens each the distribution `squad` has [seq_len + 1]."""
    questions = _at(_QUESTION_PIECES, (np.arange(_QUESTIONS) + 0.5) / _QUESTIONS)
    questions = np.minimum(questions, min(_MAX_QUERY, seq_len - 4))
    contexts = _at(_CONTEXT_PIECES, (np.arange(_CONTEXTS) + 0.5) / _CONTEXTS)[:, None]
    room = seq_len - questions - 3
    step = np.minimum(room, _DOC_STRIDE)
    full_ones = np.maximum(0, -(-(contexts - room) // step))
    last = contexts - full_ones * step + questions + 3
    windows = np.bincount(last.ravel(), minlength=seq_len + 1)
    windows[seq_len] += full_ones.sum()
    return windows.astype(np.int64)


def _at(table: tuple[tuple[float, int], ...], shares: npt.NDArray[np.float64]) -> Lengths:
    percents, tokens = zip(*table, strict=True)
    lengths: Lengths = np.rint(np.interp(shares * 100, percents, tokens)).astype(np.int64)
    return lengths


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], Lengths]] = {
    draw.__name__: draw for draw in (full, phase1, uniform, mean254, squad, glue)
}


def is_synthetic(source: str) -> bool:
    """Whether a data source is synthetic: 'synthetic', or 'synthetic:' and a distribution or a folder."""
    return source == SYNTHETIC or source.startswith(f"{SYNTHETIC}:")


def lengths_folder(source: str) -> Path | None:
    """Return the folder or file whose samples' lengths 'synthetic:<path>' asks for; None if none is given.

    What names a distribution is one; else a name is a path if it has a separator in it, or if there is such a path.
    """
    name = source.partition(":")[2] if is_synthetic(source) else ""
    if not name or name in DISTRIBUTIONS:
        return None
    return Path(name) if "/" in name or Path(name).exists() else None


def check_distribution(source: str, seq_len: int | None = None, task: str = "pretrain") -> str:
    """Return the name of the distribution that 'synthetic' (of a task) or 'synthetic:<name>' asks for."""
    name = source.partition(":")[2] or DEFAULTS.get(task, "squad")
    lookup(DISTRIBUTIONS, name, "length distribution")
    if seq_len is not None and seq_len < SHORTEST:
        raise UsageError("option-value", f"--seq-len {seq_len} is too short for {task}: use {SHORTEST} or more")
    if name == "mean254" and seq_len not in (None, 512):
        raise UsageError(
            "option-conflict",
            f"synthetic:mean254 needs --seq-len 512, not --seq-len {seq_len}: use 512, or phase1 or uniform",
        )
    return name


def default_max_predictions(seq_len: int) -> int:
    """Masked positions per sequence when none are given: 128 -> 20 and 512 -> 80 as published, else 15 %."""
    return {128: 20, 512: 80}.get(seq_len, max(1, round(0.15 * seq_len)))


def sample_count(seq_len: int) -> int:
    """Return how many samples of this length an epoch of a distribution has: a few MB, the same for any batch size."""
    return min(_MOST_SAMPLES, max(1, _MOST_TOKENS // seq_len))


def draw_lengths(spec: DataSpec, task: str) -> Lengths:
    """Return the lengths of an epoch of a named distribution, 'synthetic' being that of the task.

    They depend on the seed and the length of a sample alone: any number of ranks and any micro batch size that make up
    the same global batch see the same samples in a step.
    """
    name = check_distribution(spec.data, spec.seq_len, task)
    return DISTRIBUTIONS[name](random_of(spec), sample_count(spec.seq_len), spec.seq_len)


def random_of(spec: DataSpec) -> np.random.Generator:
    """Return the random numbers that all ranks draw samples from."""
    return np.random.default_rng([abs(spec.seed), spec.seq_len])


def special_ids(vocab_size: int) -> tuple[int, int, int]:
    """Return the ids of [CLS], [SEP] and [MASK], as in bert-base-uncased where the vocabulary has room for them; the
    words come after them."""
    cls_id = 101 if vocab_size > 200 else 1
    return cls_id, cls_id + 1, cls_id + 2


def random_words(rng: np.random.Generator, count: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """Return word pieces, none of them special, all equally likely [count]."""
    first = min(special_ids(vocab_size)[-1] + 1, vocab_size - 1)
    return rng.integers(first, vocab_size, count, dtype=np.int32)


def synthetic_rows(
    spec: DataSpec,
    task: str,
    real: Callable[[Path], TokenRows],
    rng: np.random.Generator,
    first: int = sys.maxsize,
) -> TokenRows:
    """Return rows [CLS] text [SEP] text [SEP] of random word pieces, without labels.

    Lengths are those of a distribution, or one by one those of the `real` rows at a path. The texts meet anywhere, but
    the first [SEP] is below column `first`. Raises UsageError for an unknown distribution, and what `real` raises.
    """
    path = lengths_folder(spec.data)
    lengths = draw_lengths(spec, task) if path is None else real(path).lengths
    offsets = offsets_of(lengths)
    begins, ends = offsets[:-1], offsets[1:] - 1
    middle = rng.integers(2, np.maximum(np.minimum(lengths - 2, first), 3))
    ids = random_words(rng, int(offsets[-1]), spec.vocab_size)
    cls_id, sep_id, _ = special_ids(spec.vocab_size)
    ids[begins] = cls_id
    ids[np.minimum(begins + middle, ends)] = ids[ends] = sep_id
    return TokenRows(
        ids=Ragged(ids, offsets),
        second=np.minimum(middle + 1, lengths),
        labels=np.empty(0, np.int64),
        fingerprint=lengths_fingerprint(spec.seq_len, lengths),
        vocab_size=spec.vocab_size,
        vocabulary="",
        pad_id=0,
        max_seq_length=spec.seq_len,
    )
