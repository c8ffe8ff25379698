"""Casts to FP8, with the transpose that the other GEMM of a layer reads, and the largest magnitude.

The tensor is read once for the cast: 2 bytes an element, and 1 is written each way. The scale of the numbers at hand
needs their largest magnitude first, which reads them too: 6 bytes an element. The magnitude that the cast itself
gives is for scales of the step before (delayed scaling): 4 bytes.

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
    x, scale, low, transposed, largest, rows, groups, width: tl.constexpr, limit: tl.constexpr, tile: tl.constexpr,
    multiple: tl.constexpr,
):  # fmt: skip
    """Cast a tile of x / scale both ways, zeros behind its last row; `largest` [P] is the tile's largest magnitude.

    Rows that are written are given in groups, so that the compiler knows what divides them.
    """
    stored_rows = groups * multiple
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    stored = (row < stored_rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)
    number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(largest + number, tl.max(tl.max(tl.abs(value), 1), 0))
    # Beyond the format's largest number a cast to it is undefined: a scale of the step before may be too small.
    value = tl.minimum(tl.maximum(value / tl.load(scale), -limit), limit)
    small = value.to(low.dtype.element_ty)
    tl.store(low + at, small, mask=stored)
    there = transposed + column.to(tl.int64)[:, None] * stored_rows + row[None, :]
    tl.store(there, tl.trans(small), mask=(column < width)[:, None] & (row < stored_rows)[None, :])


def cast_both_ways(x: Tensor, dtype: torch.dtype, scale: Tensor, multiple: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Return x / scale [T', C] in FP8, its transpose [C, T'], and the largest magnitude of x in each tile, float32 [P].

    Args:
        x: [T, C]; T' is T rounded up to a multiple, and rows that x has not are 0.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2; numbers that it cannot hold become its largest.
        scale: float32 scalar.
        multiple: of rows.
    """
    x = x.contiguous()
    rows, width = x.shape
    stored = -(-rows // multiple) * multiple
    low = torch.empty(stored, width, dtype=dtype, device=x.device)
    transposed = torch.empty(width, stored, dtype=dtype, device=x.device)
    grid = (-(-stored // _TILE), -(-width // _TILE))
    largest = torch.empty(grid[0] * grid[1], device=x.device)
    launch(
        quantize_both_ways, grid, x, scale, low, transposed, largest, rows, stored // multiple, width=width,
        limit=torch.finfo(dtype).max, multiple=multiple, tile=_TILE, warps=_WARPS,
    )  # fmt: skip
    return low, transposed, largest
