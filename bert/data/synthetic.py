"""Synthetic batches whose sequence lengths follow a named distribution or real data, for speed measurements only."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.batch import Batch, batch_of
from bert.data.batches import DataSpec, RowBatches
from bert.data.lengths import DISTRIBUTIONS, SHORTEST, Lengths, check_distribution, lengths_folder, padded_length
from bert.data.order import divide, work_of
from bert.data.rows import TokenRows
from common.errors import InputError

Array = npt.NDArray[Any]
Slots = list[tuple[Lengths, int]]
"""For each batch of a pool this rank's lengths [B], and the tokens that a sequence has at most."""

POOL_TOKENS = 2**21
"""Fewer batches are kept when they are large: about 50 MB of tensors, and never under two batches."""
_ROWS = 1920  # the common micro batches of 1 to 8 ranks divide it, so that batches repeat soon
_MOST_TOKENS = 2**20


def rows_in_all(seq_len: int) -> int:
    """Return after how many samples of this length they repeat: the same for any batch size and number of ranks."""
    return max(15, _ROWS >> max(0, (_ROWS * seq_len - 1).bit_length() - _MOST_TOKENS.bit_length() + 1))


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a task's synthetic batches."""

    task: str
    """Name in bert.tasks."""
    largest_pool: int
    like_real: Callable[[Path, DataSpec, int], Slots]
    """The lengths of a pool of so many batches like those of the real samples at a path. Raises InputError."""
    make_batch: Callable[[np.random.Generator, Lengths, DataSpec], Batch]
    """A batch of random content whose sequences have these lengths [B]."""


