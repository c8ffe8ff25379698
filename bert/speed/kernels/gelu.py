"""Bias and exact GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415) in one pass.

The backward pass also computes the gradient of the bias, which would otherwise read the gradient of the input again.
The passes of FP8 write their result as the next GEMMs read it, in FP8 and transposed, and not in 16 bits.

Shapes: T rows, T' a multiple of 16, F features, P programs per block of features.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.fp8 import Cast, OutputGradient, Quantized, largest, placeholder
from bert.speed.kernels import launch, programs
from bert.speed.kernels.quantize import IN_WORD, magnitudes, record_largest, store_both_ways, take_rows, target

_COLUMNS, _ROWS = 256, 8
_HOW = {"columns": _COLUMNS, "tile": _ROWS, "warps": 4}
# Of FP8: of eight tiles the fastest forward on an H100, and backward within 7 % of it; few programs add up the gradient
# of the bias.
_TILE, _FP8_COLUMNS, _FP8_WARPS, _PROGRAMS = 32, 128, 4, 32


@triton.jit
def normal(x):
    """Return the cumulative normal distribution, 0.5 (1 + erf(x / sqrt(2))), and its density, from one exponential.

    Formula 7.1.26 of Abramowitz and Stegun 1964, whose error is at most 7.5e-8. The library's erf takes more
    instructions than a GPU has time for while it waits for memory.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = 1.061405429 * t - 1.453152027
    tail = tail * t + 1.421413741
    tail = tail * t - 0.284496736
    tail = (tail * t + 0.254829592) * t * (0.5 * bell)
    return tl.where(x > 0, 1.0 - tail, tail), 0.3989422804014327 * bell


@triton.jit
def gelu_of(x):
    """Return GELU(x)."""
    below, _ = normal(x)
    return x * below


@triton.jit
def slope_of(x):
    """Return the derivative of GELU at x."""
    below, density = normal(x)
    return below + x * density


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
    tl.store(result + at, gelu_of(value), mask=here)


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
        given = tl.load(grad + at, mask=here, other=0.0).to(tl.float32) * slope_of(value)
        tl.store(grad_x + at, given, mask=here)
        if bias is not None:
            total += given
    if bias is not None:
        tl.store(sums + program * width + column, tl.sum(total, 0), mask=inside)


