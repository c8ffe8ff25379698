"""What strategies with one process per device have in common: the process group, and small values that travel in it."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bert.parallel import JOIN_TIMEOUT_VARIABLE
from bert.parallel.base import NO_OPTIONS, Options
from bert.parallel.single import SingleStrategy

DEFAULT_JOIN_TIMEOUT_SECONDS = 300

# Process groups that this process has left, kept until it ends. The last one to drop a group, such as the reducer of a
# model, waits for gloo's threads while it holds the interpreter's lock, and a thread that still has to free a tensor
# waits for the lock: about one run of two ranks in twenty never ended.
_LEFT: list[Any] = []


class ProcessGroupStrategy(SingleStrategy):
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

    def teardown(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            _LEFT.extend(dist.distributed_c10d._world.pg_map)
            dist.destroy_process_group()


def join_timeout() -> int:
    """Seconds after which a rank gives up waiting for the others."""
    return int(os.environ.get(JOIN_TIMEOUT_VARIABLE, DEFAULT_JOIN_TIMEOUT_SECONDS))
