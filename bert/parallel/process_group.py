"""Common parts of strategies with one process per device: the process group, and a whole copy of a sharded model."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bert.observer import Observer
from bert.parallel import JOIN_TIMEOUT_VARIABLE
from bert.parallel.base import NO_OPTIONS, Options, Strategy, T
from bert.private import process_groups

DEFAULT_JOIN_TIMEOUT_SECONDS = 300

# Process groups that this process has left, kept until it ends. The last one to drop a group, such as the reducer of a
# model, waits for gloo's threads while it holds the interpreter's lock, and a thread that still has to free a tensor
# waits for the lock: about one run of two ranks in twenty never ended.
_LEFT: list[Any] = []


class ProcessGroupStrategy(Strategy):
    """One process per device, in a group over NCCL (GPUs) or gloo (CPUs); the base of those that use it."""

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        super().__init__(options)
        self._cpu_group: Any = None

    def setup(self, device_type: str) -> None:
        """Join the process group that torchrun's environment describes."""
        super().setup(device_type)
        timeout = timedelta(seconds=join_timeout())
        if device_type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=self.device)
            # Small host-side values (step times) travel over gloo, so that agreeing on them never touches the GPU.
            self._cpu_group = dist.new_group(backend="gloo", timeout=timeout)
        else:
            dist.init_process_group("gloo", timeout=timeout)

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.device.type == "cuda":
            dist.barrier(device_ids=[self.local_rank])
        else:
            dist.barrier()

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector."""
        result = values.clone()
        dist.all_reduce(result, op=dist.ReduceOp.MAX, group=self._cpu_group)
        return result

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector."""
        result = values.clone()
        dist.all_reduce(result, op=dist.ReduceOp.SUM, group=self._cpu_group)
        return result

    def gathered(self, value: T) -> list[T]:
        """What every rank gives, by rank."""
        result: list[Any] = [None] * self.world_size
        dist.all_gather_object(result, value, group=self._cpu_group)
        return result

    def teardown(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            _LEFT.extend(process_groups())
            dist.destroy_process_group()


def join_timeout() -> int:
    """Seconds after which a rank gives up waiting for the others."""
    return int(os.environ.get(JOIN_TIMEOUT_VARIABLE, DEFAULT_JOIN_TIMEOUT_SECONDS))


class WholeModel:
    """A copy of a model that takes no memory until it is filled with weights; nothing observes it."""

    def __init__(self, model: torch.nn.Module, observer: Observer) -> None:
        """Copy `model`, which is whole still; `observer` is the one it was built with."""
        # Observers hold open files: they are not copied with the model.
        shared = {id(observer): Observer(), **{id(p): _on_no_device(p) for p in model.parameters()}}
        self._blank = copy.deepcopy(model, shared)

    @contextmanager
    def filled(self, weights: Iterator[tuple[str, torch.Tensor]], device: torch.device) -> Iterator[torch.nn.Module]:
        """Yield the model with these weights (a whole state dict) on `device`; they are let go of afterwards."""
        self._blank.load_state_dict({name: value.detach().to(device) for name, value in weights}, assign=True)
        try:
            yield self._blank.to(device)
        finally:
            for module in self._blank.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    setattr(module, name, _on_no_device(parameter))


def _on_no_device(parameter: torch.Tensor) -> torch.nn.Parameter:
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    return torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
