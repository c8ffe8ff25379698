"""One process, one device."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from bert.optim.adamw import AdamW
from bert.optim.precision import Precision
from bert.parallel.base import NO_OPTIONS, NO_PLAN, Moments, Options, StepPlan
from bert.train.observer import Observer
from common.errors import UsageError


class SingleStrategy:
    """Trains in this process alone; the base of the strategies that add communication to it."""

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        self.options = options
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        self.devices_per_rank = 1
        self.device = torch.device("cpu")

    def setup(self, device_type: str) -> None:
        """Pick the device. Raises UsageError when several ranks were started or the device is absent."""
        self._read_environment()
        if self.world_size != 1 and type(self) is SingleStrategy:
            raise UsageError(
                "unsupported-combination",
                f"strategy single runs on one device, but {self.world_size} were requested: use strategy ddp",
            )
        if device_type == "cuda":
            self._pick_gpu()

    @classmethod
    def alone(cls, device_type: str) -> "SingleStrategy":
        """Return one that computes by itself on this process's device, whatever world the process is a rank of.

        Raises:
            UsageError: the device is absent.
        """
        strategy = cls()
        strategy.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if device_type == "cuda":
            strategy._pick_gpu()
        return strategy

    def _read_environment(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))

    def _pick_gpu(self) -> None:
        visible = torch.cuda.device_count()
        if self.local_rank >= visible:
            raise UsageError(
                "device-missing",
                f"rank {self.rank} needs GPU number {self.local_rank} of this node, but PyTorch sees {visible}: "
                "check CUDA_VISIBLE_DEVICES, the driver and that torch is a CUDA build, or request fewer devices",
            )
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the device."""
        return model.to(self.device)

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Nothing to take over."""

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Nothing to hold back: there is no communication."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate the gradients of `loss`."""
        precision.scale(loss).backward()

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """Scale the gradients so that their global 2-norm is at most `max_norm`."""
        if isinstance(optimizer, AdamW) and optimizer.clips:
            optimizer.clip(max_norm)
        else:
            precision.unscale(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | None:
        """Apply and clear the gradients. Return whether they were applied: an fp16 overflow skips the update.

        Gradients agree over the ranks before this, an overflow with them, so every rank decides alike.
        """
        applied = precision.step(optimizer, wait)
        optimizer.zero_grad(set_to_none=True)
        return applied

    def held(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """All parameters."""
        return [parameter.detach() for parameter in model.parameters()]

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's state dict."""
        yield from model.state_dict().items()

    def moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """The optimizer's state."""
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                yield name, key, value.detach()

    def load_moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: Moments, steps: int | None
    ) -> None:
        """Give the optimizer its state; what is on the CPU goes where its parameter is."""
        names = {parameter: name for name, parameter in model.named_parameters()}
        packed = optimizer.state_dict()
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            index: {key: self.placed(value, parameter) for key, value in moments[names[parameter]].items()}
            for index, parameter in enumerate(ordered)
        }
        groups = packed["param_groups"]
        if steps is not None:
            groups = [{**group, "step": steps} for group in groups]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def placed(self, whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of a whole tensor of a parameter's state that belongs to this rank, in memory of its own."""
        # A copy: what was read may be a mapping of the file, which the optimizer must not write into.
        return whole.clone() if whole.ndim == 0 else whole.to(parameter.device, copy=True)

    def whole(self, model: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """The model itself."""
        return nullcontext(model)

    def barrier(self) -> None:
        """Nothing to wait for: there is one rank."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values

    def teardown(self) -> None:
        """Nothing to leave."""
