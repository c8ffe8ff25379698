"""Batches of a folder of HDF5 shards, for each rank its own. Torch is imported only where batches are made."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.loading.batches import Batches
from bert.tasks.pretrain.folder import ShardFolder, folder_info
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import check_values, cut, map_shard, read_shard
from common.errors import InputError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


_KEPT_BYTES = 64 * 2**20
"""What was read is kept in memory up to this size, so that small data is read once."""
_PER_BIN = 2
"""Pieces of a bin that are kept however large they are: the one in use and the next."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from compressed shards."""

    samples: int = 0
    seconds: float = 0.0
    """Time in s, decompressing and checking included."""


class Pieces:
    """Reads pieces of a folder and keeps the latest.

    At most two pieces per bin are held, one in use and one next, together about two shards; more only as long as all
    are below 64 MiB. Pieces of plainly stored shards are views of the mapped file and need no memory of their own.

    `get` is for one thread. Between `open` and `close` a second thread reads what `expect` names.
    """

    def __init__(self, folder: ShardFolder, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._kept: OrderedDict[tuple[int, int], Instances] = OrderedDict()
        self._coming: dict[tuple[int, int], Future[Instances]] = {}
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

    def get(self, shard: int, which: int) -> Instances:
        """Return the samples of bin `which` in a shard, columns cut to the bin's length.

        Raises:
            InputError: the shard is damaged, has changed, or holds word pieces the model has not.
        """
        key = shard, which
        if key not in self._kept:
            coming = self._coming.pop(key, None)
            self._keep(key, self._read(key) if coming is None else coming.result())
        self._kept.move_to_end(key)
        return self._kept[key]

    def expect(self, shards: Sequence[int], which: int) -> None:
        """Read the samples of bin `which` in these shards in the background; what else was expected of it is not."""
        wanted = [(shard, which) for shard in dict.fromkeys(shards)]
        for stale in [key for key in self._coming if key[1] == which and key not in wanted]:
            self._coming.pop(stale).cancel()
        for key in wanted:
            if self._reader is not None and key not in self._kept and key not in self._coming:
                self._make_room(which)
                self._coming[key] = self._reader.submit(self._read, key)

    def _keep(self, key: tuple[int, int], piece: Instances) -> None:
        self._make_room(key[1])
        self._kept[key] = piece

    def _make_room(self, which: int) -> None:
        """Drop the oldest pieces of a bin where memory is short, so that one more can come."""
        for key in [key for key in self._kept if key[1] == which]:
            held = sum(key[1] == which for key in (*self._kept, *self._coming))
            if held < _PER_BIN or sum(map(_bytes, self._kept.values())) <= _KEPT_BYTES:
                return
            del self._kept[key]

    def _read(self, key: tuple[int, int]) -> Instances:
        shard, which = key
        path, counts, columns = self._folder.paths[shard], self._folder.counts[shard], self._folder.columns(which)
        first = sum(counts[:which])
        stop = first + counts[which]
        rows = slice(first, stop)
        if self._folder.mappable[shard]:
            piece = cut(map_shard(path), columns, rows)
            check_values(path, piece)  # also brings the file's data into memory, in order
            self._check(key, piece)
            return piece
        began = time.perf_counter()
        piece = read_shard(path, rows, columns)
        if columns < self._folder.seq_len:  # rows of a bin lie together, and the longer ones are let go
            piece = Instances(**{f.name: np.ascontiguousarray(getattr(piece, f.name)) for f in fields(piece)})
        self._check(key, piece)
        with self._lock:
            seconds = self.reading.seconds + time.perf_counter() - began
            self.reading = Reading(self.reading.samples + len(piece), seconds)
        return piece

    def _check(self, key: tuple[int, int], piece: Instances) -> None:
        path = self._folder.paths[key[0]]
        if len(piece) != self._folder.counts[key[0]][key[1]]:
            raise InputError("file-changed", f"{path} changed while in use: start again")
        largest = max(int(piece.input_ids.max()), int(piece.masked_lm_ids.max()))
        if largest >= self._vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{path} holds the word piece {largest}, the model {self._vocab_size}: use its vocabulary",
            )


def _bytes(piece: Instances) -> int:
    """Memory of a piece; a mapped one counts as if it were read."""
    return sum(int(getattr(piece, field.name).nbytes) for field in fields(piece))


Int64 = npt.NDArray[np.int64]
_BATCHES_AHEAD = 2


class Hdf5Batches(Batches):
    """Endless batches of a folder of HDF5 shards, in Batches' order.

    Sequences stay padded to the shards' length. Where the shards are binned by length, a global batch is of one bin,
    and its sequences are padded to that bin's length only. The number of predictions is the shards', not
    `spec.max_predictions`.

    One background thread prepares two batches ahead, another reads the next shard (of each bin) while the present one
    is in use: see Pieces for the memory this takes. Iterate over one iterator at a time.

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
        counts = np.array(self.info.counts, dtype=np.int64)
        super().__init__(spec, counts, self.info.fingerprint, self.info.path)
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
            self._pieces.close()

    def _batch(self, number: int) -> "Batch":
        """Make this rank's part of a global batch; runs in the background."""
        which, start, parts = self._part(number)
        batch = to_batch([(self._pieces.get(shard, which), rows) for shard, rows in parts])
        self._read_ahead(which, start + self._order.global_batch)
        return batch

    def _lengths(self, shard: int, which: int, rows: Int64) -> Int64:
        mask = _gather([(self._pieces.get(shard, which), rows)], "input_mask")
        lengths: Int64 = mask.sum(axis=1, dtype=np.int64)
        return lengths

    def _read_ahead(self, which: int, start: int) -> None:
        """Have the shard read that holds the first sample of this rank's next batch of a bin, and the one after."""
        begin, end = self._looked_at.get(which, (0, 0))
        if not begin <= start < end:
            shard, begin, end = self._order.piece(which, start)
            self._looked_at[which] = begin, end
            self._pieces.expect([shard, self._order.piece(which, end)[0]], which)


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
