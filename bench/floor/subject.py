"""The step that is broken down, and one part of it."""

from collections.abc import Callable
from dataclasses import dataclass
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
from records.kinds import Component


class Part(NamedTuple):
    """One part of a step."""

    component: Component
    run: Callable[[], object]


def make_part(run: Callable[[], object], name: str, group: str, shape: str, calls: int, **numbers: float) -> Part:
    """Return a part; `numbers` are FLOPs and bytes of a call, as Component names them."""
    return Part(Component(name=name, group=group, shape=shape, calls_per_step=calls, **numbers), run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The step of this suite's BERT."""

    task: Task
    step: Step
    """Description of its computation."""
    model: Any
    """The model, on its device, not wrapped by a strategy."""
    training: Training
    batch: Batch
    """A typical batch, on the device."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.training.strategy.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the operands of a GEMM."""
        return self.training.precision.matmul_dtype

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        """Return normally distributed numbers, by default in the type of a GEMM."""
        values = torch.randn(shape, device=self.device).to(dtype or self.dtype)
        return values.requires_grad_(grad)

    @property
    def extent(self) -> Extent:
        """The part of the batch that the layers compute."""
        counts = self.batch.counts
        return Extent.padded(counts) if self.placed is None else Extent.unpadded(counts)

    @property
    def placed(self) -> Unpadded | None:
        """Positions of the tokens that the layers compute; None if they compute the padded batch."""
        placed: Unpadded | None = self.model.encoder.placed(self.batch.mask, self.batch.layout)
        return placed

    @property
    def fused(self) -> bool:
        """Whether the layers also return hidden states in the type of the GEMMs (bert.speed.elementwise)."""
        return bool(self.model.encoder.layers[0].fused)

    @property
    def by_kernels(self) -> bool:
        """Whether GPU kernels compute the elementwise parts: they add biases and return no float32 hidden states."""
        return self.fused and usable(self.tensor(1))

    @property
    def bias_gradients(self) -> tuple[Gemm, ...]:
        """GEMMs whose bias gradient is a separate sum; fused kernels compute the other bias gradients."""
        if not self.by_kernels:
            return self.step.layers
        return self.step.layers[: 0 if self.placed is not None and self.dtype.itemsize == 2 else 1]

    def in_fp8(self, gemm: Gemm) -> bool:
        """Whether the layers multiply this matrix in FP8."""
        weights = self.model.encoder.layers[0].parameters()
        return any(isinstance(copy_of(p), Fp8Copy) and p.shape == (gemm.columns, gemm.inner) for p in weights)

    @property
    def kernels_write_fp8(self) -> bool:
        """Whether the kernels of GELU and the norms write inputs and gradients of the linear layers in FP8."""
        return self.by_kernels and all(map(self.in_fp8, self.step.layers))
