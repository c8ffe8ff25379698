"""Bias, dropout, residual connection and LayerNorm in one pass (Ba et al. 2016, arXiv 1607.06450).

The backward pass recomputes the sum from its inputs. It also adds the two gradients of the result, one from the next
linear layer and one from the next residual connection.

Shapes: T rows, H hidden width, P programs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.kernels import columns_of, launch, programs, random_key, warps_of
from bert.speed.kernels.random import LEVELS, dropped_levels, kept

_ROWS = 2  # per tile in the backward pass


@triton.jit
def summed(
    x, residual, bias, key, row, here, column, width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr,
    scale: tl.constexpr,
):  # fmt: skip
    """Return dropout(x + bias) + residual [rows, columns] in float32, and the mask of kept elements."""
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    total = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    keep = here
    if dropped > 0:
        keep = kept(key, row, width, columns, dropped) & here
        total = tl.where(keep, total * scale, 0.0)
    return total + tl.load(residual + at, mask=here, other=0.0).to(tl.float32), keep


@triton.jit(do_not_specialize=["rows"])
def dropout_layer_norm_forward(
    x, residual, bias, weight, shift, key, result, mean, inverse, rows, eps, width: tl.constexpr,
    columns: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Normalize one row."""
    row = tl.program_id(0) + tl.arange(0, 1)
    column = tl.arange(0, columns)
    here = (column < width)[None, :]
    total, _ = summed(x, residual, bias, key, row, here, column, width, columns, dropped, scale)
    center = tl.sum(total, 1) / width
    total = tl.where(here, total - center[:, None], 0.0)
    sharpness = tl.rsqrt(tl.sum(total * total, 1) / width + eps)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    offset = tl.load(shift + column, mask=column < width, other=0.0).to(tl.float32)
    value = total * sharpness[:, None] * factor[None, :] + offset[None, :]
    tl.store(result + row.to(tl.int64)[:, None] * width + column[None, :], value, mask=here)
    tl.store(mean + row, center)
    tl.store(inverse + row, sharpness)


@triton.jit(do_not_specialize=["rows"])
def dropout_layer_norm_backward(
    x, residual, bias, weight, key, mean, inverse, grad, other_grad, grad_x, grad_residual, sums, rows,
    width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every P-th tile of rows; sums [P, 3, H]: partial gradients of weight, shift and bias."""
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, columns)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((tile, columns), tl.float32)
    of_shift = tl.zeros((tile, columns), tl.float32)
    of_bias = tl.zeros((tile, columns), tl.float32)
    for first in tl.range(program * tile, rows, count * tile):
        row = first + tl.arange(0, tile)
        here = (row < rows)[:, None] & inside[None, :]
        total, keep = summed(x, residual, bias, key, row, here, column, width, columns, dropped, scale)
        center = tl.load(mean + row, mask=row < rows, other=0.0)
        sharpness = tl.load(inverse + row, mask=row < rows, other=0.0)
        normed = (total - center[:, None]) * sharpness[:, None]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        given = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        if other_grad is not None:
            given += tl.load(other_grad + at, mask=here, other=0.0).to(tl.float32)
        of_weight += given * normed
        of_shift += given
        given *= factor[None, :]
        even = tl.sum(given, 1) / width
        along = tl.sum(given * normed, 1) / width
        given = (given - even[:, None] - normed * along[:, None]) * sharpness[:, None]
        tl.store(grad_residual + at, given, mask=here)
        if dropped > 0:
            given = tl.where(keep, given * scale, 0.0)
        tl.store(grad_x + at, given, mask=here)
        if bias is not None:
            of_bias += tl.where(here, given, 0.0)
    to = sums + program * 3 * width + column
    tl.store(to, tl.sum(of_weight, 0), mask=inside)
    tl.store(to + width, tl.sum(of_shift, 0), mask=inside)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), mask=inside)


def residual_norm(
    x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, eps: float, probability: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(dropout(x + bias) + residual) [..., H] as two tensors that share their memory, in the type of x.

    Args:
        x: output of a linear layer [..., H], without its bias if `bias` is given.
        residual: [..., H].
        weight: weight of the norm [H].
        shift: bias of the norm [H].
        eps: added to the variance.
        probability: dropout probability; 0 in evaluation.
        bias: bias of the linear layer [H], or None.
    """
    result: tuple[Tensor, Tensor] = _ResidualNorm.apply(x, residual, weight, shift, bias, eps, probability)
    return result


class _ResidualNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, bias: Tensor | None, eps: float,
        probability: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, residual = x.contiguous(), residual.contiguous()
        width = x.shape[-1]
        rows, columns = x.numel() // width, columns_of(width)
        ctx.how = {"width": width, "columns": columns, **_dropout(probability)}
        key = random_key(x) if ctx.how["dropped"] else None
        result = torch.empty_like(x)
        mean, inverse = (torch.empty(rows, device=x.device) for _ in range(2))
        launch(
            dropout_layer_norm_forward, (rows,), x, residual, bias, weight, shift, key, result, mean, inverse, rows,
            eps, warps=warps_of(columns), **ctx.how,
        )  # fmt: skip
        ctx.save_for_backward(x, residual, bias, weight, key, mean, inverse)
        ctx.set_materialize_grads(False)
        return result, result.view_as(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, bias, weight, key, mean, inverse = ctx.saved_tensors
        grad, other = (*(grad.contiguous() for grad in grads if grad is not None), None, None)[:2]
        if grad is None:
            return (None,) * 7
        rows, width = len(mean), x.shape[-1]
        grad_x, grad_residual = torch.empty_like(x), torch.empty_like(residual)
        count = programs(x, -(-rows // _ROWS))
        sums = torch.empty(count, 3, width, device=x.device)
        launch(
            dropout_layer_norm_backward, (count,), x, residual, bias, weight, key, mean, inverse, grad, other, grad_x,
            grad_residual, sums, rows, tile=_ROWS, warps=warps_of(_ROWS * ctx.how["columns"]), **ctx.how,
        )  # fmt: skip
        of_weight, of_shift, of_bias = sums.sum(0)
        grad_bias = None if bias is None else of_bias.to(bias.dtype)
        return grad_x, grad_residual, of_weight.to(weight.dtype), of_shift.to(weight.dtype), grad_bias, None, None


def _dropout(probability: float) -> dict[str, int | float]:
    """Return the constants of dropout for a kernel."""
    dropped = dropped_levels(probability)
    return {"dropped": dropped, "scale": LEVELS / (LEVELS - dropped)}
