"""The interface of an implementation: its input tensors, model, optimizer and loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bert.model.config import ModelConfig
from bert.observer import Observer
from bert.optim.registry import adamw
from bert.tasks import known_tasks, task_data
from bert.tasks.base import Task
from bert.train.feed import Adapt
from bert.train.loop import ComputeLoss, Training
from common.errors import UsageError
from records.trial import Trial

LEARNING_RATE = 1e-4
# (training, observer, keep_going) -> number of the first step not run, as in bert.train.loop.train.
Loop = Callable[[Training, Observer, Callable[[int], bool]], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """One implementation, built for one trial."""

    model: torch.nn.Module
    """Model on the CPU, in float32, not wrapped by a strategy."""
    compute_loss: ComputeLoss
    """(wrapped model, batch) -> scalar."""
    make_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] = lambda model: adamw(model, LEARNING_RATE)
    """Takes the wrapped model on its device."""
    lacks: str | None = None
    """What is not installed without which it is slower."""
    loop: Loop | None = None
    """Wraps the model and trains, with the arguments of bert.train.loop.train; None for our strategies and loop."""


class Implementation:
    """An implementation of BERT training; bench.implementations.IMPLEMENTATIONS lists them."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError if it cannot run `trial`, such as a task whose head only we have."""
        if trial.precision == "fp8":
            problem = f"implementation {trial.implementation!r} does not support precision fp8: use bf16"
            raise UsageError("unsupported-combination", problem)
        if not task_data(trial.task).heads:
            known = [name for name in known_tasks() if task_data(name).heads]
            raise UsageError(
                "unsupported-combination",
                f"implementation {trial.implementation!r} does not support task {trial.task!r}: use one of "
                f"{', '.join(known)}",
            )

    def adapter(self, trial: Trial) -> Adapt | None:
        """Return what converts a batch to the tensors that it reads, during data preparation; None if it reads all."""
        return None

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the model with the shape and dropout of `config` and an unpadded vocabulary, and its loss."""
        raise NotImplementedError
