"""Linear layers whose GEMMs run in FP8, with one scale per tensor (Micikevicius et al. 2022, arXiv 2209.05433).

Inputs and weights are cast to E4M3, gradients of outputs to E5M2, with scales from earlier updates
(bert.speed.scales). Weights are cast once per update. GEMMs return bf16, with the bias added in their epilogue. Those
of the forward pass accumulate in the tensor cores alone ("fast accumulation"), which keep fewer bits of a sum than
float32; those of the backward pass also accumulate in float32 registers. Transformer Engine's default is the same.

With Triton one kernel casts, transposes and finds the magnitude: 4 bytes per element (bert.speed.kernels.quantize). On
an H100 FP8 is 1.15 x as fast as bf16 at batch 128 (docs/results/2026-11-26-h100.md), and slower than it with PyTorch's
functions. The tests compare both with float32 on a CPU, where PyTorch has the same
operator.

Shapes: T rows, I input and O output features. The operator wants each a multiple of 16: rows are padded with zeros.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.private import scaled_product
from bert.speed.copies import LOW, Copy, copy_of
from bert.speed.scales import FORMATS, GRADIENT, INPUT, MULTIPLE, WEIGHT, Cast, Quantized, Scales


class Fp8Copy(Copy):
    """The FP8 copy of a float32 weight [O, I], made of its bf16 copy.

    Args:
        parameter: the weight.
        scales: those of the model, to which the layer is added; None for scales of its own.
    """

    def __init__(self, parameter: Tensor, scales: Scales | None = None) -> None:
        super().__init__(parameter)
        self.scales = Scales() if scales is None else scales
        self.layer = self.scales.add(parameter.device)
        self._cast: Quantized | None = None
        self._cast_of = -1  # version of the bf16 copy

    def cast(self, weight: Tensor) -> Quantized:
        """Return the weight [O, I] in FP8. The first cast after an update renews the scales of all layers."""
        values = self.of(weight)
        if self._cast is None or self.is_due(weight):
            # Training needs it too, so no inference tensor may be made where an evaluation comes first.
            with torch.inference_mode(False), torch.no_grad():
                self.scales.begin(self.layer)
                self._cast, self._cast_of = self.scales.quantize(values, self.layer, WEIGHT), values._version
        return self._cast

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, low: Quantized | None = None,
        output: "OutputGradient | None" = None,
    ) -> Tensor:  # fmt: skip
        """Return x W^T + b in bf16.

        Args:
            x: [..., I].
            weight: whose copy this is.
            bias: [O] or None.
            low: x in FP8, if the kernel that computed x has written it.
            output: where the next operation may leave the gradient of the result; only without a bias.
        """
        output = output or OutputGradient(self)
        result: Tensor = _Linear.apply(x, weight, bias, self, torch.is_grad_enabled(), low, output)  # type: ignore[no-untyped-call]
        return result

    def is_due(self, weight: Tensor) -> bool:
        """Whether the weight has changed since its last cast."""
        return self._cast_of != self.of(weight)._version

    def input_cast(self, weight: Tensor, measure: Callable[[], Tensor] | None = None) -> Cast | None:
        """Return how a kernel casts the next input of the layer; `measure` as in `Scales.cast`."""
        self.cast(weight)  # it may renew the scales
        return self.scales.cast(self.layer, INPUT, torch.is_grad_enabled(), measure=measure)


class OutputGradient:
    """The gradient of a layer's output, which the backward pass of the next operation may leave here in FP8.

    Only that operation may use the output. Autograd passes it a placeholder in the output's shape and type.
    """

    def __init__(self, copy: Fp8Copy) -> None:
        self._copy = copy
        self._left: Quantized | None = None

    def cast(self, measure: Callable[[], Tensor] | None = None) -> Cast | None:
        """Return how a kernel casts the gradient; `measure` as in `Scales.cast`."""
        return self._copy.scales.cast(self._copy.layer, GRADIENT, measure=measure)

    def leave(self, grad: Quantized, like: Tensor) -> Tensor:
        """Leave the gradient of an output [..., O], and return the placeholder for it, in the shape of `like`."""
        self._left = grad
        return placeholder(grad, like)

    def take(self, grad: Tensor) -> Quantized:
        """Return the gradient [T', O] in FP8, of what autograd passed [T, O]: the gradient itself or its placeholder.

        Raises:
            RuntimeError: another operation has used the output, so that autograd has added to the placeholder.
        """
        given, self._left = self._left, None
        if given is None:
            return self._copy.scales.quantize(grad, self._copy.layer, GRADIENT)
        if grad.data_ptr() != given.rows.data_ptr():
            raise RuntimeError("the output of a linear layer whose gradient is in FP8 was used more than once")
        return given


def placeholder(low: Quantized, like: Tensor) -> Tensor:
    """Return a tensor without memory of its own, for autograd to pass in place of one that is in FP8 as `low`."""
    return low.rows.view(like.dtype).as_strided(like.shape, (0,) * like.ndim)


def fits(weight: Tensor) -> bool:
    """Whether the operator supports such a matrix."""
    return all(size % MULTIPLE == 0 for size in weight.shape)


def products_dtype(model: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Return the input type of a model's fastest GEMMs: FP8 if a weight has an FP8 copy."""
    return FORMATS[INPUT] if _copies(model) else otherwise


def scales_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model's scales between two updates; empty for a model without FP8."""
    copies = _copies(model)
    if not copies:
        return {}
    if any(copy.is_due(weight) for weight, copy in copies):
        copies[0][1].scales.renew()  # as the next cast would
    return copies[0][1].scales.state()


def load_scales_state(model: nn.Module, state: dict[str, Tensor]) -> bool:
    """Continue with saved scales; return False, with nothing changed, if they do not fit the model."""
    copies = _copies(model)
    return bool(copies) and copies[0][1].scales.load_state(state)


def _copies(model: nn.Module) -> list[tuple[nn.Parameter, Fp8Copy]]:
    pairs = ((parameter, copy_of(parameter)) for parameter in model.parameters())
    return [(parameter, copy) for parameter, copy in pairs if isinstance(copy, Fp8Copy)]


def forward_product(x: Quantized, weight: Quantized, bias: Tensor | None) -> Tensor:
    """Return x [T', I] times weight [O, I] transposed, plus bias [O], in bf16, with fast accumulation."""
    bias = None if bias is None else bias.to(LOW)
    return scaled_product(x.rows, weight.rows.t(), x.scale, weight.scale, bias, fast=True)


def input_gradient(grad: Quantized, weight_columns: Tensor, weight_scale: Tensor) -> Tensor:
    """Return grad [T', O] times weight [O, I] in bf16; the weight comes as columns [I, O]."""
    return scaled_product(grad.rows, weight_columns.t(), grad.scale, weight_scale)


def weight_gradient(grad: Quantized, x_columns: Tensor, x_scale: Tensor, out: Tensor | None = None) -> Tensor:
    """Return grad [T', O] transposed times x [T', I] in bf16, in `out` if given; x comes as columns [I, T']."""
    return scaled_product(grad.columns, x_columns.t(), grad.scale, x_scale, out=out)


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Fp8Copy, record: bool, low: Quantized | None,
        output: OutputGradient,
    ) -> Tensor:  # fmt: skip
        values = copy.cast(weight)  # first: it may renew the scales
        inputs = copy.scales.quantize(x, copy.layer, INPUT, record) if low is None else low
        ctx.save_for_backward(inputs.columns, inputs.scale, values.columns, values.scale)
        ctx.copy, ctx.output, ctx.shape, ctx.dtype = copy, output, x.shape, x.dtype
        rows = x.numel() // x.shape[-1]
        return forward_product(inputs, values, bias)[:rows].view(*x.shape[:-1], len(values.rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, scale, transposed, weight_scale = ctx.saved_tensors
        copy, flat = ctx.copy, grad.reshape(-1, grad.shape[-1])
        given = ctx.output.take(flat)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            product = input_gradient(given, transposed, weight_scale)[: len(flat)]
            grad_x = product.view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = weight_gradient(given, inputs, scale, copy.take_spare())
        return grad_x, grad_weight, flat.sum(0) if ctx.needs_input_grad[2] else None, *(None,) * 4
