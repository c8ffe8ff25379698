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


@triton.jit
def store_both_ways(value, scale, low, transposed, row, column, stored_rows, width: tl.constexpr, limit: tl.constexpr):
    """Store a tile of value / scale and its transpose in FP8, up to the row `stored_rows`."""
    small = narrowed(value, 1.0 / tl.load(scale), limit).to(low.dtype.element_ty)
    inside, stored = column < width, row < stored_rows
    tl.store(low + row.to(tl.int64)[:, None] * width + column[None, :], small, mask=stored[:, None] & inside[None, :])
    there = transposed + column.to(tl.int64)[:, None] * stored_rows + row[None, :]
    tl.store(there, tl.trans(small), mask=inside[:, None] & stored[None, :])


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def quantize_both_ways(
    x, scale, recorded, low, transposed, rows, groups, width: tl.constexpr, limit: tl.constexpr, tile: tl.constexpr,
    multiple: tl.constexpr,
):  # fmt: skip
    """Cast a tile of x / scale and its transpose, with zeros after the last row; record its largest magnitude.

    The number of written rows is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)
    if recorded is not None:
        record_largest(recorded, value)
    store_both_ways(value, scale, low, transposed, row, column, groups * multiple, width, limit)


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
    low, transposed = empty_both_ways(stored, width, dtype, x.device)
    launch(
        quantize_both_ways, (-(-stored // _TILE), -(-width // _TILE)), x, scale, bits(record), low, transposed, rows,
        stored // multiple, width=width, limit=torch.finfo(dtype).max, tile=_TILE, multiple=multiple, warps=_WARPS,
    )  # fmt: skip
    return low, transposed


def empty_both_ways(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return memory for a tensor [rows, width] and its transpose."""
    low = torch.empty(rows, width, dtype=dtype, device=device)
    return low, torch.empty(width, rows, dtype=dtype, device=device)


def bits(record: Tensor | None) -> Tensor | None:
    """Return a float32 scalar as the integer that `record_largest` compares."""
    return None if record is None else record.view(torch.int32)
