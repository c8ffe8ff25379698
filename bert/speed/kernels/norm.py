"""Bias, dropout, residual connection and LayerNorm in one pass (Ba et al. 2016, arXiv 1607.06450).

The backward pass recomputes the sum from its inputs. It also adds the two gradients of the result, one from the next
linear layer and one from the next residual connection.

Kernels of FP8 also write the result as the next linear layer's GEMMs read it, and the gradient of x as those of the
preceding one: in FP8 and transposed. They too work on whole rows, and transpose a group of rows once it is stored.

Shapes: T rows, H hidden width, P programs.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.kernels import columns_of, launch, programs, random_key, warps_of
from bert.speed.kernels.quantize import (
    bits,
    empty_both_ways,
    magnitude,
    narrowed,
    record_largest,
    transpose_group,
)
from bert.speed.kernels.random import dropout_constants, kept

if TYPE_CHECKING:
    from bert.speed.fp8 import OutputGradient
    from bert.speed.scales import Cast

_ROWS = 2  # per tile, of more than one row, in the backward pass and in FP8
IN_THREAD = tl.constexpr(8)
_STAGES = 2  # tiles in memory at once in the backward pass: one is computed, the next is loaded
_GROUP, _BLOCK = 16, 512  # rows and columns that are transposed at once in FP8


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
def gradients(
    x, residual, bias, factor, key, mean, inverse, grad, other_grad, rows, row, here, column, width: tl.constexpr,
    columns: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Return of a tile [rows, columns] the norm without weight and shift, and the gradients of result, sum and x."""
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
    return normed, given, of_sum, of_x


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
    value, center, sharpness = normalized(total, weight, shift, here, column, eps, width)
    tl.store(result + row.to(tl.int64)[:, None] * width + column[None, :], value, mask=here)
    tl.store(mean + row, center)
    tl.store(inverse + row, sharpness)


@triton.jit(do_not_specialize=["rows"])
def dropout_layer_norm_backward(
    x, residual, bias, weight, key, mean, inverse, grad, other_grad, grad_x, grad_residual, sums, rows,
    width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr, dropped: tl.constexpr,
    scale: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every P-th tile of rows; sums [P, 3, H]: partial gradients of weight, shift and bias."""
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, columns)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((tile, columns), tl.float32)
    of_shift = tl.zeros((tile, columns), tl.float32)
    of_bias = tl.zeros((tile, columns), tl.float32)
    for first in tl.range(program * tile, rows, count * tile, num_stages=stages):
        row = first + tl.arange(0, tile)
        here = (row < rows)[:, None] & inside[None, :]
        normed, given, of_sum, of_x = gradients(
            x, residual, bias, factor, key, mean, inverse, grad, other_grad, rows, row, here, column, width, columns,
            dropped, scale,
        )  # fmt: skip
        of_weight += given * normed
        of_shift += given
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(grad_residual + at, of_sum, mask=here)
        tl.store(grad_x + at, of_x, mask=here)
        if bias is not None:
            of_bias += of_x
    store_sums(sums, of_weight, of_shift, of_bias, column, width)


@triton.jit
def store_sums(sums, of_weight, of_shift, of_bias, column, width: tl.constexpr):
    """Store the sums over the rows of a program's tiles."""
    to, inside = sums + tl.program_id(0) * 3 * width + column, column < width
    tl.store(to, tl.sum(of_weight, 0), mask=inside)
    tl.store(to + width, tl.sum(of_shift, 0), mask=inside)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), mask=inside)


