"""The step that is broken down, and one part of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert.data.batch import Batch
from bert.model.packing import Unpadded
from bert.model.step import Extent, Gemm, Step
from bert.speed.copies import copy_of
from bert.speed.fp8 import Fp8Copy
from bert.speed.kernels import usable
from bert.tasks.base import Task
from bert.train.loop import Training
from records.components import Component


class Part(NamedTuple):
    """One part of a step."""

    component: Component
    run: Callable[[], object]


def make_part(run: Callable[[], object], name: str, group: str, shape: str, calls: int, **numbers: float) -> Part:
    """Return a part; `numbers` are FLOPs and bytes of a call, as Component names them."""
    return Part(Component(name=name, group=group, shape=shape, calls_per_step=calls, **numbers), run)


class Subject:
    """The step of this suite's BERT, and how its layers compute it."""

    def __init__(self, task: Task, step: Step, model: Any, training: Training, batch: Batch) -> None:
        """Take the description of a step, its model, not wrapped by a strategy, and a typical batch, on the device."""
        self.task, self.step, self.model, self.training, self.batch = task, step, model, training, batch
        self.device, self.dtype = training.strategy.device, training.precision.matmul_dtype
        # Positions of the tokens that the layers compute; None if they compute the padded batch.
        self.placed: Unpadded | None = model.encoder.placed(batch.mask, batch.layout)
        self.padded = Extent.padded(batch.counts)
        self.extent = self.padded if self.placed is None else Extent.unpadded(batch.counts)
        # Whether the layers also return hidden states in the type of the GEMMs (bert.speed.elementwise).
        self.fused = bool(model.encoder.layers[0].fused)
        # Whether GPU kernels compute the elementwise parts: they add biases and return no float32 hidden states.
        self.by_kernels = self.fused and usable(self.tensor(1))
        # Whether these write inputs and gradients of the linear layers in FP8.
        self.kernels_write_fp8 = self.by_kernels and all(map(self.in_fp8, step.layers))

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        """Return normally distributed numbers, by default in the type of a GEMM."""
        values = torch.randn(shape, device=self.device).to(dtype or self.dtype)
        return values.requires_grad_(grad)

    def in_fp8(self, gemm: Gemm) -> bool:
        """Whether the layers multiply this matrix in FP8."""
        weights = self.model.encoder.layers[0].parameters()
        return any(isinstance(copy_of(p), Fp8Copy) and p.shape == (gemm.columns, gemm.inner) for p in weights)
