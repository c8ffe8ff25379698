"""What an implementation is: the tensors it reads, a model, its optimizer and how a batch becomes a loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.tasks.base import Task
from bert.train.loop import ComputeLoss, Training
from bert.train.observer import Observer
from records.trial import Trial

# (training, observer, keep_going) -> number of the step that was not made, as bert.train.loop.train.
Loop = Callable[[Training, Observer, Callable[[int], bool]], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """One implementation made ready for one trial."""

    model: torch.nn.Module
    """On the CPU, in float32, not yet wrapped by a strategy."""
    make_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]
    """Called with the wrapped model on its device."""
    compute_loss: ComputeLoss
    """(wrapped model, batch) -> scalar."""
    levers: frozenset[str] = frozenset()
    """Names in bert.speed.registry.LEVERS that are on; only our own implementation has any."""
    loop: Loop | None = None
    """Wraps the model and trains by itself, arguments as bert.train.loop.train has; None: the strategy, our loop."""


class Implementation(Protocol):
    """Code that trains BERT. bench.implementations.IMPLEMENTATIONS lists them."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, where `trial` cannot run with this code."""

    def adapt(self, batch: Batch) -> Batch:
        """Give a batch the tensors this implementation reads; runs where the data are prepared, without a model."""

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Make the model and its surroundings."""
