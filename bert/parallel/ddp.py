"""Data parallelism: PyTorch's DistributedDataParallel over NCCL (GPUs) or gloo (CPUs)."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from bert.observer import Observer
from bert.parallel.base import NO_PLAN, ProcessGroupStrategy, StepPlan


class DdpStrategy(ProcessGroupStrategy):
    """One process per device; gradients are averaged in buckets during the backward pass."""

    _wrapped: DistributedDataParallel

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Wrap the model; `observer.mark("gradients_ready")` tells when the last bucket's gradients are complete.

        Gradients are in the same buckets in every step, the first one of this process included.
        """
        device_ids = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model.to(self.device),
            device_ids=device_ids,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self.options.get("bucket_mib"),  # None: PyTorch's 25 MiB after a small first bucket
        )
        _assign_buckets(wrapped)

        def average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
            if bucket.is_last():
                observer.mark("gradients_ready")
            return allreduce_hook(state, bucket)

        wrapped.register_comm_hook(None, average)
        self._wrapped = wrapped
        return wrapped

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Before the last micro-step gradients stay local: one all-reduce per optimizer step, not per micro-step."""
        return nullcontext() if last else self._wrapped.no_sync()


def _assign_buckets(wrapped: DistributedDataParallel) -> None:
    """Have the buckets assigned that DistributedDataParallel would otherwise assign after its first backward pass.

    In that pass it uses others. With more than two ranks the place of a gradient in its bucket decides in which order
    the ranks' values are added up: the first step after a resume would differ in the last bits from the step of the
    run that was not interrupted.
    """
    sums = (parameter.sum().float() for parameter in wrapped.module.parameters() if parameter.requires_grad)
    # Every parameter gets a gradient, the last registered one first, without data or random numbers.
    wrapped.module.forward = lambda: functools.reduce(torch.add, sums)
    wrapped().backward()
    del wrapped.module.forward
    wrapped.zero_grad(set_to_none=True)