class SyntheticBatches:
    """Endless batches from a pool made once; the same spec gives the same batches, ranks get different ones.

    Of a distribution the samples are one sequence, which depends on the seed and the shape of a sample alone: any
    number of ranks and any micro batch size that make up the same global batch see the same samples in a step. With
    `spec.token_work` ranks divide a global batch by the work of its samples (bert.data.order.divide).

    Lengths follow `spec.data`: 'synthetic' = the task's own distribution, 'synthetic:<name>' of bert.data.lengths, or
    'synthetic:<path>'. Of a folder of shards all batches of the pool and all ranks together have the distribution of
    its samples' lengths, as nearly as so many sequences can. Of a features file, whose batches differ in length, batch
    by batch they have the lengths of its own batches.

    Args:
        spec: shape, seed and rank of the batches.
        content: what they are made of.

    Raises:
        UsageError: an unknown distribution, or one that is none for this sequence length.
        InputError: the path holds no samples, damaged ones, or samples of another sequence length.
    """

    def __init__(self, spec: DataSpec, content: Content) -> None:
        self.spec = spec
        self._content = content
        self._most_kept = max(2, POOL_TOKENS // max(1, spec.micro_batch_size * spec.seq_len))
        self._slots: Slots = []
        path = lengths_folder(spec.data)
        if path is not None:
            self._slots = self._content.like_real(path, spec, min(self._content.largest_pool, self._most_kept))
        else:
            check_distribution(spec.data, spec.seq_len, self._content.task)
        # After so many batches of a distribution the first sample of the next one is that of the first.
        count = rows_in_all(spec.seq_len)
        self.pool_size = len(self._slots) or count // math.gcd(count, spec.world_size * spec.micro_batch_size)
        self._samples: _Samples | None = None
        self._pool: dict[int, Batch] = {}
        self._step = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield micro-batches on the CPU forever."""
        for slot in range(min(self.pool_size, self._most_kept, 256)):
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
        if "step" not in state:
            raise InputError(
                "data-mismatch",
                f"the saved data position {state} does not belong to synthetic batches: use the data it was saved with",
            )
        self._step = state["step"]

    def _batch(self, slot: int) -> Batch:
        batch = self._pool.get(slot)
        if batch is None:
            batch = self._like_real(slot) if self._slots else self._of_distribution(slot)
            if self._slots or len(self._pool) < self._most_kept:
                self._pool[slot] = batch
        return batch

    def _like_real(self, slot: int) -> Batch:
        lengths, columns = self._slots[slot]
        rng = np.random.default_rng([abs(self.spec.seed), self.spec.rank, slot])
        return self._content.make_batch(rng, lengths, replace(self.spec, seq_len=columns))

    def _of_distribution(self, slot: int) -> Batch:
        spec = self.spec
        if self._samples is None:
            self._samples = self._all_samples()
        lengths = self._samples.lengths
        numbers = np.arange(spec.world_size * spec.micro_batch_size)
        numbers = (slot * len(numbers) + numbers) % len(lengths)
        return self._samples.batch(numbers[_parts(lengths[numbers], spec)[spec.rank]], spec.padding)

    def _all_samples(self) -> "_Samples":
        spec = self.spec
        count = rows_in_all(spec.seq_len)
        rng = np.random.default_rng([abs(spec.seed), count])
        name = check_distribution(spec.data, spec.seq_len, self._content.task)
        lengths = DISTRIBUTIONS[name](rng, count, spec.seq_len)
        batch = self._content.make_batch(rng, lengths, replace(spec, padding="fixed"))
        return _Samples({name: tensor.numpy() for name, tensor in batch.tensors.items()}, lengths)


def _parts(lengths: Lengths, spec: DataSpec) -> npt.NDArray[np.int64]:
    """Return which samples of a global batch each rank computes [ranks, B]."""
    if spec.token_work and spec.world_size > 1:
        return divide(work_of(lengths, spec.token_work), spec.world_size)
    return np.arange(len(lengths)).reshape(spec.world_size, -1)


class _Samples:
    """All samples, padded to the same length [N, S], and their lengths [N]."""

    def __init__(self, arrays: dict[str, Array], lengths: Lengths) -> None:
        self.arrays, self.lengths = arrays, lengths
        self.columns = arrays["input_ids"].shape[1]
        ends = np.arange(len(lengths) + 1) * self.columns
        self._bounds = np.searchsorted(arrays.get("masked_positions", np.empty(0)), ends)

    def batch(self, numbers: npt.NDArray[np.int64], padding: str) -> Batch:
        """Return the batch of the samples with these numbers [B]; pretraining samples stay padded to S columns."""
        lengths, columns = self.lengths[numbers], self.columns
        if "masked_positions" not in self.arrays:
            columns = padded_length(int(lengths.max()), columns, padding)
        predicted = self._predicted(numbers)
        arrays = {}
        for name, array in self.arrays.items():
            rows = predicted[name] if name in predicted else array[numbers]
            arrays[name] = rows[:, :columns] if rows.ndim > 1 else rows
        return batch_of(arrays, lengths)

    def _predicted(self, numbers: npt.NDArray[np.int64]) -> dict[str, Array]:
        if "masked_positions" not in self.arrays:
            return {}
        starts = self._bounds[numbers]
        counts = self._bounds[numbers + 1] - starts
        which = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        moved = np.repeat((np.arange(len(numbers)) - numbers) * self.columns, counts)
        return {
            "masked_positions": self.arrays["masked_positions"][which] + moved,
            "masked_labels": self.arrays["masked_labels"][which],
        }


def like_samples(draw: Callable[[np.random.Generator, int], Lengths], spec: DataSpec, pool_size: int) -> Slots:
    """Return a pool whose batches together, over all ranks, have the distribution of lengths that is drawn from."""
    # Every rank draws the same and takes its part.
    rng = np.random.default_rng([abs(spec.seed), pool_size])
    global_batch = spec.micro_batch_size * spec.world_size
    drawn = draw(rng, pool_size * global_batch).clip(SHORTEST, spec.seq_len)
    batches = [of_all[_parts(of_all, spec)[spec.rank]] for of_all in drawn.reshape(pool_size, global_batch)]
    return [(batches[slot], spec.seq_len) for slot in rng.permutation(pool_size)]


def like_rows(rows: TokenRows, spec: DataSpec, pool_size: int) -> Slots:
    """Return a pool whose batches have the lengths of this rank's batches of rows, whatever their vocabulary."""
    real = RowBatches(replace(spec, vocab_size=sys.maxsize), rows)
    return [(lengths, spec.seq_len) for lengths in real.lengths_of_batches(pool_size)]


def pretraining_batch(rng: np.random.Generator, lengths: Lengths, spec: DataSpec) -> Batch:
    """Return one batch of random ids with these lengths, [B] of 5 to seq_len each.

    Of a sequence of n tokens round(0.15 n) are predicted, at least 1 and at most `max_predictions`, 80 % of them behind
    the mask id.
    """
    rows, columns = len(lengths), spec.seq_len
    arrays, middle = _two_texts(rng, lengths, columns, lengths - 2, spec)
    ids, column = arrays["input_ids"], np.arange(columns)
    counts = np.minimum(spec.max_predictions, np.maximum(1, np.rint(0.15 * lengths))).astype(np.int64)
    # At most n - 3 tokens of a sequence can be masked.
    counts = np.minimum(counts, lengths - 3)
    excluded = (column == 0) | (column == middle[:, None]) | (column >= lengths[:, None] - 1)
    order = np.argsort(np.where(excluded, 2.0, rng.random((rows, columns))), axis=1)
    masked = np.zeros((rows, columns), dtype=bool)
    np.put_along_axis(masked, order, np.arange(columns) < counts[:, None], axis=1)
    positions = np.flatnonzero(masked)
    labels = ids.reshape(-1)[positions]
    ids.reshape(-1)[positions[rng.random(len(positions)) < 0.8]] = _first_special(spec) + 3
    arrays |= {
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": rng.integers(0, 2, rows),
    }
    return batch_of(arrays, lengths)


def question_batch(rng: np.random.Generator, lengths: Lengths, spec: DataSpec) -> Batch:
    """Return windows of random ids with these lengths, [B] of 5 to seq_len each, padded as `spec.padding` says.

    A question has up to 18 word pieces, an answer up to 4.
    """
    columns = padded_length(int(lengths.max()), spec.seq_len, spec.padding)
    arrays, middle = _two_texts(rng, lengths, columns, np.minimum(lengths - 2, 20), spec)
    starts = rng.integers(middle + 1, lengths - 1)
    arrays |= {
        "start_positions": starts,
        "end_positions": rng.integers(starts, np.minimum(starts + 4, lengths - 1)),
    }
    return batch_of(arrays, lengths)


def row_batch(
    rng: np.random.Generator,
    lengths: Lengths,
    spec: DataSpec,
    *,
    labels: int,
    regression: bool = False,
    columns: Callable[[np.random.Generator, Lengths], dict[str, Array]] | None = None,
) -> Batch:
    """Return rows of random ids with these lengths, [B] of 5 to seq_len each, padded as `spec.padding` says.

    Two texts meet anywhere; classes, of which there are `labels`, are all equally likely, values of a regression are
    uniform on 0 .. 1. `columns` draws what the batches of a task have besides, each [B, ...].
    """
    tokens = padded_length(int(lengths.max()), spec.seq_len, spec.padding)
    arrays, _ = _two_texts(rng, lengths, tokens, lengths - 2, spec)
    drawn = rng.random(len(lengths), dtype=np.float32) if regression else rng.integers(0, labels, len(lengths))
    arrays |= {"labels": drawn, **({} if columns is None else columns(rng, lengths))}
    return batch_of(arrays, lengths)


def _two_texts(
    rng: np.random.Generator, lengths: Lengths, columns: int, most: Lengths, spec: DataSpec
) -> tuple[dict[str, Array], Lengths]:
    """Draw [CLS] text [SEP] text [SEP] of these lengths [B], padded to so many columns.

    Returns:
        input_ids, attention_mask and token_type_ids [B, S], and the columns of the first [SEP] [B], below `most` [B].
    """
    column = np.arange(columns)
    real = column < lengths[:, None]
    first_word = min(_first_special(spec) + 4, spec.vocab_size - 1)
    ids = rng.integers(first_word, spec.vocab_size, (len(lengths), columns))
    middle = rng.integers(2, most)
    cls_id, rows = _first_special(spec) + 1, np.arange(len(ids))
    ids[:, 0] = cls_id
    ids[rows, middle] = ids[rows, lengths - 1] = cls_id + 1
    ids[~real] = 0
    second = (column > middle[:, None]) & real
    arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": second.astype(np.int64)}
    return arrays, middle


def _first_special(spec: DataSpec) -> int:
    """Id before [CLS], [SEP] and [MASK], as in bert-base-uncased where the vocabulary has room for it."""
    return 100 if spec.vocab_size > 200 else 0
