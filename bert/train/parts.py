"""What the parts of a run are told of its settings."""

from collections.abc import Iterator
from typing import Protocol

import torch

from bert.data.batch import Batch
from bert.data.lengths import PADDINGS
from bert.optim.precision import Precision
from bert.optim.registry import OPTIMIZERS, SELF_CLIPPING
from bert.parallel.base import StepPlan, Strategy
from bert.tasks.base import DataSpec
from bert.train.loop import ComputeLoss, DivergenceWatch, Progress, Training
from bert.train.settings import TrainSettings


def step_plan(settings: TrainSettings, levers: frozenset[str] = frozenset()) -> StepPlan:
    """Return what the strategy has to know of the steps; `levers` are those that are on."""
    clips_itself = settings.optimizer in SELF_CLIPPING
    return StepPlan(
        precision=settings.precision,
        micro_batch_size=settings.micro_batch_size,
        grad_accum_steps=settings.grad_accum_steps,
        optimizer=settings.optimizer,
        max_grad_norm=None if clips_itself else settings.max_grad_norm,
        optimizer_norm=settings.max_grad_norm if clips_itself else None,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        levers=levers,
    )


def make_optimizer(settings: TrainSettings, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a run; it clips gradients itself where step_plan says so."""
    clipping = {"max_grad_norm": settings.max_grad_norm} if settings.optimizer in SELF_CLIPPING else {}
    make = OPTIMIZERS[settings.optimizer]
    return make(model, settings.learning_rate, weight_decay=settings.weight_decay, **clipping)


def make_training(
    settings: TrainSettings,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    compute_loss: ComputeLoss,
    batches: Iterator[Batch],
    strategy: Strategy,
    precision: Precision,
    progress: Progress,
) -> Training:
    """Return what a loop trains with; the arguments as Training has them."""
    return Training(
        model=model,
        optimizer=optimizer,
        compute_loss=compute_loss,
        batches=batches,
        strategy=strategy,
        precision=precision,
        grad_accum_steps=settings.grad_accum_steps,
        max_grad_norm=step_plan(settings).max_grad_norm,
        learning_rate=settings.learning_rates(),
        progress=progress,
        divergence=DivergenceWatch(settings.log_every),
    )


class Batches(Protocol):
    """What settings of a training and the trial of a measurement have in common: which batches they are made of."""

    @property
    def data(self) -> str:
        """Where samples come from."""

    @property
    def seq_len(self) -> int:
        """Tokens of the longest."""

    @property
    def micro_batch_size(self) -> int:
        """Samples of a device."""

    @property
    def max_predictions(self) -> int:
        """Masked positions of a sample at most."""

    @property
    def vocab_size(self) -> int:
        """Word pieces."""

    @property
    def seed(self) -> int:
        """Of their order."""

    @property
    def padding(self) -> str:
        """What batches are padded to; empty for the usual."""


def data_spec(settings: Batches, strategy: Strategy) -> DataSpec:
    """Return which batches this rank trains on."""
    return DataSpec(
        source=settings.data,
        seq_len=settings.seq_len,
        micro_batch_size=settings.micro_batch_size * strategy.devices_per_rank,
        max_predictions=settings.max_predictions,
        vocab_size=settings.vocab_size,
        seed=settings.seed,
        rank=strategy.rank,
        world_size=strategy.world_size,
        padding=settings.padding or PADDINGS[0],
    )
