"""Question answering on SQuAD: where in a text the answer begins and ends (Devlin et al. 2018, section 4.2)."""

from pathlib import Path

import torch

from bert.data.batch import Batch
from bert.data.lengths import is_synthetic
from bert.data.loading.batches import RowBatches
from bert.data.synthetic import QUESTIONS, SyntheticBatches
from bert.model.config import ModelConfig
from bert.model.heads import BertForQuestionAnswering
from bert.tasks.base import BatchStream, DataIdentity, DataSpec, EvaluationSpec
from bert.tasks.squad.evaluation import Questions
from bert.tasks.squad.features import find_features
from bert.tasks.squad.source import SquadData
from bert.train.observer import Observer


class SquadTask(SquadData):
    """Mean of the losses of the answers' first and last tokens."""

    parts: tuple[str, ...] = ("start_loss", "end_loss")
    scores: tuple[str, ...] = (
        "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_exact_thresh",
        "best_f1", "best_f1_thresh",
    )  # fmt: skip
    deciding_score = "f1"
    higher_is_better = True
    begins_from_encoder = True

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForQuestionAnswering(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Synthetic batches, or those of a features file. Raises InputError that names the file at fault."""
        if is_synthetic(spec.data):
            return SyntheticBatches(spec, QUESTIONS)
        return RowBatches(spec, find_features(Path(spec.data), split, spec.seq_len).rows)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean of start and end loss, a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def loss_parts(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean of start and end loss, a scalar, and the two."""
        output = model(batch)
        return output.loss, {"start_loss": output.start_loss.detach(), "end_loss": output.end_loss.detach()}

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Inspect the features of a run. Raises InputError if they are missing, damaged or do not fit `spec`."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        return DataIdentity.of(spec.data, find_features(Path(spec.data), split, spec.seq_len).rows)

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> Questions:
        """Open the features to evaluate on.

        Raises:
            UsageError: none are named.
            InputError: they are missing or damaged, longer than those that are trained on, or of another vocabulary.
        """
        self.check_evaluation(spec.data, spec.seq_len, wanted.source)
        return Questions(spec, Path(str(wanted.source)), wanted.samples)
