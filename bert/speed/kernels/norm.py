"""Bias, dropout, residual connection and LayerNorm in one pass (Ba et al. 2016, arXiv 1607.06450).

The backward pass recomputes the sum from its inputs. It also adds the two gradients of the result, one from the next
linear layer and one from the next residual connection.

Kernels of FP8 also write the result as the next linear layer's GEMMs read it, and the gradient of x as those of the
preceding one: in FP8 and transposed. They too work on whole rows, and transpose a group of rows once it is stored.

Shapes: T rows, H hidden width, P programs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.fp8 import Cast, OutputGradient, Quantized
from bert.speed.kernels import columns_of, dropout_constants, launch, programs, random_key, warps_of
from bert.speed.kernels.quantize import Target, checked, magnitude, narrowed, record_largest, target, transpose_group

_ROWS = 2  # per tile, of more than one row, in the backward pass and in FP8
IN_THREAD = tl.constexpr(8)
# In the backward pass: tiles in memory at once, one is computed, the next is loaded; and programs per multiprocessor,
# for which registers are limited. Not measured on a GPU.
_STAGES, _PROGRAMS, _REGISTERS = 2, 3, 80
_WIDEST = 1024  # columns up to which they suffice
_BLOCK = 512  # columns that are transposed at once in FP8


@triton.jit
def kept(key, row, width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr):
    """Return bool [rows, columns] for the given rows [rows], True where an element is kept."""
    groups: tl.constexpr = (width + 7) // 8
    counter = (row[:, None] * groups + tl.arange(0, columns // 8)[None, :]).to(tl.uint32)
    zero = counter * 0
    a, b, c, d = tl.philox(tl.load(key), counter, zero, zero, zero)
    words = tl.join(tl.join(a, c), tl.join(b, d))
    levels = tl.reshape(tl.join(words & 0xFFFF, words >> 16), (row.shape[0], columns))
    return levels >= dropped


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


@triton.jit
def normalized(total, weight, shift, here, column, eps, width: tl.constexpr):
    """Return the norm of a tile [rows, columns], and the mean and the inverse of the standard deviation of its rows."""
    center = tl.sum(total, 1) / width
    total = tl.where(here, total - center[:, None], 0.0)
    sharpness = tl.rsqrt(tl.sum(total * total, 1) / width + eps)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    offset = tl.load(shift + column, mask=column < width, other=0.0).to(tl.float32)
    return total * sharpness[:, None] * factor[None, :] + offset[None, :], center, sharpness


@triton.jit
def largest_in_threads(value):
    """Return the largest magnitude of each 8 columns, which one thread has: one register instead of 8."""
    return tl.max(tl.reshape(magnitude(value), (value.shape[0], value.shape[1] // IN_THREAD, IN_THREAD)), 2)


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["fp8_scale", "recorded"])
def dropout_layer_norm_forward(
    x, residual, bias, weight, shift, key, result, mean, inverse, fp8_scale, recorded, low, transposed, rows, groups,
    eps, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr, block: tl.constexpr,
    limit: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Normalize `multiple` rows; with `low` write result / scale in FP8 and its transpose too, with zeros after the
    last row.

    The number of rows in FP8 is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    start = tl.program_id(0) * multiple
    column = tl.arange(0, columns)
    inside = column < width
    if low is not None:
        reciprocal = 1.0 / tl.load(fp8_scale)
        largest = tl.zeros((tile, columns // IN_THREAD), tl.int32)
    for first in tl.range(start, start + multiple, tile):
        row = first + tl.arange(0, tile)
        here = inside[None, :]
        if low is not None:
            here &= (row < rows)[:, None]
        total, _ = summed(x, residual, bias, key, row, here, column, width, columns, dropped, scale)
        value, center, sharpness = normalized(total, weight, shift, here, column, eps, width)
        stored = tl.where(here, value, 0.0).to(result.dtype.element_ty)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(result + at, stored, mask=here)
        tl.store(mean + row, center, mask=row < rows)
        tl.store(inverse + row, sharpness, mask=row < rows)
        if low is not None:
            rounded = stored.to(tl.float32)
            largest = tl.maximum(largest, largest_in_threads(rounded))
            tl.store(low + at, narrowed(rounded, reciprocal, limit).to(low.dtype.element_ty), mask=inside[None, :])
    if low is not None:
        if recorded is not None:
            record_largest(recorded, largest)
        transpose_group(low, transposed, tl.program_id(0), groups, width, block, multiple)


@triton.jit
def backward_tile(
    first, of_weight, of_shift, of_bias, largest, x, residual, bias, factor, key, mean, inverse, grad, other_grad,
    reciprocal, low, grad_x, grad_residual, rows, column, width: tl.constexpr, columns: tl.constexpr,
    tile: tl.constexpr, limit: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a tile of rows, and return the sums with what it adds to them."""
    row, inside = first + tl.arange(0, tile), column < width
    here = (row < rows)[:, None] & inside[None, :]
    total, keep = summed(x, residual, bias, key, row, here, column, width, columns, dropped, scale)
    center = tl.load(mean + row, mask=row < rows, other=0.0)
    sharpness = tl.load(inverse + row, mask=row < rows, other=0.0)
    normed = (total - center[:, None]) * sharpness[:, None]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    given = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
    if other_grad is not None:
        given += tl.load(other_grad + at, mask=here, other=0.0).to(tl.float32)
    weighted = given * factor[None, :]
    even = tl.sum(weighted, 1) / width
    along = tl.sum(weighted * normed, 1) / width
    of_sum = (weighted - even[:, None] - normed * along[:, None]) * sharpness[:, None]
    of_x = tl.where(here, of_sum, 0.0)
    if dropped > 0:
        of_x = tl.where(keep, of_sum * scale, 0.0)
    of_weight += given * normed
    of_shift += given
    if bias is not None:
        of_bias += of_x
    tl.store(grad_residual + at, of_sum, mask=here)
    if low is None:
        tl.store(grad_x + at, of_x, mask=here)
    else:
        rounded = of_x.to(x.dtype.element_ty).to(tl.float32)
        largest = tl.maximum(largest, largest_in_threads(rounded))
        tl.store(low + at, narrowed(rounded, reciprocal, limit).to(low.dtype.element_ty), mask=inside[None, :])
    return of_weight, of_shift, of_bias, largest


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["fp8_scale", "recorded"])
def dropout_layer_norm_backward(
    x, residual, bias, weight, key, mean, inverse, grad, other_grad, fp8_scale, recorded, low, transposed, grad_x,
    grad_residual, sums, rows, groups, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr,
    multiple: tl.constexpr, block: tl.constexpr, stages: tl.constexpr, limit: tl.constexpr, dropped: tl.constexpr,
    scale: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every P-th group of `multiple` rows, with `low` that of x in FP8 as the forward kernel
    does; sums [P, 3, H]: partial gradients of weight, shift and bias.
    """
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, columns)
    inside = column < width
    of_weight = tl.zeros((tile, columns), tl.float32)
    of_shift = tl.zeros((tile, columns), tl.float32)
    of_bias = tl.zeros((tile, columns), tl.float32)
    largest = tl.zeros((tile, columns // IN_THREAD), tl.int32)
    reciprocal = None
    if low is not None:
        reciprocal = 1.0 / tl.load(fp8_scale)
        factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for group in tl.range(program, groups, count, num_stages=stages):
        if low is None:  # one tile, and no loop in this one: the next tile can be loaded ahead
            factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)  # again: registers are scarce
            of_weight, of_shift, of_bias, largest = backward_tile(
                group * multiple, of_weight, of_shift, of_bias, largest, x, residual, bias, factor, key, mean, inverse,
                grad, other_grad, reciprocal, low, grad_x, grad_residual, rows, column, width, columns, tile, limit,
                dropped, scale,
            )  # fmt: skip
        else:
            for first in tl.range(group * multiple, group * multiple + multiple, tile):
                of_weight, of_shift, of_bias, largest = backward_tile(
                    first, of_weight, of_shift, of_bias, largest, x, residual, bias, factor, key, mean, inverse, grad,
                    other_grad, reciprocal, low, grad_x, grad_residual, rows, column, width, columns, tile, limit,
                    dropped, scale,
                )  # fmt: skip
            transpose_group(low, transposed, group, groups, width, block, multiple)
    if low is not None:
        record_largest(recorded, largest)
    to = sums + program * 3 * width + column
    tl.store(to, tl.sum(of_weight, 0), mask=inside)
    tl.store(to + width, tl.sum(of_shift, 0), mask=inside)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), mask=inside)


def residual_norm(
    x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, eps: float, probability: float, bias: Tensor | None,
    into: Cast | None = None, output: OutputGradient | None = None, key: Tensor | None = None,
) -> tuple[Tensor, Tensor, Quantized | None]:  # fmt: skip
    """Return LayerNorm(dropout(x + bias) + residual) [..., H] as two tensors that share their memory, in the type of x,
    and with `into` in FP8.

    Args:
        x: output of a linear layer [..., H], without its bias if `bias` is given.
        residual: [..., H].
        weight: weight of the norm [H].
        shift: bias of the norm [H].
        eps: added to the variance.
        probability: dropout probability; 0 in evaluation.
        bias: bias of the linear layer [H], or None.
        into: cast of the result, as the input of the next linear layer; None for none.
        output: where the gradient of x is left in FP8, if its scale is known then; None for never.
        key: of dropout, int64 [1]; None draws one.
    """
    result: tuple[Tensor, Tensor, Quantized | None] = _ResidualNorm.apply(
        x, residual, weight, shift, bias, eps, probability, into, output, key
    )
    return result


class _ResidualNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, bias: Tensor | None, eps: float,
        probability: float, into: Cast | None, output: OutputGradient | None, key: Tensor | None,
    ) -> tuple[Tensor, Tensor, Quantized | None]:  # fmt: skip
        x, residual = x.contiguous(), residual.contiguous()
        width = x.shape[-1]
        rows, columns = x.numel() // width, columns_of(width)
        ctx.how = {"width": width, "columns": columns, **dropout_constants(probability)}
        key = random_key(x, key) if ctx.how["dropped"] else None
        result = torch.empty_like(x)
        mean, inverse = (torch.empty(rows, device=x.device) for _ in range(2))
        ctx.save_for_backward(x, residual, bias, weight, key, mean, inverse)
        ctx.output = output
        ctx.set_materialize_grads(False)
        made = None if into is None else target(rows, width, into)
        arguments, tile, groups, how = _written(made, 1, rows, columns)
        launch(
            dropout_layer_norm_forward, (groups,), x, residual, bias, weight, shift, key, result, mean, inverse,
            *arguments, rows, groups, eps, tile=tile, warps=warps_of(tile * columns), **how, **ctx.how,
        )  # fmt: skip
        low = None if made is None else checked(dropout_layer_norm_forward, made.low)
        return result, result.view_as(result), low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, bias, weight, key, mean, inverse = ctx.saved_tensors
        grad, other = (*(grad.contiguous() for grad in grads[:2] if grad is not None), None, None)[:2]
        if grad is None:
            return (None,) * 10
        into = ctx.output.cast() if ctx.output is not None and ctx.needs_input_grad[0] else None
        rows, (columns, width) = len(mean), (ctx.how["columns"], ctx.how["width"])
        made = None if into is None else target(rows, width, into)
        arguments, tile, groups, how = _written(made, _ROWS, rows, columns)
        grad_x, grad_residual = torch.empty_like(x) if made is None else None, torch.empty_like(residual)
        count = programs(x, groups, _PROGRAMS)
        sums = torch.empty(count, 3, width, device=x.device)
        launch(
            dropout_layer_norm_backward, (count,), x, residual, bias, weight, key, mean, inverse, grad, other,
            *arguments, grad_x, grad_residual, sums, rows, groups, tile=tile, stages=_STAGES if made is None else 1,
            warps=warps_of(tile * columns), maxnreg=_REGISTERS if columns <= _WIDEST else None, **how, **ctx.how,
        )  # fmt: skip
        if made is not None:
            grad_x = ctx.output.leave(checked(dropout_layer_norm_backward, made.low), x)
        of_weight, of_shift, of_bias = sums.sum(0)
        grad_bias = None if bias is None else of_bias.to(bias.dtype)
        return grad_x, grad_residual, of_weight.to(weight.dtype), of_shift.to(weight.dtype), grad_bias, *(None,) * 5


def _written(
    made: Target | None, tile: int, rows: int, columns: int
) -> tuple[tuple[Tensor | None, ...], int, int, dict[str, int | float]]:
    """Return arguments of FP8, rows of a tile, groups and constants of a kernel; `tile` without FP8 is a group too."""
    if made is None:
        return (None,) * 4, tile, -(-rows // tile), {"multiple": tile, "block": 0, "limit": 0.0}
    return made.arguments, _ROWS, made.groups, {**made.constants, "block": min(_BLOCK, columns)}
