"""What the parts of a run are told of its settings."""

from collections.abc import Iterator

import torch

from bert.data.batch import Batch
from bert.data.lengths import PADDINGS
from bert.optim.precision import Precision
from bert.optim.registry import OPTIMIZERS, SELF_CLIPPING
from bert.parallel.base import StepPlan, Strategy
from bert.tasks.base import DataSpec
from bert.train.loop import ComputeLoss, DivergenceWatch, Progress, Training
from bert.train.settings import TrainSettings
from common.train_spec import TrainSpec


def step_plan(settings: TrainSettings, levers: frozenset[str] = frozenset()) -> StepPlan:
    """Return what the strategy has to know of the steps; `levers` are those that are on."""
    clips_itself = settings.optimizer in SELF_CLIPPING
    return StepPlan(
        train=settings,
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


def data_spec(spec: TrainSpec, strategy: Strategy) -> DataSpec:
    """Return which batches this rank trains on."""
    return DataSpec.of(
        spec,
        micro_batch_size=spec.micro_batch_size * strategy.devices_per_rank,
        rank=strategy.rank,
        world_size=strategy.world_size,
        padding=spec.padding or PADDINGS[0],
    )
