"""Batches of HDF5 shards, for each rank its own: endless ones to train on, one pass over test shards to evaluate with.

Torch is imported only where batches are made.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.batches import Batches, DataSpec, lengths_fingerprint, spread
from bert.data.synthetic import draw_lengths, lengths_folder, quantiles, random_of, sample_count
from bert.tasks.base import Evaluation
from bert.tasks.pretrain.instances import Instances, random_instances
from bert.tasks.pretrain.masking import InstanceConfig
from bert.tasks.pretrain.shards import ShardFolder, folder_lengths, open_shards, read_shard
from common.errors import InputError

if TYPE_CHECKING:
    import torch

    from bert.data.batch import Batch
    from bert.optim.precision import Precision

Int64 = npt.NDArray[np.int64]
_KEPT_BYTES = 64 * 2**20
"""Shards are kept in memory up to this size, so that small data is read once."""
_FEWEST = 2
"""Shards that are kept however large they are: the one in use and the next."""


class InstanceBatches(Batches):
    """Endless batches of instances; sequences stay padded to their full length."""

    @abstractmethod
    def _instances(self, shard: int) -> Instances:
        """Return a shard."""

    def _batch(self, pieces: list[tuple[int, Int64]]) -> "Batch":
        return to_batch([(self._instances(shard), rows) for shard, rows in pieces])

    def _lengths(self, shard: int, rows: Int64) -> Int64:
        lengths: Int64 = self._instances(shard).input_mask[rows].sum(axis=1, dtype=np.int64)
        return lengths


class SyntheticBatches(InstanceBatches):
    """Endless batches of random instances, whose lengths follow a distribution or the samples of a folder of shards.

    Raises UsageError (an unknown distribution, or none for this sequence length), InputError as open_shards.
    """

    def __init__(self, spec: DataSpec) -> None:
        folder, rng = lengths_folder(spec.data), random_of(spec)
        if folder is None:
            lengths = draw_lengths(spec, "pretrain")
        else:
            histogram = folder_lengths(open_shards(folder, "training", spec.seq_len))
            lengths = quantiles(rng, sample_count(spec.seq_len), histogram)
        config = InstanceConfig(seq_len=spec.seq_len, max_predictions=spec.max_predictions)
        self._all = random_instances(lengths, config, spec.vocab_size, rng)
        super().__init__(spec, np.array([len(lengths)]), lengths_fingerprint(spec.seq_len, lengths), spec.data)

    def _instances(self, shard: int) -> Instances:
        return self._all


@dataclass(slots=True)
class Reading:
    """What was read from compressed shards."""

    samples: int = 0
    seconds: float = 0.0
    """Decompressing and checking included."""


class ShardReader:
    """Reads shards of a folder on a thread of its own and keeps the latest: two, or as many as 64 MiB hold.

    `reading` counts what is read.
    """

    def __init__(self, folder: ShardFolder, vocab_size: int, reading: Reading) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._reading = reading
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shards")
        # int32 ids, labels and positions; one byte for all else
        largest = (6 * folder.seq_len + 8 * folder.max_predictions + 1) * max(folder.counts)
        kept = lru_cache(maxsize=max(_FEWEST, _KEPT_BYTES // largest))
        self.read: Callable[[int], Future[Instances]] = kept(lambda shard: self._thread.submit(self._read, shard))
        """Begins to read a shard that is not in memory. The result raises InputError as read_samples does."""

    def close(self) -> None:
        """End the thread; a read in progress is waited for."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self, shard: int) -> Instances:
        began = time.perf_counter()
        instances = read_samples(self._folder, self._vocab_size, shard)
        self._reading.seconds += time.perf_counter() - began
        self._reading.samples += len(instances)
        return instances


def read_samples(folder: ShardFolder, vocab_size: int, shard: int) -> Instances:
    """Return the samples of a shard. Raises InputError: it is damaged, or has word pieces the model lacks."""
    path = folder.paths[shard]
    instances = read_shard(path)
    largest = max(int(instances.input_ids.max()), int(instances.masked_lm_ids.max()))
    if largest >= vocab_size:
        raise InputError(
            "vocabulary-mismatch",
            f"{path} holds the word piece {largest}, the model {vocab_size}: use its vocabulary",
        )
    return instances


