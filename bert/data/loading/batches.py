"""What batches of sequences of different lengths have in common: their order, and how they are padded.

Torch is imported only where batches are made: plans look at data with modules that import this one.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.lengths import padded_length
from bert.data.loading.order import Position
from bert.data.rows import Int64, Ragged, TokenRows
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


class FlatBatches(ABC):
    """Endless batches of the sequences of one file.

    All ranks walk the same endless sequence of global batches: G = W B sequences each, for W ranks and B =
    micro_batch_size, of which rank r takes the r-th run of B. The sequences of an epoch come in an order shuffled by
    (seed, epoch), each once; an incomplete last batch is filled from the next epoch (see SampleOrder, with one shard).

    With padding 'longest' a micro batch is as long as its longest sequence, rounded up to a multiple of 8: ranks may
    differ. With 'fixed' it has as many tokens as a sequence may have, as in most published code.

    Args:
        spec: which batches.
        lengths: tokens of each sequence [N], at least one.
        vocab_size: word pieces of the vocabulary they were made with.
        fingerprint: hash of the data.

    Raises:
        InputError: their vocabulary is larger than that of `spec`.
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", lengths: Int64, vocab_size: int, fingerprint: str) -> None:
        padded_length(spec.seq_len, spec.seq_len, spec.padding)
        if vocab_size > spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"the data in {spec.data} have {vocab_size} word pieces, but the model has only {spec.vocab_size}: "
                "use the vocabulary they were made with",
            )
        self.spec = spec
        self._lengths = lengths
        global_batch = spec.micro_batch_size * spec.world_size
        self._position = Position(np.array([[len(lengths)]]), spec.seed, global_batch, fingerprint, spec.data)

    @abstractmethod
    def _batch(self, numbers: Int64) -> "Batch":
        """Return the batch of these sequences [B]."""

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro batches on the CPU, epoch after epoch."""
        position = self._position
        while True:
            batch = self._batch(self._numbers(position.batches))
            position.batches += 1
            yield batch

    def lengths_of_batches(self, count: int) -> list[Int64]:
        """Return the real tokens of each sequence [B] of this rank's next `count` batches."""
        first = self._position.batches
        return [self._lengths[self._numbers(number)] for number in range(first, first + count)]

    def _numbers(self, batch: int) -> Int64:
        """The sequences of this rank in a global batch [B]."""
        order, size = self._position.order, self.spec.micro_batch_size
        _, first = order.batch(batch)
        start = first + self.spec.rank * size
        return np.concatenate([rows for _, rows in order.rows(0, start, start + size)])

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ: see Position.

        Raises:
            InputError: the state belongs to other data, or is damaged.
            UsageError: it was saved with another seed, hence another order.
        """
        self._position.load_state_dict(state)


def lengths_fingerprint(longest: int, lengths: Int64) -> str:
    """Return a hash of everything that made-up batches like some sequences depend on.

    Args:
        longest: tokens of a sequence at most.
        lengths: tokens of each [N].
    """
    digest = hashlib.blake2b(str(longest).encode(), digest_size=16)
    digest.update(lengths.astype("<i8").tobytes())
    return f"lengths-{digest.hexdigest()}"


def evaluation_order(
    lengths: Int64, micro_batch_size: int, rank: int, world_size: int, chosen: Int64 | None
) -> Iterator[Int64]:
    """Yield the numbers [B] of the sequences of each batch of a rank, so that every sequence comes once.

    Sequences of like length come together, the longest first, so that little is padded and a lack of memory shows at
    once. Batch i of all goes to rank i mod `world_size`; the last batch may be smaller, a rank may have one more than
    another, or none.

    Args:
        lengths: tokens of each sequence [N].
        micro_batch_size: sequences of a batch.
        rank: this rank.
        world_size: ranks in all.
        chosen: numbers of the sequences that are wanted; None is all.

    Raises:
        UsageError: no such rank or batch size.
    """
    if micro_batch_size < 1:
        raise UsageError("option-value", f"micro_batch_size={micro_batch_size} must be at least 1")
    if not 0 <= rank < world_size:
        raise UsageError(
            "option-value", f"rank {rank} of {world_size} cannot be: ranks are counted from 0, below the number of them"
        )
    order = np.argsort(-lengths, kind="stable")
    if chosen is not None:
        order = order[np.isin(order, chosen)]
    for start in range(rank * micro_batch_size, len(order), world_size * micro_batch_size):
        yield order[start : start + micro_batch_size]


def padded_batch(
    ids: Ragged,
    second: Int64,
    numbers: Int64,
    further: dict[str, npt.NDArray[Any]],
    *,
    pad_id: int,
    longest: int,
    padding: str,
) -> "Batch":
    """Return the batch of some sequences, with tensors and counts as bert.data.batch documents them.

    Args:
        ids: word pieces of all sequences.
        second: column at which segment 1 begins in each of the chosen ones [B].
        numbers: the chosen ones [B].
        further: further tensors of them by name, each [B, ...].
        pad_id: id of [PAD].
        longest: tokens of any sequence at most.
        padding: one of bert.data.lengths.PADDINGS.
    """
    import torch

    from bert.data.batch import Batch, BatchCounts

    begins = ids.offsets[numbers]
    lengths = ids.offsets[numbers + 1] - begins
    columns = padded_length(int(lengths.max()), longest, padding)
    column = np.arange(columns)
    real = column < lengths[:, None]
    # Behind a sequence's end any place will do, as long as it is one.
    places = np.minimum(begins[:, None] + column, len(ids.values) - 1)
    arrays = {
        "input_ids": np.where(real, ids.values[places], pad_id).astype(np.int64),
        "attention_mask": real.astype(np.int64),
        "token_type_ids": (real & (column >= second[:, None])).astype(np.int64),
        **further,
    }
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


class RowBatches(FlatBatches):
    """Endless batches of rows with labels, in FlatBatches' order.

    Args:
        spec: which batches.
        rows: from `spec.data`.

    Raises:
        InputError: there are no rows, or none with a label; they are longer than `spec.seq_len`, or of a larger
            vocabulary than `spec`.
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", rows: TokenRows) -> None:
        check_rows(rows, spec.data, spec.seq_len)
        self.rows = rows
        super().__init__(spec, rows.lengths, rows.vocab_size, rows.fingerprint)

    def _batch(self, numbers: Int64) -> "Batch":
        return row_batch(self.rows, numbers, self.spec.padding)


