"""Question answering on SQuAD: where in a text the answer begins and ends (Devlin et al. 2018, section 4.2)."""

import torch

from bert.batch import Batch, BatchCounts
from bert.config import ModelConfig
from bert.data.lengths import is_synthetic
from bert.data.loading.squad_batches import SquadBatches
from bert.data.synthetic import QUESTIONS, SyntheticBatches
from bert.flops import span_flops
from bert.model import BertForQuestionAnswering
from bert.observer import Observer
from bert.tasks.base import BatchStream, DataSpec


class SquadTask:
    """Mean of the losses of the answers' first and last tokens."""

    name = "squad"

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialised weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForQuestionAnswering(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Synthetic batches, or those of a features file. Raises InputError that names the file at fault."""
        if is_synthetic(spec.source):
            return SyntheticBatches(spec, QUESTIONS)
        return SquadBatches(spec, split)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean of start and end loss, a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def model_flops(self, config: ModelConfig, counts: BatchCounts) -> float:
        """Model FLOPs of forward and backward for these counts."""
        return span_flops(config, counts)
