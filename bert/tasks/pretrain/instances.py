"""Token ids in, pretraining instances out (Devlin et al. 2018, appendix A.2; google-research/bert).

The algorithm is that of `create_pretraining_data.py`, over arrays. First a plan is made: where the segments of all
instances lie (pairs.py), and their order. Rows are then filled and masked (masking.py) block by block, so that memory
holds the tokens, the plan and one block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.masking import Pieces, mask
from bert.tasks.pretrain.pairs import Pairs, joined, make_pairs
from bert.tasks.pretrain.tokens import TokenShard
from common.errors import UsageError

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
    """The documents."""
    pieces: Pieces
    """The special ids and the range of random ids."""
    config: InstanceConfig
    """How to mask."""
    stream: tuple[int, ...]
    """Numbers that tell this shard from others."""
    pairs: Pairs
    """The segments of each instance, in the order of the rows."""
    bin_lengths: tuple[int, ...] = ()
    """Longest real length of each bin; () = the rows are not binned."""
    bin_counts: tuple[int, ...] = ()
    """Rows of each bin; the rows lie bin after bin."""

    def __len__(self) -> int:
        return len(self.pairs)

    def blocks(self) -> Iterator[Instances]:
        """Yield the rows, BLOCK_ROWS at a time; each time the same."""
        for number, begin in enumerate(range(0, len(self), BLOCK_ROWS)):
            rng = _random(self.config.seed, self.stream, _MASKS, number)
            yield _rows(self, self.pairs.take(slice(begin, begin + BLOCK_ROWS)), rng)


def plan_instances(
    shard: TokenShard,
    pieces: Pieces,
    config: InstanceConfig,
    stream: Sequence[int] = (),
    length_bins: int | None = None,
) -> Plan:
    """Return the instances of one shard as a plan: all duplicates, shuffled.

    Args:
        shard: the documents.
        pieces: what is needed of the vocabulary.
        config: how to cut and mask.
        stream: numbers that tell this shard from others (split, shard index). Draws depend on the seed, these numbers,
            what they are for and the number of the duplicate or block only, never on the process that makes the shard.
        length_bins: rows come by their real length, in bins of this many tokens, shuffled inside each bin.

    Raises:
        UsageError: `length_bins` does not divide the sequence length.
    """
    if length_bins is not None and (length_bins < 1 or config.seq_len % length_bins):
        raise UsageError(
            "option-value",
            f"length bins of {length_bins} tokens must divide the sequence length {config.seq_len} evenly",
        )
    if not len(shard.ids):
        return Plan(shard, pieces, config, tuple(stream), joined([_no_pairs()]))
    pairs = joined(
        [make_pairs(shard, config, _random(config.seed, stream, _CUTS, number)) for number in range(config.dupe_factor)]
    )
    order = _random(config.seed, stream, _ORDER).permutation(len(pairs))
    if length_bins is None:
        return Plan(shard, pieces, config, tuple(stream), pairs.take(order))
    bins = (pairs.lengths[order] - 1) // length_bins
    counts = np.bincount(bins, minlength=config.seq_len // length_bins)
    return Plan(
        shard,
        pieces,
        config,
        tuple(stream),
        pairs.take(order[np.argsort(bins, kind="stable")]),
        bin_lengths=tuple(range(length_bins, config.seq_len + 1, length_bins)),
        bin_counts=tuple(counts.tolist()),
    )


def _no_pairs() -> Pairs:
    places, lengths = np.empty(0, np.int64), np.empty(0, np.int32)
    return Pairs(places, lengths, places, lengths, np.empty(0, np.bool_))


def _random(seed: int, stream: Sequence[int], purpose: int, number: int = 0) -> np.random.Generator:
    # The length of the stream keeps (1,), purpose 2 apart from (1, 2).
    return np.random.default_rng([seed, len(stream), *stream, purpose, number])


def _rows(plan: Plan, pairs: Pairs, rng: np.random.Generator) -> Instances:
    seq_len, pieces = plan.config.seq_len, plan.pieces
    columns = np.arange(seq_len)
    lengths, middle = pairs.lengths, pairs.first_length + np.int32(1)
    is_real = columns < lengths[:, None]
    is_second = (columns > middle[:, None]) & is_real
    # Where each column's token lies: the first segment begins in column 1, the second one behind the [SEP].
    shift = np.where(is_second, (pairs.second_begin - middle - 1)[:, None], (pairs.first_begin - 1)[:, None])
    ids = plan.shard.ids.take(shift + columns, mode="clip").astype(np.int32)
    ids *= is_real
    ids[:, 0] = pieces.cls_id
    rows = np.arange(len(pairs))
    ids[rows, middle] = pieces.sep_id
    ids[rows, lengths - 1] = pieces.sep_id
    masked = mask(ids, lengths, pairs.first_length, plan.config, pieces, rng)
    return Instances(
        input_ids=ids,
        input_mask=is_real.view(np.int8),
        segment_ids=is_second.view(np.int8),
        masked_lm_positions=masked.positions,
        masked_lm_ids=masked.labels,
        next_sentence_labels=pairs.is_random.astype(np.int8),
    )
