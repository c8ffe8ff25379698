"""What a parallel strategy is: how ranks start, hold the model together and step."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from bert.observer import Observer
from bert.precision import Precision


class Strategy(Protocol):
    """Parallelism of one training process; bert.strategies.STRATEGIES lists the implementations."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    def setup(self, device_type: str) -> None:
        """Join the process group described by the environment (torchrun's variables); pick the device."""

    def wrap(self, model: torch.nn.Module, observer: Observer) -> torch.nn.Module:
        """Move the model to the device and make its gradients agree over the ranks."""

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-step: before the last of a step, gradients are not reduced."""

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients of `loss`, scaled where the precision asks for it."""

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """Scale the gradients so that their global 2-norm over all ranks is at most `max_norm`."""

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | None:
        """Apply and clear the gradients. Return whether they were applied, the same on every rank.

        False means an fp16 overflow; None, only without `wait`, that the GPU alone knows yet.
        """

    def barrier(self) -> None:
        """Wait for every rank."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector, the same on every rank."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector, the same on every rank."""

    def teardown(self) -> None:
        """Leave the process group."""
