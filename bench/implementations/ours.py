"""The suite's own BERT."""

from functools import partial

import torch

from bench.implementations.base import LEARNING_RATE, Built, Implementation
from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import recompute_activations
from bert.observer import Observer
from bert.optim.registry import adamw
from bert.speed.registry import (
    AUTO,
    Setup,
    check_effect,
    check_precision,
    effective,
    fuses_optimizer,
    resolve_levers,
    use_levers,
    use_weight_copies,
)
from bert.tasks.base import Task
from bert.train.feed import Adapt
from records.trial import Trial


def _levers(trial: Trial) -> tuple[frozenset[str], dict[str, str]]:
    return effective(resolve_levers(trial.levers or AUTO, trial.device), Setup.of(trial, trial.device))


class BertbenchImplementation(Implementation):
    """Trains our model of the task."""

    def check(self, trial: Trial) -> None:
        """Raise UsageError for requested optimizations that have no effect in the trial, or do not work in it."""
        check_precision(trial.levers, trial.precision)
        check_effect(trial.levers, Setup.of(trial, trial.device))

    def adapter(self, trial: Trial) -> Adapt:
        """Return what computes where the real tokens lie, so that no step waits for it."""
        return partial(Batch.laid_out, full="compile" in _levers(trial)[0])

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the task's model with fused AdamW."""
        levers, left_out = _levers(trial)

        def make_optimizer(wrapped: torch.nn.Module) -> torch.optim.Optimizer:
            use_weight_copies(
                wrapped, levers, precision=trial.precision, strategy=trial.strategy,
                grad_accum_steps=trial.grad_accum_steps, optimizer="adamw",
            )  # fmt: skip
            fused = fuses_optimizer(wrapped, levers, trial.strategy)
            return adamw(wrapped, learning_rate=LEARNING_RATE, fused=fused)

        model = task.build_model(config, observer)
        use_levers(model, levers)
        if trial.activation_checkpointing:
            recompute_activations(model)
        return Built(
            model=model, make_optimizer=make_optimizer, compute_loss=task.loss, levers=levers, left_out=left_out
        )
