"""Made-up batches whose sequence lengths follow a named distribution; for speed only, nothing is learned from them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert.batch import Batch, BatchCounts
from bert.data.lengths import DISTRIBUTIONS, SHORTEST, Lengths, check_distribution, lengths_folder
from bert.data.loading.folder import folder_info
from bert.data.loading.sample_lengths import SampleLengths, folder_lengths
from bert.tasks.base import DataSpec
from common.errors import InputError

LARGEST_POOL = 16
"""Different batches before they repeat."""
POOL_TOKENS = 2**21
"""Fewer batches are made when they are large: about 50 MB of tensors, and never under two batches."""


class SyntheticBatches:
    """Endless batches from a pool made once; the same spec gives the same batches, ranks get different ones.

    Lengths follow `spec.source`: 'synthetic' = phase1, 'synthetic:<name>' of bert.data.lengths, or
    'synthetic:<folder>', the lengths of the samples of a folder of shards, bins included: all batches of the pool and
    all ranks together have the folder's distribution as nearly as so many sequences can, and in each batch all ranks
    have the same bin. Of a sequence of n tokens round(0.15 n) are predicted, at least 1 and at most `max_predictions`,
    80 % of them behind the mask id.

    Raises:
        UsageError: an unknown distribution, or one that is none for this sequence length.
        InputError: the folder holds no shards, a damaged one, or samples of another sequence length.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        tokens = max(1, spec.micro_batch_size * spec.seq_len)
        self.pool_size = min(LARGEST_POOL, max(2, POOL_TOKENS // tokens))
        folder = lengths_folder(spec.source)
        self._like_folder: list[tuple[Lengths, int]] = []
        if folder is None:
            self._distribution = DISTRIBUTIONS[check_distribution(spec.source, spec.seq_len)]
        else:
            lengths = _lengths_of(folder, spec.seq_len)
            self.pool_size = max(self.pool_size, len(lengths.bin_lengths))
            self._like_folder = like_folder(lengths, spec, self.pool_size)
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
            if self._like_folder:
                lengths, columns = self._like_folder[slot]
                self._pool[slot] = make_batch(rng, lengths, replace(spec, seq_len=columns))
            else:
                lengths = self._distribution(rng, spec.micro_batch_size, spec.seq_len)
                self._pool[slot] = make_batch(rng, lengths, spec)
        return self._pool[slot]


def _lengths_of(folder: Path, seq_len: int) -> SampleLengths:
    info = folder_info(folder, seq_len=seq_len)
    if info.seq_len != seq_len:
        raise InputError(f"the samples in {info.path} have {info.seq_len} tokens, not {seq_len}: use {info.seq_len}")
    return folder_lengths(info)


def like_folder(lengths: SampleLengths, spec: DataSpec, pool_size: int) -> list[tuple[Lengths, int]]:
    """Return for each batch of the pool this rank's lengths [B] and the columns they are padded to."""
    # Every rank draws the same and takes its part.
    rng = np.random.default_rng([abs(spec.seed), pool_size])
    global_batch = spec.micro_batch_size * spec.world_size
    found = []
    for which, batches in enumerate(lengths.share(pool_size)):
        columns = max(lengths.bin_lengths[which], SHORTEST)
        drawn = lengths.draw(rng, which, int(batches) * global_batch).clip(SHORTEST, columns)
        parts = drawn.reshape(int(batches), spec.world_size, spec.micro_batch_size)
        found += [(part[spec.rank], columns) for part in parts]
    return [found[slot] for slot in rng.permutation(pool_size)]


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
