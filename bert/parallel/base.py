"""The interface of parallel strategies: start ranks, wrap the model, step, and save sharded state."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bert.optim.precision import Precision
from bert.train.observer import Observer
from common.train_spec import TrainSpec

Moments = Mapping[str, Mapping[str, torch.Tensor]]
"""State of an optimizer: by parameter name and key, whole tensors."""


Options = Mapping[str, Any]
"""Options of a strategy by name, plain JSON values."""
NO_OPTIONS: Options = {}


_ONE_STEP = TrainSpec(precision="fp32", micro_batch_size=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """What a strategy must know about the steps before it wraps the model."""

    train: TrainSpec = _ONE_STEP
    """Precision, micro-batch and micro-steps per update."""
    optimizer: str = "adamw"
    """A name in bert.optim.registry.OPTIMIZERS."""
    max_grad_norm: float | None = None
    """Norm that gradients are clipped to; None does not clip."""
    optimizer_norm: float | None = None
    """Norm to which the optimizer itself clips, which then nothing else does."""
    learning_rate: float | None = None
    """Highest learning rate of the run; None if only the code that makes the optimizer knows."""
    weight_decay: float | None = None
    """Weight decay; None if only the code that makes the optimizer knows."""
    levers: frozenset[str] = frozenset()
    """Names in bert.speed.registry.LEVERS that are on."""


NO_PLAN = StepPlan()
"""Steps of one micro-batch in fp32, as far as a strategy can tell."""


class Strategy(Protocol):
    """Parallelism of one training process; bert.parallel.STRATEGIES lists the implementations.

    Each is made with its options by name (bert.parallel.options). Where the ranks hold parts of the model, `weights`
    and `moments` put them together: checkpoints do not tell by which strategy, or by how many ranks, they were written.
    """

    rank: int
    local_rank: int
    world_size: int
    """Ranks: processes that each draw batches of their own."""
    devices_per_rank: int
    """Devices that each rank drives; its micro-batch is so many times the one of a device."""
    device: torch.device

    def setup(self, device_type: str) -> None:
        """Join the process group described by the environment (torchrun's variables); pick the device.

        Raises:
            UsageError: it cannot run on such devices, or not on so many.
            MissingToolError: what it needs is not installed; the message says how to get it.
        """

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the device and make its gradients agree over the ranks.

        Raises:
            UsageError: the options of the strategy contradict `plan`.
        """

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Take the optimizer of the wrapped model over, before anything is loaded into it and before the first step."""

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

    def held(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The parts of the parameters that this rank holds, detached; empty ones are left out.

        `model` is, here and below, the one that was wrapped, without what is around it.
        """

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors of the model's state dict by name, one after the other; every rank must take all of them."""

    def moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Whole tensors of the optimizer's state as (parameter name, key, tensor); every rank must take all."""

    def load_moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: Moments, steps: int | None
    ) -> None:
        """Give the optimizer what `moments` gave, of any strategy.

        Args:
            model: the model.
            optimizer: over its parameters; its options, such as the weight decay, stay its own.
            moments: of every parameter, on the CPU.
            steps: what it counted for all parameters together, None where each has its own count.
        """

    def whole(self, model: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """A model with all weights on this rank's device, which needs no other rank to run; every rank must enter."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector, the same on every rank."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector, the same on every rank."""

    def teardown(self) -> None:
        """Leave the process group."""
