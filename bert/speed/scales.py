"""Scales of FP8 tensors from the magnitudes of earlier updates: delayed scaling (Micikevicius et al. 2022, arXiv
2209.05433; NVIDIA's Transformer Engine has the same recipe).

A tensor is divided by its scale before the cast. The scale maps twice the largest magnitude of the last 16 updates to
the largest number of the format, so one pass over memory casts the tensor and finds its magnitude for later updates.
Larger numbers saturate; infinity and NaN become NaN. The margin of 2 costs one of 15 powers of two of E4M3 and no
accuracy above them. The first update has no history: there a tensor is read twice, and gets the scale of its own
magnitude. A tensor of zeros gives none, so in the update after it the scale is 1.

Magnitudes are recorded in training only, and enter the history once per update, before the first GEMM that follows it.
Within an update scales are constant: accumulated micro-steps share them, and a recomputed layer gets the same numbers
again. Nothing is read back to the host. Ranks have scales of their own.

Shapes: T rows, C columns; K layers, each with an input, a weight and a gradient of its output.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

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
        self._layers = 0
        self._history = self._largest = torch.empty(0)
        # Views of single numbers, by layer and role, made once: a cast then needs no indexing.
        self._scale_of: list[Tensor | None] = []
        self._largest_of: Sequence[Tensor] = ()
        self._begun: set[int] = set()

    def add(self, device: torch.device) -> int:
        """Add a linear layer on a device; return its number. All must be added before the first is used."""
        self._layers += 1
        self._history = torch.zeros(HISTORY, self._layers, len(FORMATS), device=device)
        self._largest = torch.zeros_like(self._history[0])
        self._scale_of, self._largest_of = [None] * self._largest.numel(), self._largest.view(-1).unbind()
        return self._layers - 1

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
