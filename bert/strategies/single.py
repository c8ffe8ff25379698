"""One process, one device."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from bert.observer import Observer
from bert.precision import Precision
from common.errors import UsageError


class SingleStrategy:
    """Trains in this process alone; the base of the strategies that add communication to it."""

    def __init__(self) -> None:
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        self.device = torch.device("cpu")

    def setup(self, device_type: str) -> None:
        """Pick the device. Raises UsageError when several ranks were started or the device is absent."""
        self._read_environment()
        if self.world_size != 1 and type(self) is SingleStrategy:
            raise UsageError(f"strategy single runs on one device, {self.world_size} were asked for: use strategy ddp")
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
                f"rank {self.rank} needs GPU number {self.local_rank} of this node, PyTorch sees {visible}: "
                "check CUDA_VISIBLE_DEVICES, the driver and that torch is a CUDA build, or ask for fewer devices"
            )
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)

    def wrap(self, model: torch.nn.Module, observer: Observer) -> torch.nn.Module:
        """Move the model to the device."""
        return model.to(self.device)

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
        precision.unscale(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | None:
        """Apply and clear the gradients. Return whether they were applied: an fp16 overflow skips the update.

        Gradients agree over the ranks before this, an overflow with them, so every rank decides alike.
        """
        applied = precision.step(optimizer, wait)
        optimizer.zero_grad(set_to_none=True)
        return applied

    def barrier(self) -> None:
        """One rank waits for nobody."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values

    def teardown(self) -> None:
        """Nothing to leave."""