@triton.jit
def activated(x, offset, row, column, rows, width: tl.constexpr):
    """Return rows of GELU(x + bias), and zeros after the last one."""
    value = gelu_of(take_rows(x, row, column, rows, width) + offset[None, :])
    return tl.where((row < rows)[:, None], value, 0.0)


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def bias_gelu_fp8_forward(
    x, bias, scale, recorded, low, transposed, rows, groups, width: tl.constexpr, columns: tl.constexpr,
    limit: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Compute one tile of GELU(x + bias) / scale in FP8 and its transpose, with zeros after the last row."""
    word = tl.program_id(0) * (tile // IN_WORD) + tl.arange(0, tile // IN_WORD)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    offset = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    row = word * IN_WORD
    first = activated(x, offset, row, column, rows, width)
    second = activated(x, offset, row + 1, column, rows, width)
    third = activated(x, offset, row + 2, column, rows, width)
    fourth = activated(x, offset, row + 3, column, rows, width)
    if recorded is not None:
        record_largest(recorded, magnitudes(first, second, third, fourth))
    store_both_ways(
        first, second, third, fourth, scale, low, transposed, word, column, groups, width, limit, multiple
    )  # fmt: skip


@triton.jit
def input_gradient(x, grad, offset, row, column, rows, width: tl.constexpr):
    """Return rows of the gradient of x, and zeros after the last one."""
    value = take_rows(x, row, column, rows, width) + offset[None, :]
    return take_rows(grad, row, column, rows, width) * slope_of(value)


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def bias_gelu_fp8_backward(
    x, bias, grad, scale, recorded, low, transposed, sums, rows, groups, width: tl.constexpr, columns: tl.constexpr,
    limit: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every P-th tile of rows in FP8, as `bias_gelu_fp8_forward`; sums as
    `bias_gelu_backward`.
    """
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    total = tl.zeros((tile // IN_WORD, columns), tl.float32)
    largest = tl.zeros((tile // IN_WORD, columns), tl.int32)
    offset = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for begin in tl.range(program * tile, groups * multiple, count * tile):
        word = begin // IN_WORD + tl.arange(0, tile // IN_WORD)
        row = word * IN_WORD
        first = input_gradient(x, grad, offset, row, column, rows, width)
        second = input_gradient(x, grad, offset, row + 1, column, rows, width)
        third = input_gradient(x, grad, offset, row + 2, column, rows, width)
        fourth = input_gradient(x, grad, offset, row + 3, column, rows, width)
        largest = tl.maximum(largest, magnitudes(first, second, third, fourth))
        store_both_ways(
            first, second, third, fourth, scale, low, transposed, word, column, groups, width, limit, multiple
        )  # fmt: skip
        total += (first + second) + (third + fourth)
    record_largest(recorded, largest)
    tl.store(sums + program * width + column, tl.sum(total, 0), mask=inside)


def gelu(
    x: Tensor, bias: Tensor | None, into: Cast | None = None, output: OutputGradient | None = None
) -> tuple[Tensor, Quantized | None]:
    """Return GELU(x + bias) [..., F] in the type of x; with `into` a placeholder for it, and the same in FP8.

    Args:
        x: output of a linear layer [..., F], without its bias if `bias` is given.
        bias: bias of the linear layer [F], or None; needed in FP8.
        into: cast of the result, as the input of the next linear layer; None for none.
        output: where the gradient of x is left in FP8; None for never.
    """
    result: tuple[Tensor, Quantized | None] = _Gelu.apply(x, bias, into, output)
    return result


class _Gelu(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, into: Cast | None, output: OutputGradient | None
    ) -> tuple[Tensor, Quantized | None]:
        x = x.contiguous()
        ctx.save_for_backward(x, bias)
        ctx.output, width = output, x.shape[-1]
        rows = x.numel() // width
        if into is None:
            result = torch.empty_like(x)
            launch(
                bias_gelu_forward, (-(-rows // _ROWS), -(-width // _COLUMNS)), x, bias, result, rows, width=width,
                **_HOW,
            )  # fmt: skip
            return result, None
        made = target(rows, width, into)
        launch(
            bias_gelu_fp8_forward, (-(-len(made.low.rows) // _TILE), -(-width // _FP8_COLUMNS)), x, bias,
            *made.arguments, rows, made.groups, width=width, columns=_FP8_COLUMNS, tile=_TILE, warps=_FP8_WARPS,
            **made.constants,
        )  # fmt: skip
        return placeholder(made.low, x), made.low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_low: None) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        if ctx.output is None or not ctx.needs_input_grad[0]:
            return *gelu_backward(x, bias, grad), None, None
        grad = grad.contiguous()
        into = ctx.output.cast(lambda: largest(gelu_backward(x, bias, grad)[0]))
        low, of_bias = gelu_backward_to_fp8(x, bias, grad, into)
        return ctx.output.leave(low, x), of_bias, None, None


def gelu_backward(x: Tensor, bias: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x [..., F] and bias [F] from that of the result [..., F]."""
    grad, grad_x, width = grad.contiguous(), torch.empty_like(x), x.shape[-1]
    rows = x.numel() // width
    count = programs(x, -(-rows // _ROWS))
    sums = None if bias is None else torch.empty(count, width, device=x.device)
    launch(
        bias_gelu_backward, (count, -(-width // _COLUMNS)), x, bias, grad, grad_x, sums, rows, width=width, **_HOW
    )  # fmt: skip
    return grad_x, None if bias is None or sums is None else sums.sum(0).to(bias.dtype)


def gelu_backward_to_fp8(x: Tensor, bias: Tensor, grad: Tensor, into: Cast) -> tuple[Quantized, Tensor]:
    """Return the same gradients, that of x in FP8; x and grad are contiguous."""
    width = x.shape[-1]
    rows = x.numel() // width
    made = target(rows, width, into)
    count = min(-(-len(made.low.rows) // _TILE), _PROGRAMS)
    sums = torch.empty(count, width, device=x.device)
    launch(
        bias_gelu_fp8_backward, (count, -(-width // _FP8_COLUMNS)), x, bias, grad, *made.arguments, sums, rows,
        made.groups, width=width, columns=_FP8_COLUMNS, tile=_TILE, warps=_FP8_WARPS, **made.constants,
    )  # fmt: skip
    return made.low, sums.sum(0).to(bias.dtype)
