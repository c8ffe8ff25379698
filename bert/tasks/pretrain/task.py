"""Pretraining: masked words and next sentences (Devlin et al. 2018, section 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from bert.data.batch import Batch
from bert.data.lengths import is_synthetic
from bert.data.loading.order import spread
from bert.data.synthetic import SyntheticBatches
from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining, lay_out
from bert.optim.precision import Precision
from bert.tasks.base import BatchStream, DataIdentity, DataSpec, Evaluation, EvaluationSpec
from bert.tasks.pretrain.batches import Hdf5Batches, Shards, to_batch
from bert.tasks.pretrain.shards import ShardFolder, folder_info, read_metadata
from bert.tasks.pretrain.source import PretrainData, open_test_shards
from bert.train.observer import Observer
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


class PretrainTask:
    """Masked-language-model loss plus next-sentence loss."""

    name = "pretrain"
    parts: tuple[str, ...] = ("mlm_loss", "nsp_loss")
    scores: tuple[str, ...] = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    deciding_score = "mlm_loss"
    higher_is_better = False
    begins_from_encoder = False

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForPretraining(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Synthetic batches, or those of a folder of HDF5 shards. Raises InputError that names the file at fault."""
        if is_synthetic(spec.data):
            return SyntheticBatches(spec)
        return Hdf5Batches(spec, split)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean MLM loss plus mean NSP loss, a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def loss_parts(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean MLM loss plus mean NSP loss, a scalar, and the two."""
        output = model(batch)
        return output.loss, {"mlm_loss": output.mlm_loss.detach(), "nsp_loss": output.nsp_loss.detach()}

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Inspect the shards of a run.

        Raises:
            InputError: no shards, a damaged or missing one, or shards made with a vocabulary of another size.
        """
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        info = folder_info(Path(spec.data), split, spec.seq_len)
        if info.vocab_size is not None and info.vocab_size != spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{info.path} has a vocabulary of {info.vocab_size}, the model {spec.vocab_size}: use the former",
            )
        return DataIdentity(
            source=spec.data,
            fingerprint=info.fingerprint,
            shards=[path.relative_to(info.path).as_posix() for path in info.paths],
            vocab_size=info.vocab_size,
            vocabulary=_vocabulary_hash(info.paths[0].parent),
        )

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> TestShards:
        """Open the test shards beside the training shards. Raises InputError, UsageError if others are wanted."""
        PretrainData().check_evaluation(spec.data, spec.seq_len, wanted.source)
        return TestShards(spec, wanted.samples)


def _vocabulary_hash(folder: Path) -> str | None:
    found = (read_metadata(folder) or {}).get("vocab")
    return found if isinstance(found, str) else None
