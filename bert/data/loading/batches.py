"""Batches of a folder of HDF5 shards, for each rank its own. Torch is imported only where batches are made."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.loading.folder import folder_info
from bert.data.loading.pieces import Pieces, Reading
from bert.data.loading.position import Position
from bert.tasks.pretrain.instances import Instances
from common.errors import InputError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec

Int64 = npt.NDArray[np.int64]

_BATCHES_AHEAD = 2


class Hdf5Batches:
    """Endless batches of a shard folder.

    All ranks walk the same endless sequence of global batches (see SampleOrder): G = W B samples each, for W ranks and
    B = micro_batch_size, of which rank r takes the r-th run of B. So ranks are disjoint, every sample comes once per
    epoch, an incomplete last batch is filled from the next epoch, and a folder smaller than one global batch works too.

    Sequences stay padded to the shards' length. Where the shards are binned by length, a global batch is of one bin,
    and its sequences are padded to that bin's length only. The number of predictions is the shards', not
    `spec.max_predictions`.

    One background thread prepares two batches ahead, another reads the next shard (of each bin) while the present one
    is in use: see Pieces for the memory this takes. Iterate over one iterator at a time.

    Raises:
        InputError: as folder_info, or the shards have another sequence length or a larger vocabulary than `spec`.
    """

    def __init__(self, spec: "DataSpec", split: str = "training") -> None:
        self.spec = spec
        self.info = folder_info(Path(spec.source), split, spec.seq_len)
        if self.info.seq_len != spec.seq_len:
            raise InputError(
                "data-mismatch",
                f"the shards in {self.info.path} have {self.info.seq_len} tokens per sample, not "
                f"{spec.seq_len}: use {self.info.seq_len}, or `bertbench data pretrain --seq-len {spec.seq_len}`",
            )
        self._position = Position(
            np.array(self.info.counts, dtype=np.int64),
            spec.seed,
            spec.micro_batch_size * spec.world_size,
            self.info.fingerprint,
            self.info.path,
        )
        self._pieces = Pieces(self.info, spec.vocab_size)
        self._looked_at: dict[int, tuple[int, int]] = {}

    @property
    def reading(self) -> Reading:
        """What was read from compressed shards so far, the reading ahead included."""
        return self._pieces.reading

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._pieces.open()
        self._looked_at.clear()
        ahead: list[Future[Batch]] = []
        try:
            number = self._position.batches
            while True:
                while len(ahead) <= _BATCHES_AHEAD:
                    ahead.append(executor.submit(self._batch, number + len(ahead)))
                batch = ahead.pop(0).result()
                number += 1
                self._position.batches = number
                yield batch
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
            self._pieces.close()

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ: see Position.

        Raises:
            InputError: the state belongs to other shards, or is damaged.
            UsageError: it was saved with another seed, hence another order.
        """
        self._position.load_state_dict(state)

    def _batch(self, number: int) -> "Batch":
        """Make this rank's part of a global batch; runs in the background."""
        order = self._position.order
        which, first = order.batch(number)
        start = first + self.spec.rank * self.spec.micro_batch_size
        stop = start + self.spec.micro_batch_size
        parts = [(self._pieces.get(shard, which), rows) for shard, rows in order.rows(which, start, stop)]
        batch = to_batch(parts)
        self._read_ahead(which, start + order.global_batch)
        return batch

    def _read_ahead(self, which: int, start: int) -> None:
        """Have the shard read that this rank's next batch of a bin begins in, and the one after."""
        begin, end = self._looked_at.get(which, (0, 0))
        if not begin <= start < end:
            order = self._position.order
            shard, begin, end = order.piece(which, start)
            self._looked_at[which] = begin, end
            self._pieces.expect([shard, order.piece(which, end)[0]], which)


def to_batch(parts: Sequence[tuple[Instances, Int64]]) -> "Batch":
    """Return the batch of rows of one or several pieces, tensors and counts as bert.data.batch documents them."""
    import torch

    from bert.data.batch import Batch, BatchCounts

    columns = {field.name: _gather(parts, field.name) for field in fields(Instances)}
    mask = columns["input_mask"].astype(np.int64)
    samples, seq_len = mask.shape
    # Position 0 is [CLS], which is never masked, so the first 0 is where the padding starts.
    used = columns["masked_lm_positions"] != 0
    np.logical_and.accumulate(used, axis=1, out=used)
    positions = (np.arange(0, samples * seq_len, seq_len)[:, None] + columns["masked_lm_positions"])[used]
    lengths = mask.sum(axis=1)
    arrays = {
        "input_ids": columns["input_ids"].astype(np.int64),
        "attention_mask": mask,
        "token_type_ids": columns["segment_ids"].astype(np.int64),
        "masked_positions": positions,
        "masked_labels": columns["masked_lm_ids"][used].astype(np.int64),
        "next_sentence_labels": columns["next_sentence_labels"].astype(np.int64),
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        BatchCounts(
            samples=samples,
            real_tokens=int(lengths.sum()),
            padded_tokens=samples * seq_len,
            predicted_positions=len(positions),
            squared_lengths=int(lengths @ lengths),
        ),
    )


def _gather(parts: Sequence[tuple[Instances, Int64]], name: str) -> npt.NDArray[Any]:
    found = []
    for piece, rows in parts:
        array = getattr(piece, name)
        # take is twice as quick as an index, but copies the whole of an array that is not contiguous.
        found.append(array.take(rows, axis=0) if array.flags.c_contiguous else array[rows])
    return found[0] if len(found) == 1 else np.concatenate(found)
