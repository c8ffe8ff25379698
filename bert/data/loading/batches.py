"""Batches of data: endless ones to train on, the same global batches on any number of ranks; one pass to evaluate with.

Torch is imported only where batches are made: plans look at data with this module.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.lengths import padded_length
from bert.data.loading.balance import divide, work_of
from bert.data.loading.order import SampleOrder
from bert.data.rows import Int64, TokenRows
from bert.model.config import model_config
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


class Batches(ABC):
    """Endless batches of samples in shards and bins, and where they are in the order of the samples.

    All ranks walk the same endless sequence of global batches (see SampleOrder): G = W B samples each, for W ranks and
    B = micro_batch_size, of which rank r takes the r-th run of B, or with `spec.balanced` B samples such that all ranks
    have about the same work (bert.data.loading.balance). So ranks are disjoint, every sample comes once per epoch, an
    incomplete last batch is filled from the next epoch, and fewer samples than one global batch work too.

    Args:
        spec: which batches.
        counts: samples of each bin in each shard [shards, bins].
        fingerprint: hash of the data.
        place: the data, for messages.
    """

    def __init__(self, spec: "DataSpec", counts: Int64, fingerprint: str, place: object) -> None:
        self.spec = spec
        self._counts = counts
        self._fingerprint = fingerprint
        self._place = place
        self._order = self._order_from(spec.micro_batch_size * spec.world_size)
        self._config = model_config(spec) if spec.balanced and spec.world_size > 1 else None
        self._yielded = 0
        """Batches yielded since the order began."""

    @abstractmethod
    def _batch(self, number: int) -> "Batch":
        """Make this rank's part of a global batch."""

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        while True:
            batch = self._batch(self._yielded)
            self._yielded += 1
            yield batch

    @abstractmethod
    def _lengths(self, shard: int, which: int, rows: Int64) -> Int64:
        """Real tokens of some samples of a bin in a shard [N]."""

    def _part(self, number: int) -> tuple[int, int, list[tuple[int, Int64]]]:
        """This rank's part of a global batch: its bin, the first sample of the bin's stream that had to be looked at,
        and (shard, rows) of its samples.
        """
        which, first = self._order.batch(number)
        size, rank = self.spec.micro_batch_size, self.spec.rank
        if self._config is None:
            start = first + rank * size
            return which, start, list(self._order.rows(which, start, start + size))
        pieces = list(self._order.rows(which, first, first + self.spec.world_size * size))
        lengths = np.concatenate([self._lengths(shard, which, rows) for shard, rows in pieces])
        own = divide(work_of(lengths, self._config), self.spec.world_size)[rank]
        ends = np.cumsum([len(rows) for _, rows in pieces])
        parts = np.split(own, own.searchsorted(ends[:-1]))
        begins = ends - [len(rows) for _, rows in pieces]
        taken = zip(pieces, parts, begins, strict=True)
        return which, first, [(shard, rows[part - begin]) for (shard, rows), part, begin in taken if len(part)]

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        order = self._order
        return {
            "samples": sum(order.origins) + self._yielded * order.global_batch,
            "origins": list(order.origins),
            "batches": self._yielded,
            "global_batch": order.global_batch,
            "seed": self.spec.seed,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ.

        With the same global batch the batches are those that would have come. With another one every bin continues with
        its next sample, none comes twice and none is left out; without bins the samples keep their order too, and
        with bins the order in which the bins take turns is drawn again for what is left of the epoch.

        Raises:
            InputError: the state belongs to other data, or is damaged.
            UsageError: it was saved with another seed, hence another order.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise InputError(
                "data-mismatch", f"the saved data position is not of {self._place}: use the data it was saved with"
            )
        size = self._order.global_batch
        try:
            seed = int(state["seed"])
            saved = self._order_from(int(state["global_batch"]), [int(origin) for origin in state["origins"]])
            batches = int(state["batches"])
            if len(saved.origins) != saved.bins or min(batches, *saved.origins) < 0 or saved.global_batch < 1:
                raise ValueError("values out of range")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("file-damaged", f"the saved data position {dict(state)} is damaged ({error!r})") from error
        if seed != self.spec.seed:
            raise UsageError(
                "settings-changed",
                f"the saved data position has seed {seed}, this run seed {self.spec.seed}: use --seed {seed}",
            )
        if saved.global_batch == size:
            self._order, self._yielded = saved, batches
        else:
            self._order, self._yielded = self._order_from(size, saved.positions(batches)), 0

    def _order_from(self, global_batch: int, origins: Sequence[int] | None = None) -> SampleOrder:
        return SampleOrder(self._counts, self.spec.seed, global_batch, origins)


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
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", rows: TokenRows) -> None:
        padded_length(spec.seq_len, spec.seq_len, spec.padding)
        _check_any(rows, spec.data)
        if rows.vocab_size > spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{spec.data} uses {rows.vocab_size} word pieces, the model only {spec.vocab_size}: use its vocabulary",
            )
        self.rows = rows
        super().__init__(spec, np.array([[len(rows)]]), rows.fingerprint, spec.data)

    def _batch(self, number: int) -> "Batch":
        return row_batch(self.rows, self._numbers(number), self.spec.padding)

    def lengths_of_batches(self, count: int) -> list[Int64]:
        """Return the real tokens of each row [B] of this rank's next `count` batches."""
        lengths = self.rows.lengths
        return [lengths[self._numbers(number)] for number in range(self._yielded, self._yielded + count)]

    def _lengths(self, shard: int, which: int, rows: Int64) -> Int64:
        offsets = self.rows.ids.offsets
        return offsets[rows + 1] - offsets[rows]

    def _numbers(self, batch: int) -> Int64:
        """The rows of this rank in a global batch [B]."""
        return np.concatenate([rows for _, rows in self._part(batch)[2]])


