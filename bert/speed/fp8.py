"""Linear layers whose GEMMs run in FP8, with one scale per tensor (Micikevicius et al. 2022, arXiv 2209.05433).

Inputs and weights are cast to E4M3, gradients of outputs to E5M2. Weights are cast once per update. GEMMs return bf16,
with the bias added in their epilogue. Those of the forward pass accumulate in the tensor cores alone ("fast
accumulation"), which keep fewer bits of a sum than float32; those of the backward pass also accumulate in float32
registers. Transformer Engine's default is the same.

With Triton one kernel casts, transposes and finds the magnitude: 4 bytes per element (bert.speed.kernels.quantize). On
an H100 FP8 is 1.15 x as fast as bf16 at batch 128 (docs/results/2026-11-26-h100.md), and slower than it with PyTorch's
functions. The tests compare both with float32 on a CPU, where PyTorch has the same operator.

Scales come from the magnitudes of earlier updates: delayed scaling, as in Transformer Engine. A tensor is divided by
its scale before the cast. The scale maps twice the largest magnitude of the last 16 updates to the largest number of
the format, so one pass over memory casts the tensor and finds its magnitude for later updates. Larger numbers saturate;
infinity and NaN become NaN. The margin of 2 costs one of 15 powers of two of E4M3 and no accuracy above them. The first
update has no history: there a tensor is read twice, and gets the scale of its own magnitude. A tensor of zeros gives
none, so in the update after it the scale is 1.

Magnitudes are recorded in training only, and enter the history once per update, before the first GEMM that follows it.
Within an update scales are constant: accumulated micro-steps share them, and a recomputed layer gets the same numbers
again. Nothing is read back to the host. Ranks have scales of their own.

Shapes: T rows, C columns; I input and O output features; K layers, each with an input, a weight and a gradient of its
output. The operator wants T, I and O multiples of 16: rows are padded with zeros.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.private import scaled_product
from bert.speed.copies import LOW, Copy, copy_of, give_gradient
from bert.speed.kernels import usable

INPUT, WEIGHT, GRADIENT = range(3)
FORMATS = (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)
"""Formats of a layer's input, weight and gradient."""
HISTORY = 16
MARGIN = 2.0
MULTIPLE = 16
"""The operator wants every dimension a multiple of it."""
# Float32 numbers from one scale to the next: cuBLASLt refuses a scale whose address is no multiple of 16 bytes.
_APART = 4


class Quantized(NamedTuple):
    """A tensor in FP8, for GEMMs along both of its dimensions."""

    rows: Tensor
    """[T', C]: T rounded up to a multiple of 16, with rows of zeros."""
    columns: Tensor
    """[C, T']."""
    scale: Tensor
    """The float32 scalar that the values must be multiplied by."""


class Cast(NamedTuple):
    """How a tensor is cast to FP8."""

    dtype: torch.dtype
    """torch.float8_e4m3fn or torch.float8_e5m2; larger numbers saturate."""
    scale: Tensor
    """float32 scalar that the values are divided by."""
    record: Tensor | None
    """float32 scalar, at least 0, raised to their largest magnitude; None for none."""


