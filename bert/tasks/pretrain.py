"""Pretraining: masked words and next sentences (Devlin et al. 2018, section 3.1)."""

import torch

from bert.batch import Batch, BatchCounts
from bert.config import ModelConfig
from bert.data.lengths import is_synthetic
from bert.data.loading.batches import Hdf5Batches
from bert.data.synthetic import SyntheticBatches
from bert.flops import model_flops
from bert.model import BertForPretraining
from bert.observer import Observer
from bert.tasks.base import BatchStream, DataSpec


class PretrainTask:
    """Masked-language-model loss plus next-sentence loss."""

    name = "pretrain"

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

    def model_flops(self, config: ModelConfig, counts: BatchCounts) -> float:
        """Model FLOPs of forward and backward for these counts."""
        return model_flops(config, counts)
