"""Data parallelism: gradients are averaged over the ranks by NCCL (GPUs) or gloo (CPUs) during the backward pass."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bert.observer import Observer
from bert.optim.arena import Arena, segments_of
from bert.optim.precision import Precision
from bert.parallel.base import NO_PLAN, ProcessGroupStrategy, StepPlan


class DdpStrategy(ProcessGroupStrategy):
    """One process per device. Segments of gradients (bert.optim.arena) are averaged as soon as they are complete.

    Every rank reduces the same segments in the same order, whatever its batch: a few layers each, or `bucket_mib` MiB.
    """

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Give all ranks the weights of the first one.

        `observer.mark("gradients_ready")` tells when the gradients of the last segment are complete.
        """
        model = model.to(self.device)
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                dist.broadcast(value, 0)
        segments = segments_of(model, self.options.get("bucket_mib"))
        self._works: list[Any] = []

        def reduce(gradients: Tensor) -> None:
            if len(self._works) + 1 == len(segments):
                observer.mark("gradients_ready")
            by_nccl = self.device.type == "cuda"
            operation = dist.ReduceOp.AVG if by_nccl else dist.ReduceOp.SUM
            self._works.append(
                dist.all_reduce(gradients if by_nccl else gradients.div_(self.world_size), operation, async_op=True)
            )

        self.arena = Arena(model, segments, reduce)
        return model

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients of `loss`; after those of a step's last micro-step they are averages."""
        super().backward(loss, precision)
        for work in self._works:
            work.wait()
        self._works.clear()
