"""Fully sharded data parallelism: PyTorch's FSDP2 (fully_shard) over NCCL (GPUs) or gloo (CPUs).

Each rank holds one part of every parameter, of its gradient and of the optimizer's state; a layer's parameters are put
together before it is computed and released after it (Rajbhandari et al. 2020, ZeRO stage 3; Zhao et al. 2023).
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from bert.observer import Observer
from bert.optim.precision import AUTOCAST_DTYPE
from bert.parallel.base import NO_PLAN, ProcessGroupStrategy, StepPlan, WholeModel


class FsdpStrategy(ProcessGroupStrategy):
    """One process per device; each transformer layer is one unit, what is around the layers another.

    Under bf16 and fp16 parameters travel and are multiplied in that type; gradients are added up, kept and applied in
    float32, to parameters in float32. Only tensors are cast: activations are what autocast makes of them.
    """

    _sharded: FSDPModule
    _whole: WholeModel

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Give this rank its part of the model, which is changed in place."""
        self._whole = WholeModel(model, observer)
        model.to(self.device)
        kind = AUTOCAST_DTYPE.get(plan.train.precision)
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for layer in layers(model):
            fully_shard(layer, mp_policy=policy)
        self._sharded = fully_shard(model, mp_policy=policy)
        return model

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Before the last micro-step gradients stay whole and local: one reduce-scatter per optimizer step."""
        self._sharded.set_requires_gradient_sync(last)
        return nullcontext()

    def full(self, value: torch.Tensor) -> torch.Tensor:
        """The whole tensor."""
        return value.full_tensor() if isinstance(value, DTensor) else value

    def placed(self, whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole tensor, cut as the parameter is."""
        if whole.ndim == 0 or not isinstance(parameter, DTensor):
            return super().placed(whole, parameter)
        part = distribute_tensor(whole.to(self.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
        return part.clone()

    def whole(self, model: torch.nn.Module) -> torch.nn.Module:
        """A plain copy of the model, put together from the parts of all ranks."""
        return self._whole.filled(self.weights(model), self.device)


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the transformer layers: the members of the model's lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return [layer for each in lists for layer in each]
