"""Linear layers whose GEMMs run in FP8, with one scale per tensor (Micikevicius et al. 2022, arXiv 2209.05433).

Inputs and weights are cast to E4M3, gradients of outputs to E5M2, each divided so that its largest number is the
format's. The scale is of the numbers at hand ("dynamic" in torchao); results are bf16. Weights are cast once per
update.

With PyTorch's functions it is slower than bf16 on an H100 (docs/results/2026-11-24-h100.md): casts and scales, 27 bytes
per element, cost more than the GEMMs gain. With Triton they take 6 bytes (bert.speed.kernels.quantize; not measured on
a GPU). The tests compare both with float32 on a CPU, where PyTorch has the same operator.

Shapes: T rows, I input and O output features. The operator wants each a multiple of 16: rows are padded with zeros.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.speed.copies import LOW, Copy, copy_of
from bert.speed.kernels import usable

_INPUT, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
_MULTIPLE = 16


class Fp8Copy(Copy):
    """The FP8 copy of a float32 weight [O, I], made of its bf16 copy."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__(parameter)
        self._cast: tuple[Tensor, Tensor, Tensor] | None = None
        self._cast_version = -1

    def cast(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return [O, I], its transpose [I, O], both in rows, and the scale that they are multiplied by."""
        values = self.of(weight)
        # Of the bf16 copy: PyTorch's fused optimizers leave the version of the parameter as it is.
        if self._cast is None or self._cast_version != values._version:
            with torch.no_grad():
                self._cast, self._cast_version = quantize_both_ways(values, _INPUT), values._version
        return self._cast

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b in bf16."""
        result: Tensor = _Linear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        return result


def fits(weight: Tensor) -> bool:
    """Whether the operator supports such a matrix."""
    return all(size % _MULTIPLE == 0 for size in weight.shape)


def products_dtype(model: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Return the input type of a model's fastest GEMMs: FP8 if a weight has an FP8 copy."""
    return _INPUT if any(isinstance(copy_of(one), Fp8Copy) for one in model.parameters()) else otherwise


def quantize(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return values in FP8, and the float32 scalar that they must be multiplied by. Zeros stay zeros."""
    largest = values.abs().amax().float()
    scale = (largest / torch.finfo(dtype).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (values.float() / scale).to(dtype), scale


def quantize_both_ways(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return values [..., K] in FP8 as [T, K] and [K, T], and the float32 scalar that they must be multiplied by.

    T is padded with zeros to a multiple of 16.
    """
    flat = values.reshape(-1, values.shape[-1])
    if usable(flat):
        from bert.speed.kernels.quantize import cast_both_ways

        largest = torch.linalg.vector_norm(flat, torch.inf, dtype=torch.float32)  # one read
        return cast_both_ways(flat, dtype, largest, _MULTIPLE)[:3]
    missing = -len(flat) % _MULTIPLE
    low, scale = quantize(torch.nn.functional.pad(flat, (0, 0, 0, missing)) if missing else flat, dtype)
    return low, low.t().contiguous(), scale


def _multiply(first: Tensor, second: Tensor, first_scale: Tensor, second_scale: Tensor) -> Tensor:
    """Return first [M, K] times second [N, K] transposed, in bf16; both are in rows."""
    product: Tensor = torch._scaled_mm(first, second.t(), scale_a=first_scale, scale_b=second_scale, out_dtype=LOW)
    return product


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Fp8Copy) -> Tensor:
        low, columns, scale = quantize_both_ways(x, _INPUT)
        values, transposed, weight_scale = copy.cast(weight)
        ctx.save_for_backward(columns, scale, transposed, weight_scale)
        ctx.copy, ctx.shape, ctx.dtype = copy, x.shape, x.dtype
        rows = x.numel() // x.shape[-1]
        product = _multiply(low, values, scale, weight_scale)[:rows]
        if bias is not None:
            product.add_(bias.to(LOW))
        return product.view(*x.shape[:-1], len(values))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        inputs, scale, transposed, weight_scale = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        quantized, columns, grad_scale = quantize_both_ways(flat, _GRADIENT)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            product = _multiply(quantized, transposed, grad_scale, weight_scale)[: len(flat)]
            grad_x = product.view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = _multiply(columns, inputs, grad_scale, scale)
            spare = ctx.copy.take_spare()
            grad_weight = grad_weight if spare is None else spare.copy_(grad_weight)
        return grad_x, grad_weight, flat.sum(0) if ctx.needs_input_grad[2] else None, None
