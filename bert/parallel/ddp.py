"""Data parallelism: gradients are averaged over the ranks by NCCL (GPUs) or gloo (CPUs) during the backward pass."""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from bert.model.heads import BertModel
from bert.observer import Observer
from bert.optim.arena import Arena, segments_of
from bert.optim.precision import Precision
from bert.parallel.base import NO_PLAN, ProcessGroupStrategy, StepPlan


class DdpStrategy(ProcessGroupStrategy):
    """One process per device. Segments of gradients (bert.optim.arena) are averaged as soon as they are complete.

    Every rank reduces the same segments in the same order, whatever its batch: a few layers each, or `bucket_mib` MiB.
    Another's model has PyTorch's DistributedDataParallel, as its users have.
    """

    _foreign: DistributedDataParallel | None = None

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Give all ranks the weights of the first one.

        `observer.mark("gradients_ready")` tells when the gradients of the last segment are complete.
        """
        model = model.to(self.device)
        self._works: list[Any] = []
        if not isinstance(model, BertModel):
            self._foreign = self._wrap_foreign(model, observer)
            return self._foreign
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                dist.broadcast(value, 0)
        segments = segments_of(model, self.options.get("bucket_mib"))

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

    def _wrap_foreign(self, model: torch.nn.Module, observer: Observer) -> DistributedDataParallel:
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self.options.get("bucket_mib"),  # None: PyTorch's 25 MiB after a small first bucket
        )

        def average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
            if bucket.is_last():
                observer.mark("gradients_ready")
            return allreduce_hook(state, bucket)

        wrapped.register_comm_hook(None, average)
        return wrapped

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Before the last micro-step gradients stay local: one all-reduce per optimizer step, not per micro-step."""
        if self._foreign is not None and not last:
            return self._foreign.no_sync()
        return super().accumulate(last)

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients of `loss`; after those of a step's last micro-step they are averages."""
        super().backward(loss, precision)
        for work in self._works:
            work.wait()
        self._works.clear()
