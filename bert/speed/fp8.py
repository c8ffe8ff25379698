"""Linear layers whose GEMMs run in FP8, with one scale per tensor (Micikevicius et al. 2022, arXiv 2209.05433).

Inputs and weights are cast to E4M3, gradients of outputs to E5M2. GEMMs return bf16, with the bias added in their
epilogue. Those of the forward pass accumulate in the tensor cores alone ("fast accumulation"), which keep fewer bits of
a sum than float32; those of the backward pass also accumulate in float32 registers, unless a run asks for fast ones.
Transformer Engine's default is the same.

With Triton one kernel casts, transposes and finds the magnitude: 4 bytes per element (bert.speed.kernels.quantize).
Measured on an H100: docs/results/2026-11-26-h100.md.

Scales come from the magnitudes of earlier updates: delayed scaling, as in Transformer Engine. A tensor is divided by
its scale before the cast. The scale maps twice the largest magnitude of the last 16 updates to the largest number of
the format, so one pass over memory casts the tensor and finds its magnitude for later updates. Larger numbers saturate;
infinity and NaN become NaN. The margin of 2 costs one of 15 powers of two of E4M3 and no accuracy above them. The first
update has no history: there a tensor is read twice, and gets the scale of its own magnitude. A tensor of zeros gives
none, so in the update after it the scale is 1.

Magnitudes are recorded in training only. The optimizers of bert.optim end an update with `cast_weights`: it enters them
into the history, and casts all weights. Within an update scales are constant: accumulated micro-steps share them, and a
recomputed layer gets the same numbers again. After the first update every tensor here stays where it is, and
nothing is read back to the host. Ranks have scales of their own.

Shapes: T rows, C columns; I input and O output features; K layers, each with an input, a weight and a gradient of its
output. The operator wants T, I and O multiples of 16: rows are padded with zeros.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
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
    """The scales of the linear layers of a model, on one device, and the casts of their weights."""

    def __init__(self, fast_gradients: bool = False) -> None:
        self.fast_gradients = fast_gradients
        """Whether GEMMs that compute gradients accumulate in the tensor cores alone."""
        self.saturated = torch.zeros(())
        """How many tensors had numbers that saturated, each counted once in an update; who reads it sets it to 0."""
        self._history = self._largest = self._scale = self._limits = torch.empty(0)
        # Views of single numbers, by layer and role, made once: a cast then needs no indexing.
        self._scale_of: Sequence[Tensor] = ()
        self._largest_of: Sequence[Tensor] = ()
        self._known: list[bool] = []
        self._weights: list[weakref.ref[Tensor]] = []  # each has its copy, which has these scales
        self._cast_all: Callable[[], Sequence[Quantized]] | None = None

    def add(self, device: torch.device, weight: Tensor | None = None) -> int:
        """Add a linear layer on a device; return its number. All must be added before the first is used."""
        layer = len(self._scale_of) // len(FORMATS)
        self.saturated = torch.zeros((), device=device)
        self._history = torch.zeros(HISTORY, layer + 1, len(FORMATS), device=device)
        self._largest = torch.zeros_like(self._history[0])
        self._scale = torch.ones(*self._largest.shape, _APART, device=device)[..., 0]
        self._limits = torch.tensor([torch.finfo(form).max for form in FORMATS], device=device)
        self._scale_of, self._largest_of = self._scale.view(-1).unbind(), self._largest.view(-1).unbind()
        self._known = [False] * self._largest.numel()
        self._weights += [] if weight is None else [weakref.ref(weight)]
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
        if not self._known[place]:
            if measure is None:
                return None
            with torch.no_grad():
                measured = scale_of(measure(), FORMATS[role], MARGIN)
                scale = scale.copy_(measured) if record else measured
            self._known[place] = record
        return Cast(FORMATS[role], scale, self._largest_of[place] if record else None)

    @torch.no_grad()
    def renew(self) -> None:
        """Enter the recorded magnitudes into the history, and compute new scales from it."""
        # What was not used keeps its history, and so does what overflowed: its update is lost anyway.
        recorded = (self._largest > 0) & (self._largest < torch.inf)
        self.saturated += (recorded & (self._largest > self._limits * self._scale)).sum()
        later = torch.cat([self._largest[None], self._history[:-1]])
        self._history.copy_(torch.where(recorded, later, self._history))
        self._scale.copy_(scale_of(self._history.amax(0), self._limits, MARGIN))
        self._largest.zero_()

    # Training needs the casts too, so no inference tensor may be made where an evaluation comes first.
    @torch.inference_mode(False)
    @torch.no_grad()
    def cast_weights(self) -> None:
        """Cast all weights, on a GPU in one launch, and into the same memory as the last time."""
        copies = [(copy, copy.of(weight)) for weight, copy in self._copies()]
        if self._cast_all is None:
            casts = (self.cast(copy.layer, WEIGHT, measure=partial(largest, values)) for copy, values in copies)
            pairs = [(values, into) for (_, values), into in zip(copies, casts, strict=True) if into is not None]
            self._cast_all = _casts_of(pairs)
        for (copy, values), low in zip(copies, self._cast_all(), strict=True):
            copy.low, copy.low_of = low, values._version

    def _copies(self) -> "list[tuple[Tensor, Fp8Copy]]":
        pairs = ((weight, copy_of(weight)) for each in self._weights if (weight := each()) is not None)
        return [(weight, copy) for weight, copy in pairs if isinstance(copy, Fp8Copy)]

    def state(self) -> dict[str, Tensor]:
        """Return what a later process needs to continue with the same scales."""
        known = torch.tensor(self._known).view(self._largest.shape)
        return {"history": self._history, "largest": self._largest, "scale": self._scale, "known": known}

    def load_state(self, state: dict[str, Tensor]) -> bool:
        """Continue with a saved state; return False, with nothing changed, if it is of other layers."""
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != value.shape for name, value in state.items()):
            return False
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self._known = own["known"].flatten().tolist()
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


def _casts_of(pairs: Sequence[tuple[Tensor, Cast]]) -> Callable[[], Sequence[Quantized]]:
    """Return a function that casts tensors, each [T, C] with T and C multiples of 16."""
    if not usable(pairs[0][0]):
        return lambda: [cast_both_ways(*pair) for pair in pairs]
    from bert.speed.kernels.quantize import casts_together

    return casts_together(pairs)


class Fp8Copy(Copy):
    """The FP8 copy of a float32 weight [O, I], made of its bf16 copy.

    Args:
        parameter: the weight.
        scales: those of the model, to which the layer is added; None for scales of its own.
    """

    def __init__(self, parameter: Tensor, scales: Scales | None = None) -> None:
        super().__init__(parameter)
        self.scales = Scales() if scales is None else scales
        self.layer = self.scales.add(parameter.device, parameter)
        self.low: Quantized | None = None
        """The weight as it was cast the last time."""
        self.low_of = -1
        """Version of the bf16 copy that it was made of."""

    def cast(self, weight: Tensor) -> Quantized:
        """Return the weight [O, I] in FP8. If something else than an optimizer has changed it, all are cast again."""
        if self.low is None or self.low_of != self.of(weight)._version:
            self.scales.cast_weights()
        assert self.low is not None
        return self.low

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


def cast_weights(groups: Iterable[Mapping[str, Any]]) -> None:
    """Renew the scales and cast all weights, if they are in FP8: an optimizer with these groups has updated them."""
    scales = scales_of(parameter for group in groups for parameter in group["params"])
    if scales is not None:
        scales.renew()
        scales.cast_weights()


def scales_of(parameters: Iterable[Tensor]) -> Scales | None:
    """Return the scales of a model with these parameters; None for a model without FP8."""
    copies = map(copy_of, parameters)
    return next((copy.scales for copy in copies if isinstance(copy, Fp8Copy)), None)


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Fp8Copy, record: bool, low: Quantized | None,
        output: OutputGradient,
    ) -> Tensor:  # fmt: skip
        values = copy.cast(weight)
        inputs = copy.scales.quantize(x, copy.layer, INPUT, record) if low is None else low
        ctx.save_for_backward(inputs.columns, values.columns)
        ctx.scales = inputs.scale, values.scale  # not saved: a layer measured later writes into the same memory
        ctx.weight, ctx.output, ctx.shape, ctx.dtype = weight, output, x.shape, x.dtype
        ctx.fast = copy.scales.fast_gradients
        low_bias, rows = None if bias is None else bias.to(LOW), x.numel() // x.shape[-1]
        product = scaled_product(inputs.rows, values.rows.t(), inputs.scale, values.scale, low_bias, fast=True)
        return product[:rows].view(*x.shape[:-1], len(values.rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, transposed), (scale, weight_scale) = ctx.saved_tensors, ctx.scales
        flat = grad.reshape(-1, grad.shape[-1])
        given = ctx.output.take(flat)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            product = scaled_product(given.rows, transposed.t(), given.scale, weight_scale, fast=ctx.fast)
            grad_x = product[: len(flat)].view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            make = partial(scaled_product, given.columns, inputs.t(), given.scale, scale, fast=ctx.fast)
            grad_weight = give_gradient(ctx.weight, make)
        return grad_x, grad_weight, flat.sum(0) if ctx.needs_input_grad[2] else None, *(None,) * 4