def _check_any(rows: TokenRows, source: str) -> None:
    if not len(rows):
        raise InputError("data-missing", f"the data in {source} holds no rows: give other data, or prepare it again")


def check_rows(rows: TokenRows, source: str, seq_len: int) -> None:
    """Refuse rows whose labels are missing or unusable for training and evaluation. Raises InputError."""
    _check_any(rows, source)
    if not rows.has_labels:
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
    import torch

    from bert.data.batch import Batch, BatchCounts

    ids, second = rows.ids, rows.second[numbers]
    begins = ids.offsets[numbers]
    lengths = ids.offsets[numbers + 1] - begins
    columns = padded_length(int(lengths.max()), rows.max_seq_length, padding)
    column = np.arange(columns)
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
    return Batch(
        {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()},
        BatchCounts(
            samples=len(numbers),
            real_tokens=int(lengths.sum()),
            padded_tokens=len(numbers) * columns,
            predicted_positions=0,
            squared_lengths=int(lengths @ lengths),
        ),
    )


def evaluation_rows(
    rows: TokenRows, micro_batch_size: int, rank: int = 0, world_size: int = 1, chosen: Int64 | None = None
) -> "Iterator[tuple[Int64, Batch]]":
    """Yield every row of a rank once, with the numbers of the rows [B] that each batch consists of.

    Rows of like length come together, the longest first, so that little is padded and a lack of memory shows at once.
    Batch i of all goes to rank i mod `world_size`; the last batch may be smaller, a rank may have one more than
    another, or none.

    Args:
        rows: all there are.
        micro_batch_size: rows of a batch.
        rank: this rank.
        world_size: ranks in all.
        chosen: numbers of the rows that are wanted; None is all.
    """
    order = np.argsort(-rows.lengths, kind="stable")
    if chosen is not None:
        order = order[np.isin(order, chosen)]
    for start in range(rank * micro_batch_size, len(order), world_size * micro_batch_size):
        numbers = order[start : start + micro_batch_size]
        yield numbers, row_batch(rows, numbers)


def lengths_fingerprint(longest: int, lengths: Int64) -> str:
    """Return a hash of everything that synthetic batches with the lengths of real sequences depend on.

    Args:
        longest: maximum tokens of a sequence.
        lengths: tokens of each [N].
    """
    digest = hashlib.blake2b(str(longest).encode(), digest_size=16)
    digest.update(lengths.astype("<i8").tobytes())
    return f"lengths-{digest.hexdigest()}"
