"""Made-up batches whose sequence lengths follow a named distribution; for speed only, nothing is learned from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bert.batch import Batch, BatchCounts
from bert.data.lengths import DISTRIBUTIONS, check_distribution
from bert.tasks.base import DataSpec
from common.errors import InputError

LARGEST_POOL = 16
"""Different batches before they repeat."""
POOL_TOKENS = 2**21
"""Fewer batches are made when they are large: about 50 MB of tensors, and never under two batches."""


class SyntheticBatches:
    """Endless batches from a pool made once; the same spec gives the same batches, ranks get different ones.

    Lengths follow `spec.source` ('synthetic' = phase1, or 'synthetic:<name>' of bert.data.lengths). Of a sequence of n
    tokens round(0.15 n) are predicted, at least 1 and at most `max_predictions`, 80 % of them behind the mask id.

    Raises:
        UsageError: an unknown distribution, or one that is none for this sequence length.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self._lengths = DISTRIBUTIONS[check_distribution(spec.source, spec.seq_len)]
        tokens = max(1, spec.micro_batch_size * spec.seq_len)
        self.pool_size = min(LARGEST_POOL, max(2, POOL_TOKENS // tokens))
        self._pool: dict[int, Batch] = {}
        self._step = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield micro-batches on the CPU for ever."""
        for slot in range(self.pool_size):
            self._batch(slot)
        while True:
            batch = self._batch(self._step % self.pool_size)
            self._step += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Raises InputError for a state of another kind of stream."""
        if not isinstance(state.get("step"), int):
            raise InputError(
                f"the saved data position {state} is none of synthetic batches: use the data it was made with"
            )
        self._step = state["step"]

    def _batch(self, slot: int) -> Batch:
        if slot not in self._pool:
            spec = self.spec
            rng = np.random.default_rng([abs(spec.seed), spec.rank, slot])
            self._pool[slot] = make_batch(rng, self._lengths(rng, spec.micro_batch_size, spec.seq_len), spec)
        return self._pool[slot]


def make_batch(rng: np.random.Generator, lengths: np.ndarray[Any, np.dtype[np.int64]], spec: DataSpec) -> Batch:
    """Return one batch of random ids with these lengths, [B] of 5 to seq_len each."""
    rows, columns = len(lengths), spec.seq_len
    # Ids as in bert-base-uncased where the vocabulary has room for them: 101 [CLS], 102 [SEP], 103 [MASK].
    base = 100 if spec.vocab_size > 200 else 0
    cls_id, sep_id, mask_id = base + 1, base + 2, base + 3
    column = np.arange(columns)
    real = column < lengths[:, None]
    ids = rng.integers(min(mask_id + 1, spec.vocab_size - 1), spec.vocab_size, (rows, columns))
    middle = rng.integers(2, lengths - 2)
    ids[:, 0] = cls_id
    ids[np.arange(rows), middle] = sep_id
    ids[np.arange(rows), lengths - 1] = sep_id
    ids[~real] = 0
    counts = np.minimum(spec.max_predictions, np.maximum(1, np.rint(0.15 * lengths))).astype(np.int64)
    # At most n - 3 tokens of a sequence can be masked.
    counts = np.minimum(counts, lengths - 3)
    excluded = ~real | (column == 0) | (column == middle[:, None]) | (column == lengths[:, None] - 1)
    order = np.argsort(np.where(excluded, 2.0, rng.random((rows, columns))), axis=1)
    masked = np.zeros((rows, columns), dtype=bool)
    np.put_along_axis(masked, order, np.arange(columns) < counts[:, None], axis=1)
    positions = np.flatnonzero(masked)
    labels = ids.reshape(-1)[positions]
    ids.reshape(-1)[positions[rng.random(len(positions)) < 0.8]] = mask_id
    segment = (column > middle[:, None]) & real
    arrays = {
        "input_ids": ids,
        "attention_mask": real.astype(np.int64),
        "token_type_ids": segment.astype(np.int64),
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": rng.integers(0, 2, rows),
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        BatchCounts(
            samples=rows,
            real_tokens=int(lengths.sum()),
            padded_tokens=rows * columns,
            predicted_positions=len(positions),
            squared_lengths=int((lengths**2).sum()),
        ),
    )
