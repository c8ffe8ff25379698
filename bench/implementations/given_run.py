"""The model that `--model` names in a training run: what evaluators call, and how it is saved."""

from pathlib import Path

import torch
from safetensors import SafetensorError

from bench.implementations.given import GivenModel
from bert.checkpoints.tensor_files import safetensors_errors
from bert.data.batch import Batch
from bert.model.heads import ClassificationOutput
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from common.atomic import storage_errors, sync_files
from common.errors import BertbenchError, InputError, first_line
from common.train_spec import TrainSpec


class TrainedGiven:
    """A given model that a run trains (bench.implementations.hf_trainer_run.Trained).

    Raises:
        InputError: transformers cannot build it, or its weights do not fit it.
        UsageError: activation checkpointing of a model that has none.
    """

    def __init__(self, spec: TrainSpec, task: Task) -> None:
        given = GivenModel(spec, task)
        self.model = given.module()
        self.not_loaded = given.not_loaded
        self._given = given

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of the task."""
        return self._given.loss(model, batch)

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with labels at every position, and the model's own padding."""
        return self._given.adapt(batch)

    def scored(self) -> torch.nn.Module:
        """Return what evaluators call; it shares the weights."""
        if isinstance(self._given.task, ClassificationTask):
            return _Classifier(self._given, self.model, self._given.task.labels)
        return _MaskedWords(self._given, self.model)

    def write(self, folder: Path) -> None:
        """Save configuration and weights as `save_pretrained` does.

        Raises:
            StorageError: they cannot be written, or the disk is full.
            InputError: transformers cannot save this model.
        """
        with storage_errors(folder), safetensors_errors():
            try:
                self.model.save_pretrained(folder)
            except (BertbenchError, SafetensorError, OSError):
                raise
            except Exception as error:  # code of the folder may raise anything
                raise InputError(
                    "model-unsupported",
                    f"transformers cannot save {type(self.model).__name__} ({first_line(error)}): measure it with "
                    f"`bertbench throughput --model {self._given.spec.model}`, which saves nothing",
                ) from error
        sync_files(folder)


class _Classifier(torch.nn.Module):
    """Has the `labels` and the `logits` that bert.tasks.evaluation asks for."""

    def __init__(self, given: GivenModel, model: torch.nn.Module, labels: int) -> None:
        super().__init__()
        self.given, self.model, self.labels = given, model, labels

    def forward(self, batch: Batch) -> ClassificationOutput:
        """Return the logits of a batch."""
        return ClassificationOutput(None, self.given.output(self.model, self.given.adapt(batch)).logits)


class _MaskedWords(torch.nn.Module):
    """Has the `predictions` that bert.tasks.pretrain asks for."""

    def __init__(self, given: GivenModel, model: torch.nn.Module) -> None:
        super().__init__()
        self.given, self.model = given, model

    def predictions(self, batch: Batch) -> tuple[torch.Tensor, None]:
        """Return the logits of the predicted positions [M, V]; the model has no head for next sentences."""
        logits = self.given.output(self.model, self.given.adapt(batch)).logits
        return logits.flatten(0, 1)[batch.tensors["masked_positions"]], None
