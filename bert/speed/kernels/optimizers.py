"""AdamW and LAMB over all parameters, in one and three launches, with the kernels before an update.

A table lists addresses. Tensors are cut into chunks of one size, and each program processes one chunk, so the number of
launches does not depend on the number of tensors. A table is uploaded from pinned memory, without a synchronization,
when an address changes; so are hyperparameters, which change with every update.

Accesses have 128 bits where a whole tile lies inside a tensor and all addresses of the tensor are multiples of 16
bytes; elsewhere (the end of a tensor; a part of another one) each thread accesses single elements.

AdamW: Loshchilov and Hutter 2019, algorithm 2. LAMB: You et al. 2020, arXiv 1904.00962, algorithm 2; its first launch
updates the moments and sums the squares of each tensor and of its update, the second divides the two norms, and the
third computes the update again from the moments: it moves as many bytes as storing the update would, without memory
for it.

Shapes: N tensors, G groups of parameters, C chunks.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert.speed.kernels import launch

# Elements of a chunk and of a tile, and warps of a program.
TILING = {"chunk": 16384, "tile": 2048, "warps": 8}
_BLOCK, _FEW_WARPS = 1024, 4
_ALIGNMENT = 16

# Columns of a row, and numbers of a group.
WIDTH, SETTINGS = tl.constexpr(10), tl.constexpr(7)
PARAMETER, GRADIENT, FIRST, SECOND, COPY = (tl.constexpr(column) for column in range(5))
SIZE, KIND, GROUP, FIRST_CHUNK, STEP = (tl.constexpr(column) for column in range(5, 10))
RATE, BETA1, BETA2, LOG_BETA1, LOG_BETA2, EPS, DECAY = (tl.constexpr(column) for column in range(7))
# Bits of KIND.
_LOW, _UNALIGNED = 1, 2


class Entry(NamedTuple):
    """A parameter and what belongs to it: contiguous tensors of one shape on one device, float32 unless noted."""

    parameter: Tensor
    gradient: Tensor
    """float32 or bf16."""
    first: Tensor
    """First moment."""
    second: Tensor
    """Second moment."""
    copy: Tensor | None
    """bf16, or None."""
    step: Tensor | None
    """Number of updates, a scalar; None where the optimizer has one for all."""


class Table(NamedTuple):
    """What the kernels read, on the device of the parameters."""

    rows: Tensor
    """int64 [N, 10]."""
    settings: Tensor
    """float64 [G, 7]."""
    chunks: Tensor
    """int32 [C, 2]: the tensor, and the number of the chunk in it."""


def rows_of(groups: Sequence[Sequence[Entry]]) -> tuple[Tensor, Tensor] | None:
    """Return rows and chunks of a table of the parameters of each group; None if there are none."""
    rows, sizes = list[int](), list[int]()
    chunks = 0
    for number, entries in enumerate(groups):
        for entry in entries:
            size = entry.parameter.numel()
            addresses = [0 if each is None else each.data_ptr() for each in entry]
            kind = _LOW if entry.gradient.dtype == torch.bfloat16 else 0
            kind += _UNALIGNED if any(address % _ALIGNMENT for address in addresses[:-1]) else 0
            rows += [*addresses[:-1], size, kind, number, chunks, addresses[-1]]
            sizes.append(size)
            chunks += -(-size // TILING["chunk"])
    if not rows:
        return None
    device = next(entries[0].parameter.device for entries in groups if entries)
    return sent(torch.tensor(rows), device).view(-1, WIDTH.value), sent(_chunks(sizes), device)


def settings_of(group: dict[str, Any]) -> list[float]:
    """Return the hyperparameters [7] of a group of parameters as an optimizer has it."""
    logs = (math.log(beta) if beta > 0 else -math.inf for beta in group["betas"])
    return [float(group["lr"]), *group["betas"], *logs, group["eps"], group["weight_decay"]]


def _chunks(sizes: list[int]) -> Tensor:
    counts = torch.tensor([-(-size // TILING["chunk"]) for size in sizes])
    tensor = torch.repeat_interleave(counts)
    number = torch.arange(len(tensor)) - (counts.cumsum(0) - counts)[tensor]
    return torch.stack([tensor, number], 1).int()


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return the values on the device; PyTorch keeps the pinned memory until they have arrived."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


@triton.jit
def place(rows, chunks, chunk: tl.constexpr):
    """Return the tensor of this program, its row, and the first and the last element + 1 of its chunk."""
    tensor = tl.load(chunks + 2 * tl.program_id(0))
    row = rows + tensor * WIDTH
    begin = tl.load(chunks + 2 * tl.program_id(0) + 1).to(tl.int64) * chunk
    return tensor, row, begin, tl.minimum(begin + chunk, tl.load(row + SIZE))


@triton.jit
def is_wide(row, start, end, tile: tl.constexpr):
    """Return whether a tile can be accessed with 128 bits: it is whole, and all addresses are aligned."""
    return (start + tile <= end) & (tl.load(row + KIND) < 2)


@triton.jit
def take(address, dtype: tl.constexpr, start, end, tile: tl.constexpr, wide: tl.constexpr):
    """Return the elements of a tile in float32."""
    first = address.to(tl.pointer_type(dtype)) + start
    element = tl.arange(0, tile)
    if wide:
        values = tl.load(tl.multiple_of(first, 16) + element)
    else:
        values = tl.load(first + element, mask=start + element < end, other=0.0)
    return values.to(tl.float32)


@triton.jit
def put(address, dtype: tl.constexpr, start, end, values, tile: tl.constexpr, wide: tl.constexpr):
    """Store the elements of a tile."""
    first = address.to(tl.pointer_type(dtype)) + start
    element = tl.arange(0, tile)
    if wide:
        tl.store(tl.multiple_of(first, 16) + element, values.to(dtype))
    else:
        tl.store(first + element, values.to(dtype), mask=start + element < end)


@triton.jit
def take_gradient(row, start, end, tile: tl.constexpr, wide: tl.constexpr):
    """Return the gradient of a tile in float32."""
    address = tl.load(row + GRADIENT)
    if tl.load(row + KIND) % 2 == 1:
        values = take(address, tl.bfloat16, start, end, tile, wide)
    else:
        values = take(address, tl.float32, start, end, tile, wide)
    return values


@triton.jit
def advance_moments(row, settings, control, start, end, tile: tl.constexpr, wide: tl.constexpr):
    """Update both moments of a tile with its gradient, which is multiplied by the first number of control."""
    gradient = take_gradient(row, start, end, tile, wide) * tl.load(control)
    of_group = settings + tl.load(row + GROUP) * SETTINGS
    beta1, beta2 = tl.load(of_group + BETA1), tl.load(of_group + BETA2)
    first = take(tl.load(row + FIRST), tl.float32, start, end, tile, wide) * beta1.to(tl.float32)
    first += (1 - beta1).to(tl.float32) * gradient
    second = take(tl.load(row + SECOND), tl.float32, start, end, tile, wide) * beta2.to(tl.float32)
    second += (1 - beta2).to(tl.float32) * gradient * gradient
    put(tl.load(row + FIRST), tl.float32, start, end, first, tile, wide)
    put(tl.load(row + SECOND), tl.float32, start, end, second, tile, wide)
    return first, second


@triton.jit
def direction(first, second, tensor, row, settings, corrections):
    """Return m^ / (sqrt(v^) + eps) of both moments, with m^ and v^ corrected for their start at 0."""
    eps = tl.load(settings + tl.load(row + GROUP) * SETTINGS + EPS).to(tl.float32)
    root = tl.sqrt_rn(second) * tl.load(corrections + 2 * tensor + 1)
    return tl.div_rn(first * tl.load(corrections + 2 * tensor), root + eps)


@triton.jit
def put_parameter(row, start, end, values, tile: tl.constexpr, wide: tl.constexpr):
    """Store a tile of a parameter, and of its copy if it has one."""
    put(tl.load(row + PARAMETER), tl.float32, start, end, values, tile, wide)
    copy = tl.load(row + COPY)
    if copy != 0:
        put(copy, tl.bfloat16, start, end, values, tile, wide)


@triton.jit
def optimizer_squares(rows, chunks, sums, chunk: tl.constexpr, tile: tl.constexpr):
    """Store the sum of squares of a chunk of a gradient, and 1 if a number in it is not finite, otherwise 0."""
    _, row, begin, end = place(rows, chunks, chunk)
    squares, bad = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for start in tl.range(begin, end, tile):
        if is_wide(row, start, end, tile):
            values = take_gradient(row, start, end, tile, True)
        else:
            values = take_gradient(row, start, end, tile, False)
        squares += values * values
        bad = tl.where(tl.abs(values) < float("inf"), bad, 1.0)
    tl.store(sums + 2 * tl.program_id(0), tl.sum(squares, 0))
    tl.store(sums + 2 * tl.program_id(0) + 1, tl.max(bad, 0))


@triton.jit(do_not_specialize=["tensors", "parts"])
def optimizer_prepare(
    rows, settings, sums, scale, found, count, control, corrections, tensors, parts, max_norm, room,
    block: tl.constexpr,
):  # fmt: skip
    """Compute what an update needs, in one program.

    Control: the factor of the gradients (1 / scale, and less where their norm is above max_norm - room), and whether
    the update is skipped. Corrections [N, 2]: 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t). Counts each tensor's update
    t, unless `count` holds the one number of all.
    """
    factor, skipped = 1.0, 0.0
    if scale is not None:
        factor = 1.0 / tl.load(scale)
    if found is not None:
        skipped = tl.where(tl.load(found) == 0, 0.0, 1.0)
    if max_norm is not None:
        total = tl.zeros((block,), tl.float64)
        for start in tl.range(0, parts, block):
            part = start + tl.arange(0, block)
            total += tl.load(sums + 2 * part, mask=part < parts, other=0.0).to(tl.float64)
        norm = tl.sqrt(tl.sum(total, 0)).to(tl.float32) * factor + room
        # NaN is not below: it clips, as in clip_grad_norm_.
        factor *= tl.where(norm <= max_norm, 1.0, max_norm / norm)
    tl.store(control, factor)
    tl.store(control + 1, skipped)
    for start in tl.range(0, tensors, block):
        tensor = start + tl.arange(0, block)
        here = tensor < tensors
        row = rows + tensor * WIDTH
        if count is not None:
            step = tl.load(count) + tl.zeros((block,), tl.float32)
        else:
            counter = tl.load(row + STEP, mask=here, other=0).to(tl.pointer_type(tl.float32))
            step = tl.load(counter, mask=here, other=1.0) + 1.0 - skipped
            tl.store(counter, step, mask=here)
        group = settings + tl.load(row + GROUP, mask=here, other=0) * SETTINGS
        step = tl.maximum(step, 1.0).to(tl.float64)  # 0 only where the update is skipped
        left1 = 1.0 - tl.exp(step * tl.load(group + LOG_BETA1))
        left2 = 1.0 - tl.exp(step * tl.load(group + LOG_BETA2))
        tl.store(corrections + 2 * tensor, (1.0 / left1).to(tl.float32), mask=here)
        tl.store(corrections + 2 * tensor + 1, (1.0 / tl.sqrt(left2)).to(tl.float32), mask=here)


def sum_squares(table: Table) -> Tensor:
    """Return float32 [C, 2]: of each chunk of the gradients the sum of squares, and 1 where one is not finite."""
    sums = torch.empty(len(table.chunks), 2, device=table.rows.device)
    launch(optimizer_squares, (len(table.chunks),), table.rows, table.chunks, sums, **TILING)
    return sums


def prepare(
    table: Table,
    sums: Tensor | None,
    *,
    max_norm: float | None = None,
    room: float = 0.0,
    scale: Tensor | None = None,
    found: Tensor | None = None,
    count: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Count the update; return its control and corrections (`optimizer_prepare`), which all its kernels read.

    Args:
        table: of the parameters.
        sums: sums of squares, needed with `max_norm`.
        max_norm: norm of the unscaled gradients above which they are clipped to it; None does not clip.
        room: added to the norm.
        scale: what the gradients are divided by, a float32 scalar; None for 1.
        found: not 0 to update nothing, a float32 scalar; None always updates.
        count: number of this update, float32 [1]; None counts the updates of each tensor in its own scalar.
    """
    device, tensors = table.rows.device, len(table.rows)
    update = torch.empty(2, device=device), torch.empty(tensors, 2, device=device)
    launch(
        optimizer_prepare, (1,), table.rows, table.settings, sums, scale, found, count, *update, tensors,
        len(table.chunks), max_norm, room, block=_BLOCK, warps=_FEW_WARPS,
    )  # fmt: skip
    return update


