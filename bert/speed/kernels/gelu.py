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
from bert.speed.kernels.quantize import IN_WORD, cast_rows, checked, gelu_of, record_largest, slope_of, target

_COLUMNS, _ROWS = 256, 8
_HOW = {"columns": _COLUMNS, "tile": _ROWS, "warps": 4}
# Of FP8: of eight tiles the fastest forward on an H100, and backward within 7 % of it; few programs add up the gradient
# of the bias.
_TILE, _FP8_COLUMNS, _FP8_WARPS, _PROGRAMS = 32, 128, 4, 32


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


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def bias_gelu_fp8_forward(
    x, bias, scale, recorded, low, transposed, rows, groups, width: tl.constexpr, columns: tl.constexpr,
    limit: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Compute one tile of GELU(x + bias) / scale in FP8 and its transpose, with zeros after the last row."""
    word = tl.program_id(0) * (tile // IN_WORD) + tl.arange(0, tile // IN_WORD)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    offset = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    cast_rows(
        x, offset, None, scale, recorded, low, transposed, word, column, rows, groups, width, limit, multiple
    )  # fmt: skip


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
        given, found = cast_rows(
            x, offset, grad, scale, None, low, transposed, word, column, rows, groups, width, limit, multiple
        )  # fmt: skip
        total += given
        largest = tl.maximum(largest, found)
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
        return placeholder(made.low, x), checked(bias_gelu_fp8_forward, made.low)

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
    return checked(bias_gelu_fp8_backward, made.low), sums.sum(0).to(bias.dtype)
