"""Batches of data: endless ones to train on, the same global batches on any number of ranks; one pass to evaluate with.

Torch is imported only where batches are made: plans look at data with this module.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.rows import Int64, TokenRows
from common.errors import InputError, UsageError
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    from bert.data.batch import Batch

PADDINGS = ("longest", "fixed")
"""How rows of different lengths become a batch: padded to the longest of them, or to the most there can be."""
PADDED_MULTIPLE = 8
"""The longest row of a batch is rounded up to a multiple of this, which suits tensor cores."""
# What a permutation is of; the numbers tell the random streams apart.
_SHARDS, _SAMPLES = 1, 2
# A FLOP of attention takes this much of the time of a FLOP of the linear layers, on CPUs and GPUs alike. The division
# hardly depends on it: attention is a tenth of the work of 254 tokens in a large model.
_ATTENTION_COST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec(TrainSpec):
    """A training as one rank draws its batches: micro_batch_size is that of a rank; ranks see disjoint samples."""

    padding: str = PADDINGS[0]
    """Of batches that do not come padded: one of PADDINGS."""
    rank: int = 0
    token_work: int = 0
    """ModelConfig.token_work, to divide samples between ranks and micro-batches by work; 0 leaves them in runs."""
    pool: int = 1
    """Successive micro-batches whose samples are divided together."""


class SampleOrder:
    """An endless stream of the samples of shards, the same on every rank, any position reached directly.

    Epoch after epoch the shards come in an order shuffled by (seed, epoch), the samples of each in an order shuffled by
    (seed, epoch, shard).

    Args:
        counts: samples of each shard [shards], at least one in all.
        seed: of the order.
    """

    def __init__(self, counts: Int64, seed: int) -> None:
        self._counts = counts
        self._total = int(counts.sum())
        self._shuffled = lru_cache(maxsize=8)(partial(_shuffled, abs(seed)))
        self._shards = lru_cache(maxsize=4)(self._shards_of)

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, Int64]]:
        """Yield (shard, rows of its samples) for samples start .. stop - 1 of the stream."""
        while start < stop:
            shard, begin, end = self.piece(start)
            last = min(stop, end)
            samples = self._shuffled(end - begin, _SAMPLES, start // self._total, shard)
            yield shard, samples[start - begin : last - begin]
            start = last

    def piece(self, sample: int) -> tuple[int, int, int]:
        """Return the shard that holds a sample of the stream, and which samples [begin, end) it holds."""
        epoch, offset = divmod(sample, self._total)
        order, ends = self._shards(epoch)
        slot = int(ends.searchsorted(offset, side="right"))
        shard = int(order[slot])
        end = epoch * self._total + int(ends[slot])
        return shard, end - int(self._counts[shard]), end

    def _shards_of(self, epoch: int) -> tuple[Int64, Int64]:
        order = self._shuffled(len(self._counts), _SHARDS, epoch)
        return order, np.cumsum(self._counts[order])


def _shuffled(seed: int, count: int, *stream: int) -> Int64:
    return np.random.default_rng([seed, *stream]).permutation(count)


def work_of(lengths: Int64, token_work: int) -> Int64:
    """Return the work of sequences of these lengths [N] in a layer, in units of 4 H FLOPs of its linear layers.

    A token costs `token_work` there, a sequence of S tokens 4 H S^2 FLOPs in attention. Heads are left out: their work
    is a small multiple of the tokens or the same for every sequence.
    """
    return lengths * token_work + _ATTENTION_COST * lengths**2


def divide(work: Int64, groups: int) -> Int64:
    """Return which samples are in each group, [groups, B] numbers of the groups x B samples of this `work`, ascending.

    A group is what a rank computes in a micro-step. Longest first: of each `groups` samples in descending order of
    work, the group with the least work so far takes the largest, the next one the second, and so on (Graham 1969, SIAM
    Journal on Applied Mathematics 17(2), with as many samples for every group). If this does not lower the largest work
    of a group, the samples stay in runs. It depends on `work` alone, in whole numbers: every rank finds the same
    division.
    """
    runs = np.arange(len(work)).reshape(groups, -1)
    descending = np.argsort(-work, kind="stable").reshape(-1, groups)
    own = np.empty_like(descending)
    loads = np.zeros(groups, dtype=np.int64)
    for turn, samples in enumerate(descending):
        least = np.argsort(loads, kind="stable")
        own[turn, least] = samples
        loads[least] += work[samples]
    return np.sort(own.T, axis=1) if loads.max() < work[runs].sum(axis=1).max() else runs


def spread(count: int, samples: int) -> Int64:
    """Return the numbers of some of `count` samples, spread evenly and ascending; all of them where `samples` is 0."""
    wanted = min(samples, count) if samples > 0 else count
    return np.arange(wanted, dtype=np.int64) * count // max(1, wanted)


class Batches(ABC):
    """Endless batches of the samples of shards, and the position in their order.

    All ranks walk the same endless sequence of global batches (see SampleOrder): G = W B samples each, for W ranks and
    B = micro_batch_size, of which rank r takes the r-th run of B, or with `spec.token_work` B samples such that all
    ranks have about the same work (see divide). So ranks are disjoint, every sample comes once per epoch,
    an incomplete last batch is filled from the next epoch, and fewer samples than one global batch work too.

    With `spec.pool` the samples of so many successive global batches are divided at once, so that these have about the
    same work too. A pool has begun up to `pool` - 1 whole global batches before a position, as the number of samples
    there says: a run continues exactly in the middle of a pool. With another global batch it draws up to `pool` - 1
    global batches anew from samples near the position, of which it has seen some.

    Args:
        spec: which batches.
        counts: samples of each shard [shards].
        fingerprint: hash of the data.
        place: the data, for messages.
    """

    def __init__(self, spec: DataSpec, counts: Int64, fingerprint: str, place: object) -> None:
        self.spec = spec
        self._fingerprint = fingerprint
        self._place = place
        self._order = SampleOrder(counts, spec.seed)
        self._global_batch = spec.micro_batch_size * spec.world_size
        self._divided = spec.token_work > 0 and spec.world_size * spec.pool > 1
        self._pool = lru_cache(maxsize=1)(self._divided_pool)
        self._next = 0
        """First sample of the next global batch."""

    @abstractmethod
    def _batch(self, pieces: list[tuple[int, Int64]]) -> "Batch":
        """Make the batch of samples, as (shard, rows)."""

    @abstractmethod
    def _lengths(self, shard: int, rows: Int64) -> Int64:
        """Real tokens of some samples of a shard [N]."""

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        while True:
            batch = self._batch(self._part())
            self._next += self._global_batch
            yield batch

    def _begin(self, first: int) -> int:
        """First sample that this rank looks at for the global batch that begins with sample `first`."""
        if self._divided:
            return first - self._turn(first) * self._global_batch
        return first + self.spec.rank * self.spec.micro_batch_size

    def _turn(self, first: int) -> int:
        """Which global batch of its pool begins with sample `first`."""
        return first // self._global_batch % self.spec.pool

    def _part(self) -> list[tuple[int, Int64]]:
        """This rank's part of the next global batch: (shard, rows) of its samples."""
        start = self._begin(self._next)
        if not self._divided:
            return list(self._order.rows(start, start + self.spec.micro_batch_size))
        pieces, groups = self._pool(start)
        own = groups[self._turn(self._next) * self.spec.world_size + self.spec.rank]
        ends = np.cumsum([len(rows) for _, rows in pieces])
        parts = zip(pieces, ends, np.split(own, own.searchsorted(ends[:-1])), strict=True)
        return [(shard, rows[part - (end - len(rows))]) for (shard, rows), end, part in parts if len(part)]

    def _divided_pool(self, start: int) -> tuple[list[tuple[int, Int64]], Int64]:
        """Samples of the pool that begins with sample `start`, as (shard, rows), and the part of each turn and rank."""
        groups = self.spec.pool * self.spec.world_size
        pieces = list(self._order.rows(start, start + groups * self.spec.micro_batch_size))
        lengths = np.concatenate([self._lengths(shard, rows) for shard, rows in pieces])
        return pieces, divide(work_of(lengths, self.spec.token_work), groups)

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        return {"samples": self._next, "seed": self.spec.seed, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position with the next sample; the number of ranks and the batch size may differ.

        Raises:
            InputError: the state belongs to other data.
            UsageError: it was saved with another seed, hence another order.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise InputError(
                "data-mismatch", f"the saved data position is not of {self._place}: use the data it was saved with"
            )
        if state["seed"] != self.spec.seed:
            raise UsageError(
                "settings-changed",
                f"the saved data position has seed {state['seed']}, this run seed {self.spec.seed}: use the former",
            )
        self._next = state["samples"]


class RowBatches(Batches):
    """Endless batches of rows.

    The rows of an epoch come in an order shuffled by (seed, epoch), each once. With padding 'longest' a micro batch is
    as long as its longest row, rounded up to a multiple of 8: ranks may differ. With 'fixed' it has as many tokens as a
    row may have, as in most published code.

    Args:
        spec: which batches.
        rows: from `spec.data`.

    Raises:
        InputError: there are no rows, or their vocabulary is larger than that of `spec`.
    """

    def __init__(self, spec: DataSpec, rows: TokenRows) -> None:
        _check_any(rows, spec.data)
        if rows.vocab_size > spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{spec.data} uses {rows.vocab_size} word pieces, the model only {spec.vocab_size}: use its vocabulary",
            )
        self.rows = rows
        super().__init__(spec, np.array([len(rows)]), rows.fingerprint, spec.data)

    def _batch(self, pieces: list[tuple[int, Int64]]) -> "Batch":
        return row_batch(self.rows, np.concatenate([rows for _, rows in pieces]), self.spec.padding)

    def _lengths(self, shard: int, rows: Int64) -> Int64:
        offsets = self.rows.ids.offsets
        return offsets[rows + 1] - offsets[rows]