def check_rows(rows: TokenRows, source: str, seq_len: int) -> None:
    """Refuse rows that nothing can be learned from, or judged by. Raises InputError."""
    if not len(rows):
        raise InputError("data-missing", f"the data in {source} hold no row: give others, or prepare them again")
    if not rows.has_labels:
        raise InputError(
            "labels-invalid",
            f"the rows in {source} have no labels: they can be predicted, not trained on or evaluated; give labelled "
            "data",
        )
    if rows.max_seq_length > seq_len:
        raise InputError(
            "data-mismatch",
            f"the rows in {source} have up to {rows.max_seq_length} tokens, more than the {seq_len} of this run: use "
            f"{rows.max_seq_length}, or prepare shorter ones",
        )


def row_batch(rows: TokenRows, numbers: Int64, padding: str = "longest") -> "Batch":
    """Return the batch of the rows with these numbers [B]: input_ids, attention_mask, token_type_ids [B, S], labels [B]
    where the rows have some, and their further columns.

    With padding 'fixed' it has rows.max_seq_length columns.
    """
    further = {name: column[numbers] for name, column in rows.columns.items()}
    further |= {"labels": rows.labels[numbers]} if rows.has_labels else {}
    second = rows.second[numbers]
    return padded_batch(
        rows.ids, second, numbers, further, pad_id=rows.pad_id, longest=rows.max_seq_length, padding=padding
    )


def evaluation_rows(
    rows: TokenRows,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    chosen: Int64 | None = None,
) -> "Iterator[tuple[Int64, Batch]]":
    """Yield every row of a rank once, with the numbers of the rows [B] that each batch consists of.

    Where numbers of rows were `chosen`, only those are yielded. The order is that of evaluation_order.
    """
    for numbers in evaluation_order(rows.lengths, micro_batch_size, rank, world_size, chosen):
        yield numbers, row_batch(rows, numbers)
