"""Token ids in, pretraining instances out (Devlin et al. 2018, appendix A.2; google-research/bert).

The algorithm is that of `create_pretraining_data.py`, over arrays. First a plan is made: where the segments of all
instances lie, and their order. Rows are then filled and masked (masking.py) block by block, so that memory
holds the tokens, the plan and one block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from bert.data.rows import offsets_of
from bert.data.synthetic import Lengths, random_words, special_ids
from bert.data.vocabulary import Ids
from bert.tasks.pretrain.masking import SPECIAL_TOKENS, InstanceConfig, Pieces, mask

Int64 = npt.NDArray[np.int64]
DRAWS_OF_A_DOCUMENT = 10
SHORTEST_TARGET = 2


@dataclass(frozen=True, slots=True)
class TokenShard:
    """The word pieces of one shard: T tokens in S sentences in D documents, none of them empty."""

    ids: Ids
    """[T] ids; 16 bits where the vocabulary fits."""
    sentence_ends: Int64
    """[S] one past the last token of each sentence, ascending; the last is T."""
    document_ends: Int64
    """[D] one past the last sentence of each document, ascending; the last is S."""


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


def cut(shard: TokenShard, config: InstanceConfig, rng: np.random.Generator) -> Pairs:
    """Go through the documents once and return the pairs of whole sentences, in the order of the text."""
    bounds = np.concatenate([[0], shard.sentence_ends])  # sentence i is the tokens bounds[i] .. bounds[i + 1] - 1
    document_begins = np.concatenate([[0], shard.document_ends[:-1]])
    document_of = np.repeat(np.arange(len(document_begins)), shard.document_ends - document_begins)
    target = _targets(len(document_begins), config, rng)[document_of]
    sentences = np.arange(len(document_of))
    end = _reach(bounds, sentences, target, shard.document_ends[document_of])
    alone = len(document_begins) == 1  # no other document that a segment B could come from
    if alone:
        end = np.minimum(np.maximum(end, sentences + 2), len(sentences))
    count = end - sentences
    middle = sentences + rng.integers(1, np.maximum(count, 2))
    is_random = ((rng.random(len(count)) < 0.5) | (count == 1)) & (not alone)
    # The sentences that a random segment B displaced come again.
    begin = _walk(np.where(is_random, middle, end))
    if alone:
        begin = begin[count[begin] > 1]

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


Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
BLOCK_ROWS = 2048
"""Rows filled at once. Part of the result: each block has its own random numbers."""
# What random numbers are for; with the seed, the shard and a number it makes a stream of its own.
_CUTS, _ORDER, _MASKS = range(3)


@dataclass(frozen=True, slots=True)
class Instances:
    """N instances of L tokens with at most P masked positions, padded with 0; the layout of the HDF5 shards."""

    input_ids: Int32
    """[N, L] ids after masking."""
    input_mask: Int8
    """[N, L] 1 = real token."""
    segment_ids: Int8
    """[N, L] 1 = second segment with its [SEP]."""
    masked_lm_positions: Int32
    """[N, P] columns of the masked tokens, ascending; 0 ends the list."""
    masked_lm_ids: Int32
    """[N, P] ids before masking."""
    next_sentence_labels: Int8
    """[N] 1 = the second segment is random."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the instances of a shard will be."""

    shard: TokenShard
    pieces: Pieces
    """The special ids and the range of random ids."""
    config: InstanceConfig
    stream: tuple[int, ...]
    """Numbers that tell this shard from others."""
    pairs: Pairs
    """The segments of each instance, in the order of the rows."""

    def __len__(self) -> int:
        return len(self.pairs)

    def blocks(self) -> Iterator[Instances]:
        """Yield the rows, BLOCK_ROWS at a time; each time the same."""
        for number, begin in enumerate(range(0, len(self), BLOCK_ROWS)):
            rng = _random(self.config.seed, self.stream, _MASKS, number)
            yield _rows(self, self.pairs.take(slice(begin, begin + BLOCK_ROWS)), rng)


def plan_instances(shard: TokenShard, pieces: Pieces, config: InstanceConfig, stream: Sequence[int] = ()) -> Plan:
    """Return the instances of one shard that is not empty as a plan: all duplicates, shuffled.

    `stream` are numbers that tell this shard from others (split, shard index). Draws depend on the seed, these numbers,
    what they are for and the number of the duplicate or block only, never on the process that makes the shard.
    """
    parts = []
    for number in range(config.dupe_factor):
        rng = _random(config.seed, stream, _CUTS, number)
        parts.append(truncated(cut(shard, config, rng), config.seq_len - SPECIAL_TOKENS, rng))
    pairs = Pairs(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Pairs)))
    order = _random(config.seed, stream, _ORDER).permutation(len(pairs))
    return Plan(shard, pieces, config, tuple(stream), pairs.take(order))


def _random(seed: int, stream: Sequence[int], purpose: int, number: int = 0) -> np.random.Generator:
    # The length of the stream keeps (1,), purpose 2 apart from (1, 2).
    return np.random.default_rng([seed, len(stream), *stream, purpose, number])


def _rows(plan: Plan, pairs: Pairs, rng: np.random.Generator) -> Instances:
    seq_len, pieces = plan.config.seq_len, plan.pieces
    columns = np.arange(seq_len)
    lengths, middle = pairs.lengths, pairs.first_length + np.int32(1)
    is_real = columns < lengths[:, None]
    is_second = (columns > middle[:, None]) & is_real
    # Where each column's token lies: the first segment begins in column 1, the second one after the [SEP].
    shift = np.where(is_second, (pairs.second_begin - middle - 1)[:, None], (pairs.first_begin - 1)[:, None])
    ids = plan.shard.ids.take(shift + columns, mode="clip").astype(np.int32)
    ids *= is_real
    ids[:, 0] = pieces.cls_id
    rows = np.arange(len(pairs))
    ids[rows, middle] = pieces.sep_id
    ids[rows, lengths - 1] = pieces.sep_id
    positions, labels = mask(ids, lengths, pairs.first_length, plan.config, pieces, rng)
    return Instances(
        input_ids=ids,
        input_mask=is_real.view(np.int8),
        segment_ids=is_second.view(np.int8),
        masked_lm_positions=positions,
        masked_lm_ids=labels,
        next_sentence_labels=pairs.is_random.astype(np.int8),
    )


def random_instances(lengths: Lengths, config: InstanceConfig, vocab_size: int, rng: np.random.Generator) -> Instances:
    """Return instances of random word pieces with these lengths [N], 5 to seq_len tokens each; half of B are random."""
    begins = offsets_of(lengths)
    first = rng.integers(1, lengths - SPECIAL_TOKENS).astype(np.int32)
    pairs = Pairs(
        first_begin=begins[:-1],
        first_length=first,
        second_begin=begins[:-1] + first,
        second_length=(lengths - SPECIAL_TOKENS - first).astype(np.int32),
        is_random=rng.random(len(lengths)) < 0.5,
    )
    shard = TokenShard(random_words(rng, int(begins[-1]), vocab_size), begins[1:], np.arange(1, len(begins)))
    pieces = Pieces(vocab_size, *special_ids(vocab_size), np.zeros(vocab_size, np.bool_))
    return _rows(Plan(shard, pieces, config, (), pairs), pairs, rng)
