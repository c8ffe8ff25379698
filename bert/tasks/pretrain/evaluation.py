"""Evaluate pretraining: the losses and accuracies of a model on test shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from bert.data.batch import Batch
from bert.data.loading.order import spread
from bert.model.heads import lay_out
from bert.optim.precision import Precision
from bert.tasks.base import DataSpec, Evaluation
from bert.tasks.pretrain.batches import Shards, to_batch
from bert.tasks.pretrain.shards import ShardFolder, open_test_shards
from common.errors import InputError, UsageError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples that make one micro-batch."""

    shard: int
    """Number of the shard in its folder."""
    rows: npt.NDArray[np.int64]
    """Their rows, ascending."""


class TestShards:
    """The test split of a folder, or `samples` of it, spread evenly; the same samples in the same order every time.

    Raises:
        InputError: there are no test shards, a damaged one, or samples of another length.
    """

    __test__ = False  # no test of pytest's

    def __init__(self, spec: DataSpec, samples: int = 0) -> None:
        self.info: ShardFolder = open_test_shards(Path(spec.data), spec.seq_len)
        if self.info.seq_len != spec.seq_len:
            raise InputError(
                "data-mismatch",
                f"the test shards in {self.info.path} have {self.info.seq_len} tokens per sample, not {spec.seq_len}: "
                "prepare both alike, or give --eval-every 0",
            )
        self._spec = spec
        chosen = spread(self.info.samples, samples)
        self.fingerprint = f"{self.info.fingerprint}/{len(chosen)}"
        self._chunks = list(self._cut(chosen))

    def _cut(self, chosen: npt.NDArray[np.int64]) -> Iterator[Chunk]:
        first = 0
        for shard, count in enumerate(self.info.counts):
            rows = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + count)] - first
            for start in range(0, len(rows), self._spec.micro_batch_size):
                yield Chunk(shard, rows[start : start + self._spec.micro_batch_size])
            first += count

    def batches(self) -> Iterator[Batch]:
        """Yield this rank's micro-batches, on the CPU; ranks have disjoint ones."""
        rank, ranks = self._spec.rank, self._spec.world_size
        shards = Shards(self.info, self._spec.vocab_size)
        for chunk in self._chunks[len(self._chunks) * rank // ranks : len(self._chunks) * (rank + 1) // ranks]:
            yield to_batch([(shards.get(chunk.shard), chunk.rows)])

    def measure(self, model: torch.nn.Module, device: torch.device, precision: Precision) -> torch.Tensor:
        """Return this rank's sums [7]: MLM loss, right words, positions, NSP loss, right labels, samples with such a
        label, samples.

        Args:
            model: its `predictions` returns the logits of the predicted positions [M, V] and those of the next
                sentences [B, 2], None for a model without that head.
            device: where it is.
            precision: what to compute in.

        Raises:
            UsageError: the model has no masked-LM head.
            InputError: a shard is damaged.
        """
        predictions = getattr(model, "predictions", None)
        if predictions is None:
            raise UsageError("weights-mismatch", f"{type(model).__name__} has no masked-LM head to evaluate")
        losses = torch.zeros(4, dtype=torch.float64, device=device)
        positions = pairs = samples = 0
        for batch in self.batches():
            moved = lay_out(model, batch).to(device)
            with precision.autocast():
                words, sentences = predictions(moved)
            losses[:2] += torch.stack(_loss_and_right(words, moved.tensors["masked_labels"]))
            positions += batch.counts.predicted_positions
            samples += batch.counts.samples
            if sentences is not None:
                losses[2:] += torch.stack(_loss_and_right(sentences, moved.tensors["next_sentence_labels"]))
                pairs += batch.counts.samples
        mlm, mlm_right, nsp, nsp_right = losses.tolist()
        return torch.tensor([mlm, mlm_right, positions, nsp, nsp_right, pairs, samples], dtype=torch.float64)

    def score(self, total: torch.Tensor) -> Evaluation:
        """Return losses in nats and accuracies: means over all predicted positions and all samples."""
        mlm, mlm_right, positions, nsp, nsp_right, pairs, samples = total.tolist()
        values = {"mlm_loss": mlm / max(positions, 1.0), "mlm_accuracy": mlm_right / max(positions, 1.0)}
        if pairs:
            values |= {"nsp_loss": nsp / pairs, "nsp_accuracy": nsp_right / pairs}
        return Evaluation(
            values=values,
            samples=int(samples),
            counts={"predicted_positions": int(positions)},
        )


def _loss_and_right(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss = F.cross_entropy(logits.float(), labels, reduction="sum").double()
    return loss, (logits.argmax(-1) == labels).sum().double()
