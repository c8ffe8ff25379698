"""Casts to FP8, together with the transpose that the other GEMM of a layer reads, and the largest magnitude.

The cast reads the tensor once, 2 bytes per element, and writes 1 byte each for the result and the transpose. Scaling by
the current largest magnitude reads it once before: 6 bytes per element. The magnitudes that the cast returns are for
scales from earlier steps (delayed scaling): 4 bytes.

Shapes: T rows, C columns, P programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert.speed.kernels import launch

_TILE, _WARPS = 64, 4


@triton.jit(do_not_specialize=["rows", "groups"])
def quantize_both_ways(
    x, given, low, transposed, scale, largest, rows, groups, width: tl.constexpr, limit: tl.constexpr,
    tiny: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Cast a tile of x / scale and its transpose, with zeros after the last row; store its largest magnitude.

    The scale maps the given magnitude to the format's largest number. It is NaN for NaN, and so are the GEMMs of both.

    The number of written rows is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    stored_rows = groups * multiple
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    stored = (row < stored_rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)
    number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(largest + number, tl.max(tl.max(tl.abs(value), 1), 0))
    divisor = tl.maximum(tl.load(given).to(tl.float32) / limit, tiny, propagate_nan=tl.PropagateNan.ALL)
    tl.store(scale, divisor, mask=number == 0)
    # A magnitude from an earlier step may be too small, and casts beyond the format's range are undefined.
    value = tl.clamp(value / divisor, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    small = value.to(low.dtype.element_ty)
    tl.store(low + at, small, mask=stored)
    there = transposed + column.to(tl.int64)[:, None] * stored_rows + row[None, :]
    tl.store(there, tl.trans(small), mask=(column < width)[:, None] & (row < stored_rows)[None, :])


def cast_both_ways(
    x: Tensor, dtype: torch.dtype, given: Tensor, multiple: int = 16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x / scale [T', C] in FP8, its transpose [C, T'], the scale, and the largest magnitude of each tile [P].

    Args:
        x: [T, C].
        dtype: torch.float8_e4m3fn or torch.float8_e5m2; larger numbers are clamped to its range.
        given: largest magnitude that the format must hold, a scalar.
        multiple: T' is T rounded up to a multiple of it; added rows are 0.
    """
    x = x.contiguous()
    rows, width = x.shape
    stored = -(-rows // multiple) * multiple
    low = torch.empty(stored, width, dtype=dtype, device=x.device)
    transposed = torch.empty(width, stored, dtype=dtype, device=x.device)
    grid = (-(-stored // _TILE), -(-width // _TILE))
    scale, largest = torch.empty((), device=x.device), torch.empty(grid[0] * grid[1], device=x.device)
    launch(
        quantize_both_ways, grid, x, given, low, transposed, scale, largest, rows, stored // multiple, width=width,
        limit=torch.finfo(dtype).max, tiny=torch.finfo(torch.float32).tiny, tile=_TILE, multiple=multiple,
        warps=_WARPS,
    )  # fmt: skip
    return low, transposed, scale, largest
