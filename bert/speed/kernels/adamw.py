"""AdamW (Loshchilov and Hutter 2019, algorithm 2): all parameters in one launch."""

import triton
import triton.language as tl

from bert.speed.kernels import launch
from bert.speed.kernels.multi_tensor import (
    DECAY,
    GROUP,
    PARAMETER,
    RATE,
    SETTINGS,
    TILING,
    Table,
    Update,
    advance_moments,
    direction,
    is_wide,
    place,
    put_parameter,
    take,
)  # fmt: skip


@triton.jit
def _step(tensor, row, settings, control, corrections, start, end, tile: tl.constexpr, wide: tl.constexpr):
    first, second = advance_moments(row, settings, control, start, end, tile, wide)
    of_group = settings + tl.load(row + GROUP) * SETTINGS
    rate = tl.load(of_group + RATE)
    values = take(tl.load(row + PARAMETER), tl.float32, start, end, tile, wide)
    values *= (1 - rate * tl.load(of_group + DECAY)).to(tl.float32)
    values -= rate.to(tl.float32) * direction(first, second, tensor, row, settings, corrections)
    put_parameter(row, start, end, values, tile, wide)


@triton.jit
def adamw_update(rows, settings, chunks, control, corrections, chunk: tl.constexpr, tile: tl.constexpr):
    """Update a chunk of a parameter, its moments and its copy, unless control says to skip it."""
    if tl.load(control + 1) != 0:
        return
    tensor, row, begin, end = place(rows, chunks, chunk)
    for start in tl.range(begin, end, tile):
        if is_wide(row, start, end, tile):
            _step(tensor, row, settings, control, corrections, start, end, tile, True)
        else:
            _step(tensor, row, settings, control, corrections, start, end, tile, False)


def update(table: Table, prepared: Update) -> None:
    """Update all parameters of a table: 28 bytes per parameter with a float32 gradient, and 2 for a copy."""
    launch(adamw_update, (len(table.chunks),), table.rows, table.settings, table.chunks, *prepared, **TILING)
