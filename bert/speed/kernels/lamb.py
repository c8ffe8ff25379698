"""LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2): all parameters in three launches.

The first updates the moments and sums the squares of each tensor and of its update. The second divides the two norms.
The third computes the update again from the moments: it moves as many bytes as storing the update would, without memory
for it.

Shapes: N tensors, C chunks.
"""

import torch
import triton
import triton.language as tl

from bert.speed.kernels import launch
from bert.speed.kernels.multi_tensor import (
    DECAY,
    FIRST,
    FIRST_CHUNK,
    GROUP,
    PARAMETER,
    RATE,
    SECOND,
    SETTINGS,
    SIZE,
    TILING,
    WIDTH,
    Table,
    Update,
    advance_moments,
    direction,
    is_wide,
    place,
    put_parameter,
    take,
)  # fmt: skip

_BLOCK, _FEW_WARPS = 1024, 4


@triton.jit
def _decayed(first, second, values, tensor, row, settings, corrections):
    """Return the update m^ / (sqrt(v^) + eps) + decay p."""
    decay = tl.load(settings + tl.load(row + GROUP) * SETTINGS + DECAY).to(tl.float32)
    return direction(first, second, tensor, row, settings, corrections) + decay * values


@triton.jit
def _moments(tensor, row, settings, control, corrections, start, end, tile: tl.constexpr, wide: tl.constexpr):
    first, second = advance_moments(row, settings, control, start, end, tile, wide)
    values = take(tl.load(row + PARAMETER), tl.float32, start, end, tile, wide)
    return values, _decayed(first, second, values, tensor, row, settings, corrections)


@triton.jit
def lamb_moments(rows, settings, chunks, control, corrections, sums, chunk: tl.constexpr, tile: tl.constexpr):
    """Update the moments of a chunk; store the sums of squares of the parameter and of its update."""
    if tl.load(control + 1) != 0:
        return
    tensor, row, begin, end = place(rows, chunks, chunk)
    of_values, of_update = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for start in tl.range(begin, end, tile):
        if is_wide(row, start, end, tile):
            values, change = _moments(tensor, row, settings, control, corrections, start, end, tile, True)
        else:
            values, change = _moments(tensor, row, settings, control, corrections, start, end, tile, False)
            # Past the end all inputs are 0, and so is the update.
        of_values += values * values
        of_update += change * change
    tl.store(sums + 2 * tl.program_id(0), tl.sum(of_values, 0))
    tl.store(sums + 2 * tl.program_id(0) + 1, tl.sum(of_update, 0))


@triton.jit
def lamb_trust(rows, settings, control, sums, ratios, chunk: tl.constexpr, block: tl.constexpr):
    """Store the trust ratio of a tensor: ||p|| / ||u|| if it decays and neither is 0, otherwise 1."""
    if tl.load(control + 1) != 0:
        return
    row = rows + tl.program_id(0) * WIDTH
    first = tl.load(row + FIRST_CHUNK)
    end = first + tl.cdiv(tl.load(row + SIZE), chunk)
    of_values, of_update = tl.zeros((block,), tl.float64), tl.zeros((block,), tl.float64)
    for start in tl.range(first, end, block):
        part = start + tl.arange(0, block)
        of_values += tl.load(sums + 2 * part, mask=part < end, other=0.0).to(tl.float64)
        of_update += tl.load(sums + 2 * part + 1, mask=part < end, other=0.0).to(tl.float64)
    value, change = tl.sqrt(tl.sum(of_values, 0)), tl.sqrt(tl.sum(of_update, 0))
    decays = tl.load(settings + tl.load(row + GROUP) * SETTINGS + DECAY) != 0
    ratio = tl.where(decays & (value > 0) & (change > 0), value / tl.where(change > 0, change, 1.0), 1.0)
    tl.store(ratios + tl.program_id(0), ratio.to(tl.float32))


@triton.jit
def _apply(tensor, row, settings, corrections, ratios, start, end, tile: tl.constexpr, wide: tl.constexpr):
    first = take(tl.load(row + FIRST), tl.float32, start, end, tile, wide)
    second = take(tl.load(row + SECOND), tl.float32, start, end, tile, wide)
    values = take(tl.load(row + PARAMETER), tl.float32, start, end, tile, wide)
    rate = tl.load(settings + tl.load(row + GROUP) * SETTINGS + RATE).to(tl.float32) * tl.load(ratios + tensor)
    values -= rate * _decayed(first, second, values, tensor, row, settings, corrections)
    put_parameter(row, start, end, values, tile, wide)


@triton.jit
def lamb_apply(rows, settings, chunks, control, corrections, ratios, chunk: tl.constexpr, tile: tl.constexpr):
    """Subtract the update of a chunk from the parameter, and write its copy."""
    if tl.load(control + 1) != 0:
        return
    tensor, row, begin, end = place(rows, chunks, chunk)
    for start in tl.range(begin, end, tile):
        if is_wide(row, start, end, tile):
            _apply(tensor, row, settings, corrections, ratios, start, end, tile, True)
        else:
            _apply(tensor, row, settings, corrections, ratios, start, end, tile, False)


def update(table: Table, prepared: Update) -> None:
    """Update all parameters of a table: 40 bytes per parameter with a float32 gradient, and 2 for a copy."""
    device, tensors, parts = table.rows.device, len(table.rows), len(table.chunks)
    sums, ratios = torch.empty(parts, 2, device=device), torch.empty(tensors, device=device)
    launch(lamb_moments, (parts,), table.rows, table.settings, table.chunks, *prepared, sums, **TILING)
    launch(
        lamb_trust, (tensors,), table.rows, table.settings, prepared.control, sums, ratios, chunk=TILING["chunk"],
        block=_BLOCK, warps=_FEW_WARPS,
    )  # fmt: skip
    launch(lamb_apply, (parts,), table.rows, table.settings, table.chunks, *prepared, ratios, **TILING)
