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
    """How a kernel writes a tensor in FP8 itself."""

    dtype: torch.dtype
    scale: Tensor
    """float32 scalar that the values are divided by."""
    record: Tensor | None
    """float32 scalar, raised to their largest magnitude; None for none."""


class Scales:
    """The scales of the linear layers of a model, on one device."""

    def __init__(self) -> None:
        self._layers = 0
        self._history = self._largest = self._scale = torch.empty(0)
        self._scale_of: Sequence[Tensor] = ()
        self._largest_of: Sequence[Tensor] = ()
        self._known: set[tuple[int, int]] = set()
        self._first: dict[tuple[int, int], Tensor] = {}
        self._begun: set[int] = set()

    def add(self, device: torch.device) -> int:
        """Add a linear layer on a device; return its number. All must be added before the first is used."""
        self._layers += 1
        shape = (self._layers, len(FORMATS))
        self._history = torch.zeros(HISTORY, *shape, device=device)
        self._largest, self._scale = torch.zeros(shape, device=device), _apart(torch.ones(shape, device=device))
        self._divide()
        return self._layers - 1

    def quantize(self, values: Tensor, layer: int, role: int, record: bool = True) -> Quantized:
        """Return values [..., C] in FP8.

        Args:
            values: input, weight or gradient of a layer.
            layer: its number.
            role: INPUT, WEIGHT or GRADIENT.
            record: whether their magnitude counts for later scales; False in evaluation.
        """
        flat = values.reshape(-1, values.shape[-1])
        scale = self.scale(layer, role, lambda: largest(flat), record)
        return Quantized(*cast_both_ways(flat, FORMATS[role], scale, self.recorder(layer, role, record)), scale)

    def scale(self, layer: int, role: int, measure: Callable[[], Tensor], record: bool = True) -> Tensor:
        """Return the scale of a tensor; that of the magnitude that `measure` returns if it has no history."""
        scale = self._existing(layer, role)
        if scale is None:
            scale = scale_of(measure(), FORMATS[role], MARGIN)
            if record:
                self._first[layer, role] = scale
        return scale

    def cast(self, layer: int, role: int, record: bool = True) -> Cast | None:
        """Return how the kernel that computes a tensor casts it; None if it has no scale yet and must be measured."""
        scale = self._existing(layer, role)
        return None if scale is None else Cast(FORMATS[role], scale, self.recorder(layer, role, record))

    def _existing(self, layer: int, role: int) -> Tensor | None:
        slot = (layer, role)
        return self._scale_of[_place(layer, role)] if slot in self._known else self._first.get(slot)

    def recorder(self, layer: int, role: int, record: bool = True) -> Tensor | None:
        """Return the scalar that is raised to the largest magnitude of a tensor; None for none."""
        return self._largest_of[_place(layer, role)] if record else None

    def _divide(self) -> None:
        """Make the view of each scalar once: a cast then needs no indexing."""
        self._scale_of = self._scale[..., 0].reshape(-1).unbind()
        self._largest_of = self._largest.view(-1).unbind()

    def begin(self, layer: int) -> None:
        """Note that a layer begins with a new weight: the first to do so in an update renews all scales."""
        if layer in self._begun:
            self.renew()
        self._begun.add(layer)

    def has_begun(self, layer: int) -> bool:
        """Whether a layer has been used since scales were last renewed."""
        return layer in self._begun

    @torch.inference_mode(False)
    @torch.no_grad()
    def renew(self) -> None:
        """Enter the recorded magnitudes into the history, and compute new scales from it."""
        # What was not used keeps its history, and so does what overflowed: its update is lost anyway.
        recorded = (self._largest > 0) & self._largest.isfinite()
        self._history = torch.where(recorded, torch.cat([self._largest[None], self._history[:-1]]), self._history)
        self._scale = scale_of(self._history.amax(0)[..., None], _limits(self._scale.device), MARGIN)
        self._largest.zero_()
        self._divide()
        self._known |= self._first.keys()
        self._first.clear()
        self._begun.clear()

    def state(self) -> dict[str, Tensor]:
        """Return what a later process needs to continue with the same scales."""
        scale, known = self._scale[..., 0].clone(), torch.zeros(self._largest.shape, dtype=torch.bool)
        for slot, own in self._first.items():
            scale[slot] = own
        for slot in self._known | self._first.keys():
            known[slot] = True
        return {"history": self._history, "largest": self._largest, "scale": scale, "known": known}

    def load_state(self, state: dict[str, Tensor]) -> bool:
        """Continue with a saved state; return False, with nothing changed, if it is of other layers."""
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != value.shape for name, value in state.items()):
            return False
        device = self._scale.device
        self._history, self._largest, scale = (
            state[name].to(device, torch.float32, copy=True) for name in ("history", "largest", "scale")
        )
        self._scale = _apart(scale)
        self._divide()
        self._known = {(layer, role) for layer, role in state["known"].nonzero().tolist()}
        self._first.clear()
        self._begun.clear()
        return True


def _place(layer: int, role: int) -> int:
    return layer * len(FORMATS) + role


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


def cast_both_ways(values: Tensor, dtype: torch.dtype, scale: Tensor, record: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return values [T, C] / scale in FP8 as [T', C] and [C, T'].

    Args:
        values: [T, C].
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        scale: float32 scalar.
        record: float32 scalar, raised to the largest magnitude of the values; None for none.
    """
    if usable(values):
        from bert.speed.kernels.quantize import cast_both_ways as by_kernel

        return by_kernel(values, dtype, scale, record, MULTIPLE)
    if record is not None:
        torch.maximum(record, largest(values), out=record)
    missing = -len(values) % MULTIPLE
    low = quantize(torch.nn.functional.pad(values, (0, 0, 0, missing)) if missing else values, dtype, scale)
    return low, low.t().contiguous()


def _apart(scale: Tensor) -> Tensor:
    """Return scales [K, 3] as [K, 3, 4], each with an address of its own that is a multiple of 16 bytes."""
    return scale[..., None].repeat(1, 1, _APART)


def _limits(device: torch.device) -> Tensor:
    """Return the largest number of each role's format [3, 4], made on the device without a copy from the host.

    The scales made of them are then as far apart as `_apart` puts them.
    """
    limits = torch.full((len(FORMATS), _APART), torch.finfo(FORMATS[INPUT]).max, device=device)
    limits[GRADIENT].fill_(torch.finfo(FORMATS[GRADIENT]).max)
    return limits
