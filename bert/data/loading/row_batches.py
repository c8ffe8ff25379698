"""Batches of rows with labels: endless ones to train on, one pass to evaluate and predict with.

Torch is imported only where batches are made: plans look at rows with this module.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert.data.loading.flat_batches import FlatBatches, evaluation_order, padded_batch
from bert.data.ragged import Int64
from bert.data.rows import TokenRows
from common.errors import InputError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


class RowBatches(FlatBatches):
    """Endless batches of rows with labels, in FlatBatches' order.

    Args:
        spec: which batches.
        rows: from `spec.source`.

    Raises:
        InputError: there are no rows, or none with a label; they are longer than `spec.seq_len`, or of a larger
            vocabulary than `spec`.
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", rows: TokenRows) -> None:
        check_rows(rows, spec.source, spec.seq_len)
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
