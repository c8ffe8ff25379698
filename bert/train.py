"""The training loop: batches in, optimizer steps out, observers told of everything in between."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bert.batch import Batch, BatchCounts
from bert.observer import Observer, StepResult
from bert.precision import Precision
from bert.strategies.base import Strategy
from common.errors import UsageError

ComputeLoss = Callable[[torch.nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Everything a run of the loop needs, already on its device."""

    model: torch.nn.Module
    """The model, wrapped by the strategy."""
    optimizer: torch.optim.Optimizer
    """Over the model's parameters."""
    compute_loss: ComputeLoss
    """(model, batch) -> mean loss of the micro-batch, a scalar."""
    batches: Iterator[Batch]
    """Endless micro-batches on the CPU, pinned where the device is a GPU."""
    strategy: Strategy
    """Parallelism."""
    precision: Precision
    """Autocast and gradient scaling."""
    grad_accum_steps: int = 1
    """Micro-steps per optimizer step."""
    max_grad_norm: float | None = None
    """Clip the global gradient norm to this; None leaves it."""
    learning_rate: Callable[[int], float] | None = None
    """Learning rate of a step number; None keeps the optimizer's."""

    def __post_init__(self) -> None:
        """Refuse an empty step."""
        if self.grad_accum_steps < 1:
            raise UsageError(f"grad_accum_steps={self.grad_accum_steps} must be at least 1")


def train(training: Training, observer: Observer, keep_going: Callable[[int], bool], first_step: int = 0) -> int:
    """Step until `keep_going(step)` says no; return the number of the step that was not made.

    `keep_going` is asked between steps, outside of what is timed, with the number of the step to come; in a
    distributed run its answer has to be the same on every rank.
    """
    training.model.train()
    step = first_step
    observer.run_begin()
    try:
        while keep_going(step):
            run_step(training, observer, step)
            step += 1
    finally:
        observer.run_end()
    return step


def run_step(training: Training, observer: Observer, step: int) -> None:
    """Make one optimizer step: `grad_accum_steps` micro-steps, then the update."""
    strategy, precision = training.strategy, training.precision
    accumulation = training.grad_accum_steps
    total_loss: torch.Tensor | None = None
    counts: BatchCounts | None = None
    observer.step_begin(step)
    if training.learning_rate is not None:
        for group in training.optimizer.param_groups:
            group["lr"] = training.learning_rate(step)
    for micro_step in range(accumulation):
        with observer.phase("data"):
            batch = next(training.batches).to(strategy.device)
        with strategy.accumulate(last=micro_step == accumulation - 1):
            with observer.phase("forward"), precision.autocast():
                loss = training.compute_loss(training.model, batch) / accumulation
            with observer.phase("backward"):
                strategy.backward(loss, precision)
        detached = loss.detach()
        total_loss = detached if total_loss is None else total_loss + detached
        counts = batch.counts if counts is None else counts + batch.counts
    with observer.phase("optimizer"):
        if training.max_grad_norm is not None:
            strategy.clip(training.model, training.optimizer, training.max_grad_norm, precision)
        strategy.step(training.optimizer, precision)
    assert total_loss is not None and counts is not None
    observer.step_end(step, StepResult(counts, total_loss, float(training.optimizer.param_groups[0]["lr"])))
