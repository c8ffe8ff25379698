"""Split of the QKV projection's output. The backward pass writes the three gradients into one tensor and computes the
gradient of the projection's bias in the same pass; PyTorch stacks them and then reads the result again.

Shapes: T tokens, N heads, D width of a head, H = N x D, P programs per block of columns.
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
def copy_part(source, result, sums, of, rows, column, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr):
    """Copy every P-th tile of rows of a gradient into the result, at position 0, 1 or 2; write its partial sum."""
    program, count = tl.program_id(0), tl.num_programs(0)
    inside = column < width
    total = tl.zeros((tile, columns), tl.float32)
    for first in tl.range(program * tile, rows, count * tile):
        row = (first + tl.arange(0, tile)).to(tl.int64)
        here = (row < rows)[:, None] & inside[None, :]
        value = tl.load(source + row[:, None] * width + column[None, :], mask=here, other=0.0)
        tl.store(result + row[:, None] * (3 * width) + of * width + column[None, :], value, mask=here)
        total += value.to(tl.float32)
    tl.store(sums + program * (3 * width) + of * width + column, tl.sum(total, 0), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def copy_qkv_gradients(
    query, key, value, result, sums, rows, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr
):
    """Write three gradients [T, H] into one [T, 3, H], and partial sums [P, 3, H]."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    copy_part(query, result, sums, 0, rows, column, width, columns, tile)
    copy_part(key, result, sums, 1, rows, column, width, columns, tile)
    copy_part(value, result, sums, 2, rows, column, width, columns, tile)


def unbind(qkv: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [T, N, D] of [T, 3, N, D].

    `bias` [3 H] was added to `qkv` without tracking its gradient, which is computed here; None for no such bias.
    """
    result: tuple[Tensor, Tensor, Tensor] = _Unbind.apply(qkv, bias)
    return result


class _Unbind(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        ctx.bias_dtype = None if bias is None else bias.dtype
        return qkv.unbind(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        rows, heads, depth = grads[0].shape
        width = heads * depth
        result = grads[0].new_empty(rows, 3, heads, depth)
        count = programs(result, -(-rows // _ROWS))
        sums = torch.empty(count, 3 * width, device=result.device)
        launch(
            copy_qkv_gradients, (count, -(-width // _COLUMNS)), *(grad.contiguous() for grad in grads), result, sums,
            rows, width=width, columns=_COLUMNS, tile=_ROWS, warps=_WARPS,
        )  # fmt: skip
        return result, None if ctx.bias_dtype is None else sums.sum(0).to(ctx.bias_dtype)
