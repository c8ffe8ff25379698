"""Batches of a folder of HDF5 shards, for each rank its own. Torch is imported only where batches are made."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bert.data.loading.batches import Batches
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardFolder, folder_info, read_shard
from common.errors import InputError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


_KEPT_BYTES = 64 * 2**20
"""What was read is kept in memory up to this size, so that small data is read once."""
_FEWEST = 2
"""Shards that are kept however large they are: the one in use and the next."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from compressed shards."""

    samples: int = 0
    seconds: float = 0.0
    """Time in s, decompressing and checking included."""


class Shards:
    """Reads shards of a folder and keeps the latest: two, one in use and one next; more while all are below 64 MiB.

    `get` is for one thread. Between `open` and `close` a second thread reads what `expect` names.
    """

    def __init__(self, folder: ShardFolder, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._kept: OrderedDict[int, Instances] = OrderedDict()
        self._coming: dict[int, Future[Instances]] = {}
        self._reader: ThreadPoolExecutor | None = None
        self._lock = Lock()
        self.reading = Reading()

    def open(self) -> None:
        """Start to read ahead."""
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shards")

    def close(self) -> None:
        """End the reading thread; a read in progress is waited for."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.shutdown(wait=True, cancel_futures=True)
        self._coming.clear()

    def get(self, shard: int) -> Instances:
        """Return the samples of a shard.

        Raises:
            InputError: the shard is damaged, has changed, or holds word pieces the model has not.
        """
        if shard not in self._kept:
            coming = self._coming.pop(shard, None)
            instances = self._read(shard) if coming is None else coming.result()
            self._make_room()
            self._kept[shard] = instances
        self._kept.move_to_end(shard)
        return self._kept[shard]

    def expect(self, shards: Sequence[int]) -> None:
        """Read these shards in the background; what else was expected is not."""
        for stale in [shard for shard in self._coming if shard not in shards]:
            self._coming.pop(stale).cancel()
        for shard in shards:
            if self._reader is not None and shard not in self._kept and shard not in self._coming:
                self._make_room()
                self._coming[shard] = self._reader.submit(self._read, shard)

    def _make_room(self) -> None:
        """Drop the oldest shards where memory is short, so that one more can come."""
        while self._kept and len(self._kept) + len(self._coming) >= _FEWEST:
            if sum(map(_bytes, self._kept.values())) <= _KEPT_BYTES:
                return
            self._kept.popitem(last=False)

    def _read(self, shard: int) -> Instances:
        began = time.perf_counter()
        path = self._folder.paths[shard]
        instances = read_shard(path)
        if len(instances) != self._folder.counts[shard]:
            raise InputError("file-changed", f"{path} changed while in use: start again")
        largest = max(int(instances.input_ids.max()), int(instances.masked_lm_ids.max()))
        if largest >= self._vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{path} holds the word piece {largest}, the model {self._vocab_size}: use its vocabulary",
            )
        with self._lock:
            seconds = self.reading.seconds + time.perf_counter() - began
            self.reading = Reading(self.reading.samples + len(instances), seconds)
        return instances


def _bytes(instances: Instances) -> int:
    return sum(int(getattr(instances, field.name).nbytes) for field in fields(instances))


Int64 = npt.NDArray[np.int64]
_BATCHES_AHEAD = 2


class Hdf5Batches(Batches):
    """Endless batches of a folder of HDF5 shards, in Batches' order.

    Sequences stay padded to the shards' length. The number of predictions is the shards', not `spec.max_predictions`.

    One background thread prepares two batches ahead, another reads the next shard while the present one is in use: see
    Shards for the memory this takes. Iterate over one iterator at a time.

    Raises:
        InputError: as folder_info, or the shards have another sequence length or a larger vocabulary than `spec`.
    """

    def __init__(self, spec: "DataSpec", split: str = "training") -> None:
        self.info = folder_info(Path(spec.data), split, spec.seq_len)
        if self.info.seq_len != spec.seq_len:
            raise InputError(
                "data-mismatch",
                f"{self.info.path} has {self.info.seq_len} tokens per sample: use it, or --seq-len {spec.seq_len}",
            )
        counts = np.array(self.info.counts, dtype=np.int64)[:, None]
        super().__init__(spec, counts, self.info.fingerprint, self.info.path)
        self._shards = Shards(self.info, spec.vocab_size)
        self._looked_at = 0, 0

    @property
    def reading(self) -> Reading:
        """What was read from compressed shards so far, the reading ahead included."""
        return self._shards.reading

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._shards.open()
        self._looked_at = 0, 0
        ahead: list[Future[Batch]] = []
        try:
            number = self._yielded
            while True:
                while len(ahead) <= _BATCHES_AHEAD:
                    ahead.append(executor.submit(self._batch, number + len(ahead)))
                batch = ahead.pop(0).result()
                number += 1
                self._yielded = number
                yield batch
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
            self._shards.close()

    def _batch(self, number: int) -> "Batch":
        """Make this rank's part of a global batch; runs in the background."""
        which, start, parts = self._part(number)
        batch = to_batch([(self._shards.get(shard), rows) for shard, rows in parts])
        self._read_ahead(which, start + self._order.global_batch)
        return batch

    def _lengths(self, shard: int, which: int, rows: Int64) -> Int64:
        lengths: Int64 = self._shards.get(shard).input_mask[rows].sum(axis=1, dtype=np.int64)
        return lengths

    def _read_ahead(self, which: int, start: int) -> None:
        """Have the shard read that holds the first sample of this rank's next batch, and the one after."""
        begin, end = self._looked_at
        if not begin <= start < end:
            shard, begin, end = self._order.piece(which, start)
            self._looked_at = begin, end
            self._shards.expect([shard, self._order.piece(which, end)[0]])


def to_batch(parts: Sequence[tuple[Instances, Int64]]) -> "Batch":
    """Return the batch of rows of one or several shards, tensors and counts as bert.data.batch documents them."""
    import torch

    from bert.data.batch import Batch, BatchCounts

    columns = {
        field.name: np.concatenate([getattr(shard, field.name).take(rows, axis=0) for shard, rows in parts])
        for field in fields(Instances)
    }
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
