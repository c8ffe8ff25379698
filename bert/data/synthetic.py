"""Synthetic batches whose sequence lengths follow a named distribution, for speed measurements only."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.batch import Batch, BatchCounts
from bert.data.lengths import (
    DISTRIBUTIONS,
    SHORTEST,
    Lengths,
    check_distribution,
    lengths_folder,
    padded_length,
)
from bert.data.loading.balance import divide, work_of
from bert.data.loading.batches import RowBatches
from bert.model.config import ModelConfig, model_config
from bert.tasks.base import DataSpec
from bert.tasks.pretrain.shards import SampleLengths, folder_info, folder_lengths
from bert.tasks.squad.features import open_features
from common.errors import InputError

_ROWS = 1920  # the common micro batches of 1 to 8 ranks divide it, so that batches repeat soon
_MOST_TOKENS = 2**20
_PREDICTED = ("masked_positions", "masked_labels")


def rows_in_all(seq_len: int) -> int:
    """Return after how many samples of this length they repeat: the same for any batch size and number of ranks."""
    return max(15, _ROWS >> max(0, (_ROWS * seq_len - 1).bit_length() - _MOST_TOKENS.bit_length() + 1))


class Rows:
    """All samples, padded to the same length, and batches of those that follow each other.

    Args:
        samples: all of them as one batch [N, S].
        lengths: their lengths [N].
        padding: of the batches, one of bert.data.lengths.PADDINGS; pretraining knows full ones only.
    """

    def __init__(self, samples: Batch, lengths: Lengths, padding: str) -> None:
        self._tensors = samples.tensors
        self._lengths = lengths
        self._padding = padding
        self._columns = int(samples.tensors["input_ids"].shape[1])
        positions = samples.tensors.get(_PREDICTED[0])
        ends = np.arange(len(lengths) + 1) * self._columns
        self._bounds = None if positions is None else np.searchsorted(positions.numpy(), ends)

    def batch(self, first: int, count: int) -> Batch:
        """Return the samples `first` to `first + count` of the endless sequence [count, S]."""
        return self._joined(self._pieces(first, count))

    def balanced(self, first: int, count: int, ranks: int, rank: int, config: ModelConfig) -> Batch:
        """Return a rank's share of the samples `first` to `first + ranks * count` of the endless sequence [count, S],
        divided by their work.
        """
        numbers = np.arange(first, first + ranks * count) % len(self._lengths)
        own = numbers[divide(work_of(self._lengths[numbers], config), ranks)[rank]]
        return self._joined([(number, number + 1) for number in own.tolist()])

    def _joined(self, pieces: list[tuple[int, int]]) -> Batch:
        lengths = np.concatenate([self._lengths[start:end] for start, end in pieces])
        tensors = {
            name: _joined([tensor[start:end] for start, end in pieces])
            for name, tensor in self._tensors.items()
            if name not in _PREDICTED
        }
        columns = self._columns
        if self._bounds is None:
            columns = padded_length(int(lengths.max()), columns, self._padding)
            tensors = {
                name: each[:, :columns].contiguous() if each.dim() > 1 else each for name, each in tensors.items()
            }
        else:
            tensors |= self._predicted(pieces)
            tensors = {name: tensors[name] for name in self._tensors}
        return Batch(
            tensors,
            BatchCounts(
                samples=len(lengths),
                real_tokens=int(lengths.sum()),
                padded_tokens=len(lengths) * columns,
                predicted_positions=len(tensors[_PREDICTED[0]]) if self._bounds is not None else 0,
                squared_lengths=int((lengths**2).sum()),
            ),
        )

    def _pieces(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the parts of the sequence, each [start, end), that a batch is put together from."""
        pieces = []
        while count:
            start = first % len(self._lengths)
            taken = min(count, len(self._lengths) - start)
            pieces.append((start, start + taken))
            first, count = first + taken, count - taken
        return pieces

    def _predicted(self, pieces: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        assert self._bounds is not None
        positions, labels, rows = [], [], 0
        for start, end in pieces:
            within = slice(int(self._bounds[start]), int(self._bounds[end]))
            positions.append(self._tensors[_PREDICTED[0]][within] + (rows - start) * self._columns)
            labels.append(self._tensors[_PREDICTED[1]][within])
            rows += end - start
        return {_PREDICTED[0]: _joined(positions), _PREDICTED[1]: _joined(labels)}


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


POOL_TOKENS = 2**21
"""Fewer batches are made when they are large: about 50 MB of tensors, and never under two batches."""

Array = npt.NDArray[Any]
Slots = list[tuple[Lengths, int]]
"""For each batch of a pool this rank's lengths [B], and the tokens that a sequence has at most."""


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
    `spec.balanced` ranks divide a global batch by the work of its samples (bert.data.loading.balance).

    Lengths follow `spec.data`: 'synthetic' = the task's own distribution, 'synthetic:<name>' of bert.data.lengths, or
    'synthetic:<path>'. Of a folder of shards all batches of the pool and all ranks together have the distribution of
    its samples' lengths, bins included, as nearly as so many sequences can, and in each batch all ranks have the same
    bin. Of a features file, whose batches differ in length, batch by batch they have the lengths of its own batches.

    Args:
        spec: shape, seed and rank of the batches.
        content: what they are made of; None is pretraining.

    Raises:
        UsageError: an unknown distribution, or one that is none for this sequence length.
        InputError: the path holds no samples, damaged ones, or samples of another sequence length.
    """

    def __init__(self, spec: DataSpec, content: Content | None = None) -> None:
        self.spec = spec
        self._content = content or PRETRAINING
        self._slots = self._like_real()
        # After so many batches of a distribution the first sample of the next one is that of the first.
        count = rows_in_all(spec.seq_len)
        repeats = count // math.gcd(count, spec.world_size * spec.micro_batch_size)
        self.pool_size = len(self._slots) or repeats
        self._rows: Rows | None = None
        self._pool: dict[int, Batch] = {}
        self._step = 0

    def _like_real(self) -> Slots:
        """Lengths of each batch as those of real samples; empty if they have a distribution."""
        spec = self.spec
        path = lengths_folder(spec.data)
        if path is None:
            check_distribution(spec.data, spec.seq_len, self._content.task)
            return []
        return self._content.like_real(path, spec, min(self._content.largest_pool, self._most_kept()))

    def __iter__(self) -> Iterator[Batch]:
        """Yield micro-batches on the CPU forever."""
        for slot in range(min(self.pool_size, self._most_kept(), 256)):
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
                "data-mismatch",
                f"the saved data position {state} does not belong to synthetic batches: use the data it was saved with",
            )
        self._step = state["step"]

    def _most_kept(self) -> int:
        return max(2, POOL_TOKENS // max(1, self.spec.micro_batch_size * self.spec.seq_len))

    def _batch(self, slot: int) -> Batch:
        found = self._pool.get(slot)
        if found is None:
            found = self._made(slot)
            if self._slots or len(self._pool) < self._most_kept():
                self._pool[slot] = found
        return found

    def _made(self, slot: int) -> Batch:
        spec = self.spec
        if self._slots:
            lengths, columns = self._slots[slot]
            rng = np.random.default_rng([abs(spec.seed), spec.rank, slot])
            return self._content.make_batch(rng, lengths, replace(spec, seq_len=columns))
        if self._rows is None:
            self._rows = self._made_rows()
        size = spec.micro_batch_size
        first = slot * spec.world_size * size
        if spec.balanced and spec.world_size > 1:
            return self._rows.balanced(first, size, spec.world_size, spec.rank, model_config(spec))
        return self._rows.batch(first + spec.rank * size, size)

    def _made_rows(self) -> Rows:
        spec = self.spec
        count = rows_in_all(spec.seq_len)
        rng = np.random.default_rng([abs(spec.seed), count])
        name = check_distribution(spec.data, spec.seq_len, self._content.task)
        lengths = DISTRIBUTIONS[name](rng, count, spec.seq_len)
        return Rows(self._content.make_batch(rng, lengths, replace(spec, padding="fixed")), lengths, spec.padding)


def _like_shards(folder: Path, spec: DataSpec, pool_size: int) -> Slots:
    info = folder_info(folder, seq_len=spec.seq_len)
    if info.seq_len != spec.seq_len:
        raise InputError(
            "data-mismatch", f"the samples in {info.path} have {info.seq_len} tokens, not {spec.seq_len}: use that"
        )
    return like_samples(folder_lengths(info), spec, pool_size)


def _like_windows(path: Path, spec: DataSpec, pool_size: int) -> Slots:
    # Only lengths are taken from them: their vocabulary may be any.
    features = open_features(path, "training", spec.seq_len)
    real = RowBatches(replace(spec, data=str(path), vocab_size=sys.maxsize), features.rows)
    return [(lengths, spec.seq_len) for lengths in real.lengths_of_batches(pool_size)]


def like_samples(lengths: SampleLengths, spec: DataSpec, pool_size: int) -> Slots:
    """Return a pool whose batches together, over all ranks, have this distribution of lengths."""
    # Every rank draws the same and takes its part.
    rng = np.random.default_rng([abs(spec.seed), pool_size])
    global_batch = spec.micro_batch_size * spec.world_size
    found = []
    drawn = lengths.draw(rng, pool_size * global_batch).clip(SHORTEST, spec.seq_len)
    for lengths_of_all in drawn.reshape(pool_size, global_batch):
        parts = lengths_of_all.reshape(spec.world_size, -1)
        if spec.balanced:
            parts = lengths_of_all[divide(work_of(lengths_of_all, model_config(spec)), spec.world_size)]
        found.append((parts[spec.rank], spec.seq_len))
    return [found[slot] for slot in rng.permutation(pool_size)]


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
    return _batch(arrays, lengths, len(positions))


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
    return _batch(arrays, lengths, 0)


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
    return _batch(arrays, lengths, 0)


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
    _set_special(ids, middle, lengths, spec)
    second = (column > middle[:, None]) & real
    arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": second.astype(np.int64)}
    return arrays, middle


def _first_special(spec: DataSpec) -> int:
    """Id before [CLS], [SEP] and [MASK], as in bert-base-uncased where the vocabulary has room for it."""
    return 100 if spec.vocab_size > 200 else 0


def _set_special(ids: Lengths, middle: Lengths, lengths: Lengths, spec: DataSpec) -> None:
    """Write [CLS], both [SEP] and the padding into ids [B, S]."""
    cls_id, rows = _first_special(spec) + 1, np.arange(len(ids))
    ids[:, 0] = cls_id
    ids[rows, middle] = cls_id + 1
    ids[rows, lengths - 1] = cls_id + 1
    ids[np.arange(ids.shape[1]) >= lengths[:, None]] = 0


def _batch(arrays: Mapping[str, Array], lengths: Lengths, predicted_positions: int) -> Batch:
    rows, columns = arrays["input_ids"].shape
    return Batch(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        BatchCounts(
            samples=rows,
            real_tokens=int(lengths.sum()),
            padded_tokens=rows * columns,
            predicted_positions=predicted_positions,
            squared_lengths=int((lengths**2).sum()),
        ),
    )


PRETRAINING = Content("pretrain", 16, _like_shards, pretraining_batch)
QUESTIONS = Content("squad", 256, _like_windows, question_batch)
