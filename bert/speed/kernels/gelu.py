"""Bias and exact GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415) in one pass.

The backward pass also computes the gradient of the bias, which would otherwise read the gradient of the input again.

Shapes: T rows, F features, P programs per block of features.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.kernels import launch, programs

_COLUMNS, _ROWS, _WARPS = 256, 8, 4


@triton.jit
def probability_below(x):
    """Return the cumulative normal distribution: 0.5 (1 + erf(x / sqrt(2)))."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit(do_not_specialize=["rows"])
def bias_gelu_forward(x, bias, result, rows, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr):
    """Compute one tile of GELU(x + bias)."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    here = (row < rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(result + at, value * probability_below(value), mask=here)


@triton.jit(do_not_specialize=["rows"])
def bias_gelu_backward(
    x, bias, grad, grad_x, sums, rows, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    """Compute the gradients of every P-th tile of rows; sums [P, F]: partial gradients of the bias."""
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    total = tl.zeros((tile, columns), tl.float32)
    if bias is not None:
        offset = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for first in tl.range(program * tile, rows, count * tile):
        row = first + tl.arange(0, tile)
        here = (row < rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if bias is not None:
            value += offset[None, :]
        density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
        given = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        given *= probability_below(value) + value * density
        tl.store(grad_x + at, given, mask=here)
        if bias is not None:
            total += given
    if bias is not None:
        tl.store(sums + program * width + column, tl.sum(total, 0), mask=inside)


def gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return GELU(x + bias) [..., F] of x [..., F] and bias [F] or None, in the type of x."""
    result: Tensor = _Gelu.apply(x, bias)
    return result


class _Gelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, bias)
        width, result = x.shape[-1], torch.empty_like(x)
        rows = x.numel() // width
        ctx.how = {"width": width, "columns": _COLUMNS, "tile": _ROWS, "warps": _WARPS}
        launch(bias_gelu_forward, (-(-rows // _ROWS), -(-width // _COLUMNS)), x, bias, result, rows, **ctx.how)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, bias = ctx.saved_tensors
        grad, grad_x, width = grad.contiguous(), torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        count = programs(x, -(-rows // _ROWS))
        sums = None if bias is None else torch.empty(count, width, device=x.device)
        blocks = -(-width // _COLUMNS)
        launch(bias_gelu_backward, (count, blocks), x, bias, grad, grad_x, sums, rows, **ctx.how)
        return grad_x, None if sums is None else sums.sum(0).to(bias.dtype)