def _check_any(rows: TokenRows, source: str) -> None:
    if not len(rows):
        raise InputError("data-missing", f"the data in {source} holds no rows: give other data, or prepare it again")


def check_rows(rows: TokenRows, source: str, seq_len: int, labelled: bool) -> None:
    """Refuse rows that cannot be trained or evaluated on, such as those without labels. Raises InputError."""
    _check_any(rows, source)
    if labelled and not rows.has_labels:
        raise InputError("labels-invalid", f"the rows in {source} have no labels: give labeled data")
    if rows.max_seq_length > seq_len:
        raise InputError(
            "data-mismatch",
            f"the rows in {source} have up to {rows.max_seq_length} tokens, this run {seq_len}: use the former",
        )


def row_batch(rows: TokenRows, numbers: Int64, padding: str = "longest") -> "Batch":
    """Return the batch of the rows with these numbers [B]: input_ids, attention_mask, token_type_ids [B, S], labels [B]
    where the rows have some, and their further columns; counts as bert.data.batch documents them.

    With padding 'fixed' it has rows.max_seq_length columns.
    """
    from bert.data.batch import batch_of

    ids, second = rows.ids, rows.second[numbers]
    begins = ids.offsets[numbers]
    lengths = ids.offsets[numbers + 1] - begins
    wanted = rows.max_seq_length if padding == "fixed" else -(-int(lengths.max()) // PADDED_MULTIPLE) * PADDED_MULTIPLE
    column = np.arange(min(wanted, rows.max_seq_length))
    real = column < lengths[:, None]
    # After a row's end any place will do, as long as it is one.
    places = np.minimum(begins[:, None] + column, len(ids.values) - 1)
    arrays = {
        "input_ids": np.where(real, ids.values[places], rows.pad_id).astype(np.int64),
        "attention_mask": real.astype(np.int64),
        "token_type_ids": (real & (column >= second[:, None])).astype(np.int64),
        **{name: values[numbers] for name, values in rows.columns.items()},
    }
    if rows.has_labels:
        arrays["labels"] = rows.labels[numbers]
    return batch_of(arrays, lengths)


def evaluation_rows(
    rows: TokenRows, micro_batch_size: int, rank: int = 0, world_size: int = 1, chosen: Int64 | None = None
) -> "Iterator[tuple[Int64, Batch]]":
    """Yield every row of a rank once, or those `chosen` by number, with the numbers of the rows [B] of each batch.

    Rows of like length come together, the longest first, so that little is padded and a lack of memory shows at once.
    Batch i of all goes to rank i mod `world_size`; the last batch may be smaller, a rank may have one more than
    another, or none.
    """
    order = np.argsort(-rows.lengths, kind="stable")
    if chosen is not None:
        order = order[np.isin(order, chosen)]
    for start in range(rank * micro_batch_size, len(order), world_size * micro_batch_size):
        numbers = order[start : start + micro_batch_size]
        yield numbers, row_batch(rows, numbers)


def lengths_fingerprint(number: int, lengths: Int64) -> str:
    """Return a hash of what synthetic batches depend on: lengths or how many there are of each, and a number."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=16)
    digest.update(lengths.astype("<i8").tobytes())
    return f"lengths-{digest.hexdigest()}"