class Scales:
    """The scales of the linear layers of a model, on one device."""

    def __init__(self) -> None:
        self._history = self._largest = torch.empty(0)
        # Views of single numbers, by layer and role, made once: a cast then needs no indexing.
        self._scale_of: list[Tensor | None] = []
        self._largest_of: Sequence[Tensor] = ()
        self._begun: set[int] = set()

    def add(self, device: torch.device) -> int:
        """Add a linear layer on a device; return its number. All must be added before the first is used."""
        layer = len(self._scale_of) // len(FORMATS)
        self._history = torch.zeros(HISTORY, layer + 1, len(FORMATS), device=device)
        self._largest = torch.zeros_like(self._history[0])
        self._scale_of, self._largest_of = [None] * self._largest.numel(), self._largest.view(-1).unbind()
        return layer

    def quantize(self, values: Tensor, layer: int, role: int, record: bool = True) -> Quantized:
        """Return values [..., C] in FP8; the arguments are those of `cast`."""
        flat = values.reshape(-1, values.shape[-1])
        into = self.cast(layer, role, record, measure=lambda: largest(flat))
        assert into is not None
        return cast_both_ways(flat, into)

    def cast(
        self, layer: int, role: int, record: bool = True, *, measure: Callable[[], Tensor] | None = None
    ) -> Cast | None:
        """Return how a tensor is cast.

        Args:
            layer: its number.
            role: INPUT, WEIGHT or GRADIENT.
            record: whether the tensor's magnitude counts for later scales; False in evaluation.
            measure: returns the magnitude of a tensor without history; None returns None for such a tensor.
        """
        place = layer * len(FORMATS) + role
        scale = self._scale_of[place]
        if scale is None and measure is not None:
            with torch.no_grad():
                scale = scale_of(measure(), FORMATS[role], MARGIN)
            if record:
                self._scale_of[place] = scale
        return None if scale is None else Cast(FORMATS[role], scale, self._largest_of[place] if record else None)

    def begin(self, layer: int) -> None:
        """Note that a layer begins with a new weight: the first to do so in an update renews all scales."""
        if layer in self._begun:
            self.renew()
        self._begun.add(layer)

    @torch.inference_mode(False)
    @torch.no_grad()
    def renew(self) -> None:
        """Enter the recorded magnitudes into the history, and compute new scales from it."""
        # What was not used keeps its history, and so does what overflowed: its update is lost anyway.
        recorded = (self._largest > 0) & self._largest.isfinite()
        self._history = torch.where(recorded, torch.cat([self._largest[None], self._history[:-1]]), self._history)
        scales = scale_of(self._history.amax(0)[..., None], _limits(self._history.device), MARGIN)
        self._scale_of = [
            None if before is None else scale
            for before, scale in zip(self._scale_of, scales[..., 0].reshape(-1).unbind(), strict=True)
        ]
        self._largest.zero_()
        self._begun.clear()

    def state(self) -> dict[str, Tensor]:
        """Return what a later process needs to continue with the same scales."""
        one = torch.ones((), device=self._largest.device)
        scales = [one if scale is None else scale for scale in self._scale_of]
        known = torch.tensor([scale is not None for scale in self._scale_of])
        return {
            "history": self._history, "largest": self._largest,
            "scale": torch.stack(scales).view_as(self._largest), "known": known.view(self._largest.shape),
        }  # fmt: skip

    def load_state(self, state: dict[str, Tensor]) -> bool:
        """Continue with a saved state; return False, with nothing changed, if it is of other layers."""
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != value.shape for name, value in state.items()):
            return False
        self._history, self._largest, scales = (
            state[name].to(self._largest.device, torch.float32, copy=True) for name in ("history", "largest", "scale")
        )
        self._largest_of = self._largest.view(-1).unbind()
        apart = scales.view(-1, 1).repeat(1, _APART)[:, 0].unbind()
        known = state["known"].flatten().tolist()
        self._scale_of = [scale if each else None for scale, each in zip(apart, known, strict=True)]
        self._begun.clear()
        return True


def largest(values: Tensor) -> Tensor:
    """Return the largest magnitude, a float32 scalar, in one read."""
    found: Tensor = torch.linalg.vector_norm(values, torch.inf, dtype=torch.float32)
    return found


def scale_of(magnitude: Tensor, limit: torch.dtype | Tensor, margin: float = 1.0) -> Tensor:
    """Return the scale that maps `margin` times a magnitude to a format's largest number; 1 for a magnitude of 0."""
    most = torch.finfo(limit).max if isinstance(limit, torch.dtype) else limit
    scale = (magnitude * margin / most).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(magnitude == 0, 1.0, scale)


def quantize(values: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """Return values / scale in FP8: saturated, with NaN for what is not finite."""
    most = torch.finfo(dtype).max
    wide = values.float()
    scaled = (wide * scale.reciprocal()).clamp(-most, most)
    return torch.where(wide.isfinite(), scaled, torch.nan).to(dtype)


def cast_both_ways(values: Tensor, into: Cast) -> Quantized:
    """Return values [T, C] in FP8."""
    if usable(values):
        from bert.speed.kernels.quantize import cast_both_ways as by_kernel

        return by_kernel(values, into)
    if into.record is not None:
        torch.maximum(into.record, largest(values), out=into.record)
    missing = -len(values) % MULTIPLE
    padded = torch.nn.functional.pad(values, (0, 0, 0, missing)) if missing else values
    low = quantize(padded, into.dtype, into.scale)
    return Quantized(low, low.t().contiguous(), into.scale)


def _limits(device: torch.device) -> Tensor:
    """Return the largest number of each role's format [3, 4], so that scales made of them are that far apart.

    They are made on the device, without a copy from the host.
    """
    limits = torch.full((len(FORMATS), _APART), torch.finfo(FORMATS[INPUT]).max, device=device)
    limits[GRADIENT].fill_(torch.finfo(FORMATS[GRADIENT]).max)
    return limits


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
        ctx.weight, ctx.output, ctx.shape, ctx.dtype = weight, output, x.shape, x.dtype
        rows = x.numel() // x.shape[-1]
        return forward_product(inputs, values, bias)[:rows].view(*x.shape[:-1], len(values.rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, scale, transposed, weight_scale = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        given = ctx.output.take(flat)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            product = input_gradient(given, transposed, weight_scale)[: len(flat)]
            grad_x = product.view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = give_gradient(ctx.weight, partial(weight_gradient, given, inputs, scale))
        return grad_x, grad_weight, flat.sum(0) if ctx.needs_input_grad[2] else None, *(None,) * 4