class Hdf5Batches(InstanceBatches):
    """Endless batches of a folder of HDF5 shards.

    The number of predictions is the shards', not `spec.max_predictions`.

    A background thread reads the next shard while the present one is in use: see ShardReader for the memory this takes.
    Iterate over one iterator at a time. Raises InputError as open_shards.
    """

    def __init__(self, spec: DataSpec, split: str = "training") -> None:
        self.info = open_shards(Path(spec.data), split, spec.seq_len)
        super().__init__(spec, np.array(self.info.counts), self.info.fingerprint, self.info.path)
        self.reading = Reading()
        self._shards = ShardReader(self.info, spec.vocab_size, self.reading)

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        self._shards = ShardReader(self.info, self.spec.vocab_size, self.reading)
        try:
            yield from super().__iter__()
        finally:
            self._shards.close()

    def _batch(self, pieces: list[tuple[int, Int64]]) -> "Batch":
        batch = super()._batch(pieces)
        # The shard of the first sample of this rank's next batch, and the one after.
        shard, _, end = self._order.piece(self._begin(self._next + self._global_batch))
        self._shards.read(shard)
        self._shards.read(self._order.piece(end)[0])
        return batch

    def _instances(self, shard: int) -> Instances:
        return self._shards.read(shard).result()


class TestShards:
    """The test split of a folder, or `samples` of it, spread evenly; the same samples in the same order every time.

    Raises InputError as open_shards.
    """

    __test__ = False  # no test of pytest's

    def __init__(self, spec: DataSpec, samples: int = 0) -> None:
        self.info = open_shards(Path(spec.data), "test", spec.seq_len)
        self._spec = spec
        chosen = spread(self.info.samples, samples)
        self.fingerprint = f"{self.info.fingerprint}/{len(chosen)}"
        ends = np.cumsum(self.info.counts)
        rows_of = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        size = spec.micro_batch_size
        self._chunks = [
            (shard, rows[start : start + size] - (ends[shard] - self.info.counts[shard]))
            for shard, rows in enumerate(rows_of)
            for start in range(0, len(rows), size)
        ]
        """Shard and rows of each micro-batch."""

    def batches(self) -> "Iterator[Batch]":
        """Yield this rank's micro-batches, on the CPU; ranks have disjoint ones."""
        rank, ranks = self._spec.rank, self._spec.world_size
        read = lru_cache(maxsize=1)(read_samples)
        for shard, rows in self._chunks[len(self._chunks) * rank // ranks : len(self._chunks) * (rank + 1) // ranks]:
            yield to_batch([(read(self.info, self._spec.vocab_size, shard), rows)])

    def measure(self, model: "torch.nn.Module", device: "torch.device", precision: "Precision") -> "torch.Tensor":
        """Return this rank's sums [7]: MLM loss, right words, positions, NSP loss, right labels, samples with such a
        label, samples.

        The model's `predictions` returns the logits of the predicted positions [M, V] and those of the next sentences
        [B, 2], None without that head. Raises InputError: a shard is damaged.
        """
        import torch

        predictions: Any = model.predictions
        total = torch.zeros(7, dtype=torch.float64, device=device)
        for batch in self.batches():
            moved = batch.laid_out().to(device)
            with precision.autocast():
                words, sentences = predictions(moved)
            total[:3] += _loss_and_right(words, moved.tensors["masked_labels"])
            if sentences is not None:
                total[3:6] += _loss_and_right(sentences, moved.tensors["next_sentence_labels"])
            total[6] += batch.counts.samples
        return total.cpu()

    def score(self, total: "torch.Tensor") -> Evaluation:
        """Return losses in nats and accuracies: means over all predicted positions and all samples."""
        mlm, mlm_right, positions, nsp, nsp_right, pairs, samples = total.tolist()
        values = {"mlm_loss": mlm / max(positions, 1.0), "mlm_accuracy": mlm_right / max(positions, 1.0)}
        if pairs:
            values |= {"nsp_loss": nsp / pairs, "nsp_accuracy": nsp_right / pairs}
        return Evaluation(values=values, samples=int(samples), counts={"predicted_positions": int(positions)})


def _loss_and_right(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Return the sum of the losses, the right answers and the answers, [3]."""
    import torch
    import torch.nn.functional as F

    loss = F.cross_entropy(logits.float(), labels, reduction="sum").double()
    right = (logits.argmax(-1) == labels).sum().double()
    return torch.stack([loss, right, torch.full_like(right, len(labels))])


def to_batch(parts: Sequence[tuple[Instances, Int64]]) -> "Batch":
    """Return the batch of rows of one or several shards, tensors and counts as bert.data.batch documents them."""
    from bert.data.batch import batch_of

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
    arrays = {
        "input_ids": columns["input_ids"].astype(np.int64),
        "attention_mask": mask,
        "token_type_ids": columns["segment_ids"].astype(np.int64),
        "masked_positions": positions,
        "masked_labels": columns["masked_lm_ids"][used].astype(np.int64),
        "next_sentence_labels": columns["next_sentence_labels"].astype(np.int64),
    }
    return batch_of(arrays, mask.sum(axis=1))
