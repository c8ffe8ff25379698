"""The two linear layers around GELU in FP8, where GELU's kernels write FP8 as the next GEMMs read it.

GELU's result and the gradient of its input do not exist in 16 bits: each would be written, and read again to be cast.
For F features that are 4 H this saves 32 bytes per token and hidden unit. The kernels are those of
bert.speed.kernels.gelu.

Shapes: T rows, T' a multiple of 16, H hidden width, F features between the layers.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.speed.fp8 import Fp8Copy, OutputGradient, forward_product, input_gradient, weight_gradient
from bert.speed.kernels.gelu import gelu, gelu_backward, gelu_backward_to_fp8, gelu_to_fp8
from bert.speed.scales import FORMATS, GRADIENT, INPUT, Quantized, largest


def products(
    x: Tensor, first: nn.Linear, second: nn.Linear, first_copy: Fp8Copy, second_copy: Fp8Copy, low: Quantized | None,
    output: OutputGradient,
) -> Tensor:  # fmt: skip
    """Return second(GELU(first(x))) [..., H] in bf16 without the second bias, for x [..., H].

    Args:
        x: on a device with kernels.
        first: layer [F, H] with a bias.
        second: layer [H, F].
        first_copy: the copy of its weight.
        second_copy: the copy of its weight.
        low: x in FP8, if the kernel that computed x has written it.
        output: where the next operation may leave the gradient of the result.
    """
    record = torch.is_grad_enabled()
    result: Tensor = _FeedForward.apply(  # type: ignore[no-untyped-call]
        x, first.weight, first.bias, second.weight, first_copy, second_copy, record, low, output
    )
    return result


class _FeedForward(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, bias: Tensor, second: Tensor, first_copy: Fp8Copy, second_copy: Fp8Copy,
        record: bool, low: Quantized | None, output: OutputGradient,
    ) -> Tensor:  # fmt: skip
        weights = first_copy.cast(first), second_copy.cast(second)  # before all else: they may renew the scales
        rows = x.numel() // x.shape[-1]
        inputs = first_copy.scales.quantize(x, first_copy.layer, INPUT, record) if low is None else low
        inner = forward_product(inputs, weights[0], None)
        activated = _activated(inner, bias, rows, second_copy, record)
        ctx.save_for_backward(
            inputs.columns, inputs.scale, weights[0].columns, weights[0].scale, inner, bias, activated.columns,
            activated.scale, weights[1].columns, weights[1].scale,
        )  # fmt: skip
        ctx.copies, ctx.output, ctx.shape, ctx.dtype = (first_copy, second_copy), output, x.shape, x.dtype
        return forward_product(activated, weights[1], None)[:rows].view(*x.shape[:-1], len(second))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            inputs, input_scale, first, first_scale, inner, bias, activated, activated_scale, second, second_scale
        ) = ctx.saved_tensors  # fmt: skip
        first_copy, second_copy = ctx.copies
        flat = grad.reshape(-1, grad.shape[-1])
        given = ctx.output.take(flat)
        of_second = None
        if ctx.needs_input_grad[3]:
            of_second = weight_gradient(given, activated, activated_scale, second_copy.take_spare())
        of_inner, of_bias = _inner_gradient(
            inner, bias, input_gradient(given, second, second_scale), len(flat), first_copy
        )
        of_first = None
        if ctx.needs_input_grad[1]:
            of_first = weight_gradient(of_inner, inputs, input_scale, first_copy.take_spare())
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = input_gradient(of_inner, first, first_scale)[: len(flat)].view(ctx.shape).to(ctx.dtype)
        return of_x, of_first, of_bias, of_second, *(None,) * 5


def _activated(inner: Tensor, bias: Tensor, rows: int, copy: Fp8Copy, record: bool) -> Quantized:
    """Return GELU(inner + bias) [T', F] in FP8, the input of the second layer; rows after the T-th are 0."""
    scale = copy.scales.scale(copy.layer, INPUT, lambda: largest(gelu(inner[:rows], bias)), record)
    recorder = copy.scales.recorder(copy.layer, INPUT, record)
    return Quantized(*gelu_to_fp8(inner, bias, rows, FORMATS[INPUT], scale, recorder), scale)


def _inner_gradient(inner: Tensor, bias: Tensor, grad: Tensor, rows: int, copy: Fp8Copy) -> tuple[Quantized, Tensor]:
    """Return the gradient of the first layer's output [T', F] in FP8, and that of its bias [F]."""
    scale = copy.scales.scale(copy.layer, GRADIENT, lambda: largest(gelu_backward(inner[:rows], bias, grad[:rows])[0]))
    recorder = copy.scales.recorder(copy.layer, GRADIENT)
    assert recorder is not None
    *both, of_bias = gelu_backward_to_fp8(inner, bias, grad, rows, FORMATS[GRADIENT], scale, recorder)
    return Quantized(both[0], both[1], scale), of_bias
