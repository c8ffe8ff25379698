"""The suite's own BERT."""

import torch

from bench.implementations.base import LEARNING_RATE, Built, Implementation
from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import recompute_activations
from bert.observer import Observer
from bert.optim.registry import adamw
from bert.speed import apply, copy_weights, fuses_optimizer, lacking
from bert.tasks.base import Task
from bert.train.feed import Adapt
from bert.train.settings import check_step
from records.trial import Trial


class BertbenchImplementation(Implementation):
    """Trains our model of the task."""

    def check(self, trial: Trial) -> None:
        """Raise UsageError for FP8 where it does not work."""
        check_step(trial, trial.device)

    def adapter(self, trial: Trial) -> Adapt:
        """Return what computes where the real tokens lie, so that no step waits for it."""
        return Batch.laid_out

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the task's model with fused AdamW."""

        def make_optimizer(wrapped: torch.nn.Module) -> torch.optim.Optimizer:
            copy_weights(wrapped, trial)
            return adamw(wrapped, learning_rate=LEARNING_RATE, fused=fuses_optimizer(wrapped, trial))

        model = task.build_model(config, observer)
        apply(model, trial.step)
        if trial.activation_checkpointing:
            recompute_activations(model)
        lacks = None if (missing := lacking(trial.step, trial.device)) is None else str(missing)
        return Built(model=model, make_optimizer=make_optimizer, compute_loss=task.loss, lacks=lacks)
