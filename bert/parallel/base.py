"""The base of parallel strategies: start ranks, wrap the model, step, and save state that ranks hold in parts."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bert.observer import Observer
from bert.optim.adamw import AdamW
from bert.optim.precision import Precision
from common.errors import UsageError
from common.train_spec import TrainSpec

T = TypeVar("T")
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


class Strategy:
    """Parallelism of one training process, here of one that is alone; bert.parallel.STRATEGIES lists the subclasses.

    Where the ranks hold parts of the model, `weights` and `moments` put them together: checkpoints do not tell by which
    strategy, or by how many ranks, they were written. `model` is the one that was wrapped, without what is around it.
    """

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        self.options = options
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        """Ranks: processes that each draw batches of their own."""
        self.devices_per_rank = 1
        """Devices that each rank drives; its micro-batch is so many times the one of a device."""
        self.device = torch.device("cpu")

    def setup(self, device_type: str) -> None:
        """Join the process group described by the environment (torchrun's variables); pick the device.

        Raises:
            UsageError: it cannot run on such devices, or not on so many.
            MissingToolError: what it needs is not installed; the message says how to get it.
        """
        self._read_environment()
        if device_type == "cuda":
            self._pick_gpu()

    def _read_environment(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))

    def _pick_gpu(self) -> None:
        visible = torch.cuda.device_count()
        if self.local_rank >= visible:
            raise UsageError(
                "device-missing",
                f"rank {self.rank} needs GPU {self.local_rank} of this node, but PyTorch sees {visible}: check "
                "CUDA_VISIBLE_DEVICES and the driver, or request fewer devices",
            )
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the device and make its gradients agree over the ranks.

        Raises:
            UsageError: the options of the strategy contradict `plan`.
        """
        return model.to(self.device)

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Take the optimizer of the wrapped model over, before anything is loaded into it and before the first step."""

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-step: before the last of a step, gradients are not reduced."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients of `loss`, scaled where the precision asks for it."""
        precision.scale(loss).backward()

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """Scale the gradients so that their global 2-norm over all ranks is at most `max_norm`."""
        if isinstance(optimizer, AdamW) and optimizer.clips:
            optimizer.clip(max_norm)
        else:
            precision.unscale(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            precision.guard(optimizer, self.full(norm))

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | torch.Tensor:
        """Apply and clear the gradients. Return whether they were applied, the same on every rank.

        False means gradients that were not finite; a scalar on the GPU, 1 for those, that the host has not waited for.
        """
        applied = precision.step(optimizer, wait)
        optimizer.zero_grad(set_to_none=True)
        return applied

    def held(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The parts of the parameters that this rank holds, detached; empty ones are left out."""
        return [parameter.detach() for parameter in model.parameters()]

    def full(self, value: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor that ranks may hold parts of."""
        return value

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors of the model's state dict by name, one after the other; every rank must take all of them."""
        for name, value in model.state_dict().items():
            yield name, self.full(value)

    def moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Whole tensors of the optimizer's state as (parameter name, key, tensor); every rank must take all."""
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                yield name, key, self.full(value.detach())

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
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = optimizer.state_dict()["param_groups"]
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            index: {key: self.placed(value, parameter) for key, value in moments[names[parameter]].items()}
            for index, parameter in enumerate(ordered)
        }
        if steps is not None:
            groups = [{**group, "step": steps} for group in groups]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def placed(self, whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of a whole tensor of a parameter's state that belongs to this rank, in memory of its own."""
        # A copy: what was read may be a mapping of the file, which the optimizer must not write into.
        return whole.clone() if whole.ndim == 0 else whole.to(parameter.device, copy=True)

    def whole(self, model: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """A model with all weights on this rank's device, which needs no other rank to run; every rank must enter."""
        return nullcontext(model)

    def barrier(self) -> None:
        """Wait for every rank."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector, the same on every rank."""
        return values

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector, the same on every rank."""
        return values

    def gathered(self, value: T) -> list[T]:
        """What every rank gives, by rank; anything that can be pickled."""
        return [value]

    def teardown(self) -> None:
        """Leave the process group."""
