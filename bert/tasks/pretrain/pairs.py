"""Steps 1 to 4 of instance creation, for a whole shard at once: where the two segments of each instance lie.

The algorithm goes through a document pair by pair, and where a pair begins depends on the draws of the one before. But
a sentence begins a pair at most once per duplicate, so a pair's draws may as well be made for its first sentence ahead
of time, for all sentences: independent draws, of which the walk uses those of the sentences it comes by. Then all
chunks are found at once, and the walk from pair to pair is a chain of look-ups.

Documents are walked in their order. The algorithm shuffles them (step 1), but its last step shuffles the instances, so
the order before it does not show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.config import SPECIAL_TOKENS, InstanceConfig
from bert.tasks.pretrain.tokens import TokenShard

Int64 = npt.NDArray[np.int64]
DRAWS_OF_A_DOCUMENT = 10
SHORTEST_TARGET = 2


@dataclass(frozen=True, slots=True)
class Pairs:
    """N pairs of segments of a token array, truncated; a few dozen bytes each."""

    first_begin: npt.NDArray[np.int64]
    """[N] where segment A begins in the ids of the shard."""
    first_length: npt.NDArray[np.int32]
    """[N] tokens of segment A, at least 1."""
    second_begin: npt.NDArray[np.int64]
    """[N] where segment B begins."""
    second_length: npt.NDArray[np.int32]
    """[N] tokens of segment B, at least 1."""
    is_random: npt.NDArray[np.bool_]
    """[N] B does not continue A."""

    def __len__(self) -> int:
        return len(self.first_begin)

    def take(self, rows: Int64 | slice) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each instance, [CLS] and two [SEP] included."""
        return self.first_length + self.second_length + np.int32(SPECIAL_TOKENS)


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Return the pairs of several duplicates one after the other."""
    return Pairs(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Pairs)))


def make_pairs(shard: TokenShard, config: InstanceConfig, rng: np.random.Generator) -> Pairs:
    """Go through the documents once and return the truncated pairs, in the order of the text (arguments as `cut`)."""
    return truncated(cut(shard, config, rng), config.seq_len - SPECIAL_TOKENS, rng)


def cut(shard: TokenShard, config: InstanceConfig, rng: np.random.Generator) -> Pairs:
    """Go through the documents once and return the pairs of whole sentences, in the order of the text.

    Args:
        shard: the documents.
        config: how to cut.
        rng: where all draws come from.
    """
    bounds = np.concatenate([[0], shard.sentence_ends])  # sentence i is the tokens bounds[i] .. bounds[i + 1] - 1
    document_begins = np.concatenate([[0], shard.document_ends[:-1]])
    document_of = np.repeat(np.arange(len(document_begins)), shard.document_ends - document_begins)
    target = _targets(len(document_begins), config, rng)[document_of]
    sentences = np.arange(len(document_of))
    end = _reach(bounds, sentences, target, shard.document_ends[document_of])
    count = end - sentences
    middle = sentences + rng.integers(1, np.maximum(count, 2))
    is_random = (rng.random(len(count)) < 0.5) | (count == 1)
    # The sentences that a random segment B displaced come again.
    begin = _walk(np.where(is_random, middle, end))

    middle, end, target, is_random = middle[begin], end[begin], target[begin], is_random[begin]
    second = middle.copy()
    rows = np.flatnonzero(is_random)
    own, wanted = document_of[begin[rows]], target[rows] - (bounds[middle[rows]] - bounds[begin[rows]])
    other = _other_documents(own, len(document_begins), rng)
    second[rows] = rng.integers(document_begins[other], shard.document_ends[other])
    end[rows] = _reach(bounds, second[rows], wanted, shard.document_ends[other])
    # Every draw may have hit the document itself; then the label says what the pair is.
    is_random[rows] = (other != own) | (second[rows] != middle[rows])
    return Pairs(
        first_begin=bounds[begin],
        first_length=(bounds[middle] - bounds[begin]).astype(np.int32),
        second_begin=bounds[second],
        second_length=(bounds[end] - bounds[second]).astype(np.int32),
        is_random=is_random,
    )


def _targets(documents: int, config: InstanceConfig, rng: np.random.Generator) -> Int64:
    """Return the length that the pairs of each document aim at."""
    most = config.seq_len - SPECIAL_TOKENS
    is_short = rng.random(documents) < config.short_seq_prob
    return np.where(is_short, rng.integers(SHORTEST_TARGET, most + 1, documents), most)


def _reach(bounds: Int64, begin: Int64, wanted: Int64, last: Int64) -> Int64:
    """Return the end of the fewest sentences (at least one) from `begin` on that hold `wanted` tokens, or `last`."""
    return np.minimum(np.searchsorted(bounds, bounds[begin] + np.maximum(wanted, 1)), last)


def _walk(following: Int64) -> Int64:
    """Return the sentences met from the first one on; a document's last pair leads to the next document."""
    met = []
    sentence, count, view = 0, len(following), following.data
    while sentence < count:
        met.append(sentence)
        sentence = view[sentence]
    return np.array(met, dtype=np.int64)


def _other_documents(own: Int64, documents: int, rng: np.random.Generator) -> Int64:
    """Draw documents; those that hit themselves are drawn again, up to DRAWS_OF_A_DOCUMENT times in all."""
    other = rng.integers(documents, size=len(own))
    for _ in range(DRAWS_OF_A_DOCUMENT - 1):
        hits = np.flatnonzero(other == own)
        if not len(hits):
            break
        other[hits] = rng.integers(documents, size=len(hits))
    return other


def truncated(pairs: Pairs, most: int, rng: np.random.Generator) -> Pairs:
    """Drop tokens of the longer segment (B on ties) until `most` are left, from its front or back with equal chance.

    Token by token, which segment loses one depends on the lengths alone. So the lengths in the end do, too: if one
    segment is shorter than half of `most`, the other loses everything; else both end at half, and an odd token is A's.
    The side is drawn for each token, so of the r tokens that a segment loses Binomial(r, 1/2) are from its front, and
    a segment is decided by that number: this is the same distribution, drawn at once.
    """
    first, second = pairs.first_length, pairs.second_length
    first_kept = np.minimum(first, np.maximum(most - second, (most + 1) // 2))
    second_kept = np.minimum(second, most - first_kept)
    return Pairs(
        first_begin=pairs.first_begin + _from_front(first - first_kept, rng),
        first_length=first_kept,
        second_begin=pairs.second_begin + _from_front(second - second_kept, rng),
        second_length=second_kept,
        is_random=pairs.is_random,
    )


def _from_front(removed: npt.NDArray[np.int32], rng: np.random.Generator) -> Int64:
    front = np.zeros(len(removed), dtype=np.int64)
    rows = np.flatnonzero(removed)
    front[rows] = rng.binomial(removed[rows], 0.5)
    return front