@triton.jit
def update_tile(
    tensor, row, settings, control, corrections, sums, ratios, start, end, tile: tl.constexpr, wide: tl.constexpr
):
    """Update a tile of a parameter as `optimizer_update` does; return the parameter and LAMB's update of it."""
    of_group = settings + tl.load(row + GROUP) * SETTINGS
    rate, decay = tl.load(of_group + RATE), tl.load(of_group + DECAY)
    if ratios is None:
        first, second = advance_moments(row, settings, control, start, end, tile, wide)
    else:
        first = take(tl.load(row + FIRST), tl.float32, start, end, tile, wide)
        second = take(tl.load(row + SECOND), tl.float32, start, end, tile, wide)
    values = take(tl.load(row + PARAMETER), tl.float32, start, end, tile, wide)
    change = direction(first, second, tensor, row, settings, corrections)
    if sums is None and ratios is None:
        values *= (1 - rate * decay).to(tl.float32)
        put_parameter(row, start, end, values - rate.to(tl.float32) * change, tile, wide)
    else:
        change += decay.to(tl.float32) * values
    if ratios is not None:
        length = rate.to(tl.float32) * tl.load(ratios + tensor)
        put_parameter(row, start, end, values - length * change, tile, wide)
    return values, change


@triton.jit
def optimizer_update(
    rows, settings, chunks, control, corrections, sums, ratios, chunk: tl.constexpr, tile: tl.constexpr
):
    """Update a chunk of a parameter, its moments and its copy by AdamW, unless control says to skip it.

    With `sums` only the moments are updated, and the sums of squares of the parameter and of LAMB's update are stored;
    with `ratios` this update is subtracted, times the tensor's ratio.
    """
    if tl.load(control + 1) != 0:
        return
    tensor, row, begin, end = place(rows, chunks, chunk)
    of_values, of_update = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for start in tl.range(begin, end, tile):
        if is_wide(row, start, end, tile):
            values, change = update_tile(
                tensor, row, settings, control, corrections, sums, ratios, start, end, tile, True
            )
        else:
            values, change = update_tile(
                tensor, row, settings, control, corrections, sums, ratios, start, end, tile, False
            )
        if sums is not None:  # past the end all inputs are 0, and so is the update
            of_values += values * values
            of_update += change * change
    if sums is not None:
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


def update(table: Table, prepared: tuple[Tensor, Tensor], trusts: bool = False) -> None:
    """Update all parameters of a table by AdamW, or by LAMB, which `trusts` ratios.

    They move 28 and 40 bytes per parameter with a float32 gradient, and 2 for a copy.
    """
    device, tensors, chunks = table.rows.device, len(table.rows), len(table.chunks)
    rows, settings, sums, ratios = table.rows, table.settings, None, None
    if trusts:
        sums, ratios = torch.empty(chunks, 2, device=device), torch.empty(tensors, device=device)
        launch(optimizer_update, (chunks,), rows, settings, table.chunks, *prepared, sums, None, **TILING)
        launch(
            lamb_trust, (tensors,), rows, settings, prepared[0], sums, ratios, chunk=TILING["chunk"], block=_BLOCK,
            warps=_FEW_WARPS,
        )  # fmt: skip
    launch(optimizer_update, (chunks,), rows, settings, table.chunks, *prepared, None, ratios, **TILING)