@triton.jit
def largest_in_threads(value):
    """Return the largest magnitude of each 8 columns, which one thread has: one register instead of 8."""
    return tl.max(tl.reshape(magnitude(value), (value.shape[0], value.shape[1] // IN_THREAD, IN_THREAD)), 2)


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["fp8_scale", "recorded"])
def dropout_layer_norm_fp8_forward(
    x, residual, bias, weight, shift, key, result, mean, inverse, fp8_scale, recorded, low, transposed, rows, groups,
    eps, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr, block: tl.constexpr,
    limit: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Normalize `multiple` rows, and write result / scale in FP8 and its transpose too, with zeros after the last row.

    The number of rows in FP8 is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    start = tl.program_id(0) * multiple
    column = tl.arange(0, columns)
    inside = column < width
    reciprocal = 1.0 / tl.load(fp8_scale)
    largest = tl.zeros((tile, columns // IN_THREAD), tl.int32)
    for first in tl.range(start, start + multiple, tile):
        row = first + tl.arange(0, tile)
        here = (row < rows)[:, None] & inside[None, :]
        total, _ = summed(x, residual, bias, key, row, here, column, width, columns, dropped, scale)
        value, center, sharpness = normalized(total, weight, shift, here, column, eps, width)
        stored = tl.where(here, value, 0.0).to(result.dtype.element_ty)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(result + at, stored, mask=here)
        tl.store(mean + row, center, mask=row < rows)
        tl.store(inverse + row, sharpness, mask=row < rows)
        rounded = stored.to(tl.float32)
        largest = tl.maximum(largest, largest_in_threads(rounded))
        tl.store(low + at, narrowed(rounded, reciprocal, limit).to(low.dtype.element_ty), mask=inside[None, :])
    if recorded is not None:
        record_largest(recorded, largest)
    transpose_group(low, transposed, tl.program_id(0), groups, width, block, multiple)


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["fp8_scale", "recorded"])
def dropout_layer_norm_fp8_backward(
    x, residual, bias, weight, key, mean, inverse, grad, other_grad, fp8_scale, recorded, low, transposed,
    grad_residual, sums, rows, groups, width: tl.constexpr, columns: tl.constexpr, tile: tl.constexpr,
    multiple: tl.constexpr, block: tl.constexpr, limit: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every P-th group of rows, that of x in FP8, as `dropout_layer_norm_fp8_forward`; sums
    as `dropout_layer_norm_backward`.
    """
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, columns)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    reciprocal = 1.0 / tl.load(fp8_scale)
    largest = tl.zeros((tile, columns // IN_THREAD), tl.int32)
    of_weight = tl.zeros((tile, columns), tl.float32)
    of_shift = tl.zeros((tile, columns), tl.float32)
    of_bias = tl.zeros((tile, columns), tl.float32)
    for group in tl.range(program, groups, count):
        for first in tl.range(group * multiple, group * multiple + multiple, tile):
            row = first + tl.arange(0, tile)
            here = (row < rows)[:, None] & inside[None, :]
            normed, given, of_sum, of_x = gradients(
                x, residual, bias, factor, key, mean, inverse, grad, other_grad, rows, row, here, column, width,
                columns, dropped, scale,
            )  # fmt: skip
            of_weight += given * normed
            of_shift += given
            if bias is not None:
                of_bias += of_x
            at = row.to(tl.int64)[:, None] * width + column[None, :]
            tl.store(grad_residual + at, of_sum, mask=here)
            rounded = of_x.to(x.dtype.element_ty).to(tl.float32)
            largest = tl.maximum(largest, largest_in_threads(rounded))
            tl.store(low + at, narrowed(rounded, reciprocal, limit).to(low.dtype.element_ty), mask=inside[None, :])
        transpose_group(low, transposed, group, groups, width, block, multiple)
    record_largest(recorded, largest)
    store_sums(sums, of_weight, of_shift, of_bias, column, width)


def residual_norm(
    x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, eps: float, probability: float, bias: Tensor | None,
    into: "Cast | None" = None, output: "OutputGradient | None" = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return LayerNorm(dropout(x + bias) + residual) [..., H] as two tensors that share their memory, in the type of x.

    With `into` there are two more: the same / scale in FP8 [T', H], and its transpose [H, T'].

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
    """
    result: tuple[Tensor, ...] = _ResidualNorm.apply(
        x, residual, weight, shift, bias, eps, probability, into, output
    )  # fmt: skip
    return result


class _ResidualNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, shift: Tensor, bias: Tensor | None, eps: float,
        probability: float, into: "Cast | None", output: "OutputGradient | None",
    ) -> tuple[Tensor, ...]:  # fmt: skip
        x, residual = x.contiguous(), residual.contiguous()
        width = x.shape[-1]
        rows, columns = x.numel() // width, columns_of(width)
        ctx.how = {"width": width, "columns": columns, **dropout_constants(probability)}
        key = random_key(x) if ctx.how["dropped"] else None
        result = torch.empty_like(x)
        mean, inverse = (torch.empty(rows, device=x.device) for _ in range(2))
        ctx.save_for_backward(x, residual, bias, weight, key, mean, inverse)
        ctx.output = output
        ctx.set_materialize_grads(False)
        given = x, residual, bias, weight, shift, key, result, mean, inverse
        if into is None:
            launch(dropout_layer_norm_forward, (rows,), *given, rows, eps, warps=warps_of(columns), **ctx.how)
            return result, result.view_as(result)
        groups, (low, transposed) = -(-rows // _GROUP), _empty(rows, width, into)
        launch(
            dropout_layer_norm_fp8_forward, (groups,), *given, into.scale, bits(into.record), low,
            transposed.view(torch.int32), rows, groups, eps, warps=warps_of(_ROWS * columns),
            **_how_to_fp8(columns, into), **ctx.how,
        )  # fmt: skip
        ctx.mark_non_differentiable(low, transposed)
        return result, result.view_as(result), low, transposed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, bias, weight, key, mean, inverse = ctx.saved_tensors
        grad, other = (*(grad.contiguous() for grad in grads[:2] if grad is not None), None, None)[:2]
        if grad is None:
            return (None,) * 9
        given = x, residual, bias, weight, key, mean, inverse, grad, other
        into = ctx.output.cast() if ctx.output is not None and ctx.needs_input_grad[0] else None
        rows, (columns, width) = len(mean), (ctx.how["columns"], ctx.how["width"])
        grad_residual, tiles = torch.empty_like(residual), -(-rows // (_ROWS if into is None else _GROUP))
        count = programs(x, tiles)
        sums = torch.empty(count, 3, width, device=x.device)
        if into is None:
            grad_x = torch.empty_like(x)
            launch(
                dropout_layer_norm_backward, (count,), *given, grad_x, grad_residual, sums, rows, tile=_ROWS,
                stages=_STAGES, warps=warps_of(_ROWS * columns), **ctx.how,
            )  # fmt: skip
        else:
            low, transposed = _empty(rows, width, into)
            launch(
                dropout_layer_norm_fp8_backward, (count,), *given, into.scale, bits(into.record), low,
                transposed.view(torch.int32), grad_residual, sums, rows, tiles,
                warps=warps_of(_ROWS * columns), **_how_to_fp8(columns, into), **ctx.how,
            )  # fmt: skip
            grad_x = ctx.output.leave(low, transposed, into.scale, x)
        of_weight, of_shift, of_bias = sums.sum(0)
        grad_bias = None if bias is None else of_bias.to(bias.dtype)
        return grad_x, grad_residual, of_weight.to(weight.dtype), of_shift.to(weight.dtype), grad_bias, *(None,) * 4


def _empty(rows: int, width: int, into: "Cast") -> tuple[Tensor, Tensor]:
    """Return memory for rows in FP8, up to a whole group, and their transpose."""
    return empty_both_ways(-(-rows // _GROUP) * _GROUP, width, into.dtype, into.scale.device)


def _how_to_fp8(columns: int, into: "Cast") -> dict[str, int | float]:
    """Return the constants of kernels that write FP8."""
    return {
        "tile": _ROWS, "multiple": _GROUP, "block": min(_BLOCK, columns), "limit": torch.finfo(into.dtype).max,
    }  # fmt: skip
