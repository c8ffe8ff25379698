"""Casts to FP8, together with the transpose that the other GEMM of a layer reads, and the largest magnitude.

One pass: 2 bytes per element are read, and 1 byte each is written for the result and the transpose. The scale is known
before (bert.speed.scales).

Shapes: T rows, C columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert.speed.kernels import launch

_TILE, _WARPS = 64, 4


@triton.jit
def record_largest(recorded, value):
    """Raise a float32 in memory to the largest magnitude of a tile. NaN is larger than any number.

    Magnitudes are ordered as their bits are, and the order of atomic maxima does not change the result.
    """
    found = tl.max(tl.max(tl.abs(value).to(tl.int32, bitcast=True), 1), 0)
    tl.atomic_max(recorded, found, sem="relaxed")


@triton.jit
def narrowed(value, factor, limit: tl.constexpr):
    """Return value x factor within the range of a format, NaN for what is not finite."""
    scaled = tl.minimum(tl.maximum(value * factor, -limit), limit)
    return tl.where(tl.abs(value) < float("inf"), scaled, float("nan"))


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def quantize_both_ways(
    x, scale, recorded, low, transposed, rows, groups, width: tl.constexpr, limit: tl.constexpr, tile: tl.constexpr,
    multiple: tl.constexpr,
):  # fmt: skip
    """Cast a tile of x / scale and its transpose, with zeros after the last row; record its largest magnitude.

    The number of written rows is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    stored_rows = groups * multiple
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    stored = (row < stored_rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)
    if recorded is not None:
        record_largest(recorded, value)
    small = narrowed(value, 1.0 / tl.load(scale), limit).to(low.dtype.element_ty)
    tl.store(low + at, small, mask=stored)
    there = transposed + column.to(tl.int64)[:, None] * stored_rows + row[None, :]
    tl.store(there, tl.trans(small), mask=(column < width)[:, None] & (row < stored_rows)[None, :])


def cast_both_ways(
    x: Tensor, dtype: torch.dtype, scale: Tensor, record: Tensor | None, multiple: int = 16
) -> tuple[Tensor, Tensor]:
    """Return x / scale [T', C] in FP8 and its transpose [C, T'].

    Args:
        x: [T, C].
        dtype: torch.float8_e4m3fn or torch.float8_e5m2; larger numbers saturate.
        scale: float32 scalar.
        record: float32 scalar, at least 0, raised to the largest magnitude of x; None for none.
        multiple: T' is T rounded up to a multiple of it; added rows are 0.
    """
    x = x.contiguous()
    rows, width = x.shape
    stored = -(-rows // multiple) * multiple
    low = torch.empty(stored, width, dtype=dtype, device=x.device)
    transposed = torch.empty(width, stored, dtype=dtype, device=x.device)
    launch(
        quantize_both_ways, (-(-stored // _TILE), -(-width // _TILE)), x, scale, bits(record), low, transposed, rows,
        stored // multiple, width=width, limit=torch.finfo(dtype).max, tile=_TILE, multiple=multiple, warps=_WARPS,
    )  # fmt: skip
    return low, transposed


def bits(record: Tensor | None) -> Tensor | None:
    """Return a float32 scalar as the integer that `record_largest` compares."""
    return None if record is None else record.view(torch.int32)
