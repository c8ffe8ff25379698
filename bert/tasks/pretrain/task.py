"""Pretraining: masked words and next sentences (Devlin et al. 2018, section 3.1)."""

from pathlib import Path

import torch

from bert.checkpoints.model_config import read_json
from bert.data.batch import Batch, BatchCounts
from bert.data.lengths import is_synthetic
from bert.data.loading.batches import Hdf5Batches
from bert.data.loading.folder import folder_info
from bert.data.synthetic import SyntheticBatches
from bert.model.config import ModelConfig
from bert.model.flops import model_flops
from bert.model.models import BertForPretraining
from bert.tasks.base import BatchStream, DataIdentity, DataSpec, EvaluationSpec
from bert.tasks.pretrain.evaluation import TestShards
from bert.tasks.pretrain.naming import METADATA_FILE
from bert.tasks.pretrain.source import PretrainData
from bert.train.observer import Observer
from common.errors import InputError


class PretrainTask:
    """Masked-language-model loss plus next-sentence loss."""

    name = "pretrain"
    parts: tuple[str, ...] = ("mlm_loss", "nsp_loss")
    scores: tuple[str, ...] = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    deciding_score = "mlm_loss"
    higher_is_better = False
    begins_from_encoder = False

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialised weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForPretraining(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Synthetic batches, or those of a folder of HDF5 shards. Raises InputError that names the file at fault."""
        if is_synthetic(spec.source):
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
        """Look at the shards of a run.

        Raises:
            InputError: no shards, a damaged or missing one, or shards made with a vocabulary of another size.
        """
        if is_synthetic(spec.source):
            return DataIdentity(source=spec.source)
        info = folder_info(Path(spec.source), split, spec.seq_len)
        if info.vocab_size is not None and info.vocab_size != spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"the shards in {info.path} were made with a vocabulary of {info.vocab_size} word pieces, the model "
                f"has {spec.vocab_size}: set vocab_size to {info.vocab_size}, or give shards of the model's vocabulary",
            )
        return DataIdentity(
            source=spec.source,
            fingerprint=info.fingerprint,
            shards=[path.relative_to(info.path).as_posix() for path in info.paths],
            vocab_size=info.vocab_size,
            vocabulary=_vocabulary_hash(info.paths[0].parent),
        )

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> TestShards:
        """Open the test shards beside the training shards. Raises InputError, UsageError where others are wanted."""
        PretrainData().check_evaluation(spec.source, spec.seq_len, wanted.source)
        return TestShards(spec, wanted.samples)

    def model_flops(self, config: ModelConfig, counts: BatchCounts) -> float:
        """Model FLOPs of forward and backward for these counts."""
        return model_flops(config, counts)


def _vocabulary_hash(folder: Path) -> str | None:
    path = folder / METADATA_FILE
    found = read_json(path).get("vocab") if path.exists() else None
    return found if isinstance(found, str) else None
