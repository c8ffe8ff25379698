"""Dropout, from 16 random bits per element on a CPU.

PyTorch's CPU dropout draws one Bernoulli number after another, which in a small model takes more time than the
GEMMs. Everywhere else PyTorch's own kernels run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.native import loops

# A dropout probability is rounded to a multiple of 1 / _LEVELS, which moves it by at most 2^-17.
_LEVELS = 1 << 16


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of `x` with `probability` and scale the others by 1 / (1 - probability); any shape."""
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu":
        result: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
        return result
    return F.dropout(x, probability)


def dropout_add(x: Tensor, residual: Tensor, probability: float, training: bool) -> Tensor:
    """Return dropout(x) + residual; `x` and `residual` have one shape, the result has their promoted type."""
    if training and probability > 0.0 and x.device.type == "cpu":
        result: Tensor = _DropoutAdd.apply(x, residual, probability)  # type: ignore[no-untyped-call]
        return result
    return dropout(x, probability, training) + residual


def random_levels(like: Tensor, by_loop: bool = False) -> Tensor:
    """Draw int16 numbers, uniform over all 2^16 values, in the shape of `like`.

    They come from PyTorch's CPU generator, one number after another. A loop takes one number from it as the key of
    Philox4x32-10 (Salmon et al. 2011), which all threads compute at once (bert.speed.native).
    """
    count, library = like.numel(), loops() if by_loop else None
    if library is not None:
        levels = torch.empty(like.shape, dtype=torch.int16)
        key = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) & (2**64 - 1)
        library.random_levels(count, torch.get_num_threads(), key, levels.data_ptr())
        return levels
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # four numbers in each word
    return words.view(torch.int16)[:count].view(like.shape)


def threshold(probability: float) -> int:
    """Levels below this are dropped."""
    return round(probability * _LEVELS) - _LEVELS // 2


def keep_scale(probability: float) -> float:
    """One over the probability with which an element is really kept."""
    return _LEVELS / (_LEVELS - round(probability * _LEVELS))


def keep_mask(levels: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """Return 1 where an element is kept and 0 if it is dropped, as `dtype`."""
    # Comparing straight into the floating type is several times as fast as multiplying by a bool tensor.
    return torch.ge(levels, threshold(probability), out=torch.empty(levels.shape, dtype=dtype))


class _Dropout(Function):
    """Dropout that keeps 16 random bits per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        levels = random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability = probability
        return keep_mask(levels, probability, x.dtype).mul_(x).mul_(keep_scale(probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (levels,) = ctx.saved_tensors
        return keep_mask(levels, ctx.probability, grad.dtype).mul_(grad).mul_(keep_scale(ctx.probability)), None


class _DropoutAdd(Function):
    """Dropout and the residual connection in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, probability: float) -> Tensor:
        levels = random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability = probability
        ctx.dtype = x.dtype
        return torch.addcmul(residual, x, keep_mask(levels, probability, x.dtype), value=keep_scale(probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (levels,) = ctx.saved_tensors
        grad_x = keep_mask(levels, ctx.probability, grad.dtype).mul_(grad).mul_(keep_scale(ctx.probability))
        return grad_x.to(ctx.dtype), grad, None
