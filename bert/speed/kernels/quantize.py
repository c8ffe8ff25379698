"""Casts to FP8, together with the transpose that the other GEMM of a layer reads, and the largest magnitude.

One pass: 2 bytes per element are read, and 1 byte each is written for the result and the transpose. The scale is known
before (bert.speed.fp8).

Shapes: T rows, C columns.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert.speed.fp8 import MULTIPLE, Cast, Quantized
from bert.speed.kernels import launch
from bert.speed.kernels.optimizers import sent
from common.errors import UsageError

_TILE, _COLUMNS, _WARPS = 64, 64, 2
# Rows of a word of 32 bits in the transpose. The words are made by instructions of their own: bytes that are taken out
# of what is stored in rows were garbage on an H100, with Triton 3.6 and CUDA 12.8's assembler, which it brings (see
# also triton-lang/triton#11111).
IN_WORD = tl.constexpr(4)
_PACK = """{
.reg .b16 low, high;
cvt.rn.satfinite.%sx2.f32 low, $2, $1;
cvt.rn.satfinite.%sx2.f32 high, $4, $3;
mov.b32 $0, {low, high};
}"""
_E4M3, _E5M2 = tl.constexpr(_PACK % ("e4m3", "e4m3")), tl.constexpr(_PACK % ("e5m2", "e5m2"))
_CHECKED = set[tuple[str, torch.dtype]]()
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # Triton's interpreter knows no instructions


@triton.jit
def magnitude(value):
    """Return magnitudes as the bits of a float32, whose order is the same; NaN is larger than any number."""
    return tl.abs(value).to(tl.int32, bitcast=True)


@triton.jit
def record_largest(recorded, found):
    """Raise a float32 in memory to the largest of `magnitudes`, the same one whatever the order of programs."""
    recorded = recorded.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.atomic_max(recorded, tl.max(tl.max(found, 1), 0), sem="relaxed")


@triton.jit
def narrowed(value, factor, limit: tl.constexpr):
    """Return value x factor within the range of a format, NaN for what is not finite."""
    scaled = tl.minimum(tl.maximum(value * factor, -limit), limit)
    return tl.where(tl.abs(value) < float("inf"), scaled, float("nan"))


@triton.jit
def take_rows(x, row, column, rows, width):
    """Return rows of x [rows, width] in float32, and zeros after the last one."""
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    return tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_rows(value, factor, low, row, column, stored_rows, width, limit: tl.constexpr):
    """Store rows of value x factor in FP8, up to the row `stored_rows`; return them in float32."""
    value = narrowed(value, factor, limit)
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    here = (row < stored_rows)[:, None] & (column < width)[None, :]
    tl.store(low + at, value.to(low.dtype.element_ty), mask=here)
    return value


@triton.jit
def byte_of(value, form: tl.constexpr):
    """Return a number in FP8 as an integer."""
    return value.to(form).to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def words_of(first, second, third, fourth, form: tl.constexpr):
    """Return four numbers in FP8 as one integer of 32 bits, the first in its lowest byte, element by element."""
    pack: tl.constexpr = _E4M3 if form == tl.float8e4nv else _E5M2
    if _INTERPRETED:
        word = byte_of(first, form) | (byte_of(second, form) << 8)
        word |= (byte_of(third, form) << 16) | (byte_of(fourth, form) << 24)
    else:
        given = [first, second, third, fourth]
        word = tl.inline_asm_elementwise(pack, "=r,f,f,f,f", given, dtype=tl.int32, is_pure=True, pack=1)
    return word


@triton.jit
def normal(x):
    """Return the cumulative normal distribution, 0.5 (1 + erf(x / sqrt(2))), and its density, from one exponential.

    Formula 7.1.26 of Abramowitz and Stegun 1964, whose error is at most 7.5e-8. The library's erf takes more
    instructions than a GPU has time for while it waits for memory.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = 1.061405429 * t - 1.453152027
    tail = tail * t + 1.421413741
    tail = tail * t - 0.284496736
    tail = (tail * t + 0.254829592) * t * (0.5 * bell)
    return tl.where(x > 0, 1.0 - tail, tail), 0.3989422804014327 * bell


@triton.jit
def gelu_of(x):
    """Return GELU(x)."""
    below, _ = normal(x)
    return x * below


@triton.jit
def slope_of(x):
    """Return the derivative of GELU at x."""
    below, density = normal(x)
    return below + x * density


@triton.jit
def taken(x, offset, grad, row, column, rows, width):
    """Return rows of x, of GELU(x + offset), or with `grad` of the gradient of its input; zeros after the last one."""
    value = take_rows(x, row, column, rows, width)
    if offset is not None and grad is None:
        value = tl.where((row < rows)[:, None], gelu_of(value + offset[None, :]), 0.0)
    elif offset is not None:
        value = take_rows(grad, row, column, rows, width) * slope_of(value + offset[None, :])
    return value


@triton.jit
def cast_rows(
    x, offset, grad, scale, recorded, low, transposed, word, column, rows, groups, width, limit: tl.constexpr,
    multiple: tl.constexpr,
):  # fmt: skip
    """Store what is `taken`, divided by scale, in FP8, and its transpose, whose words hold four rows each.

    A word has the rows 4 x word and the next three; their sums and largest `magnitude` are returned, and that recorded.
    The number of rows that are stored is given in groups of `multiple` rows, so that the compiler knows its divisor.
    """
    row = word * IN_WORD
    first = taken(x, offset, grad, row, column, rows, width)
    second = taken(x, offset, grad, row + 1, column, rows, width)
    third = taken(x, offset, grad, row + 2, column, rows, width)
    fourth = taken(x, offset, grad, row + 3, column, rows, width)
    total = (first + second) + (third + fourth)
    found = tl.maximum(magnitude(first), magnitude(second))
    found = tl.maximum(found, tl.maximum(magnitude(third), magnitude(fourth)))
    if recorded is not None:
        record_largest(recorded, found)
    factor, stored_rows, words = 1.0 / tl.load(scale), groups * multiple, groups * (multiple // IN_WORD)
    first = store_rows(first, factor, low, row, column, stored_rows, width, limit)
    second = store_rows(second, factor, low, row + 1, column, stored_rows, width, limit)
    third = store_rows(third, factor, low, row + 2, column, stored_rows, width, limit)
    fourth = store_rows(fourth, factor, low, row + 3, column, stored_rows, width, limit)
    made = words_of(first, second, third, fourth, low.dtype.element_ty)
    at = column.to(tl.int64)[:, None] * words + word[None, :]
    transposed = transposed.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(transposed + at, tl.trans(made), mask=(column < width)[:, None] & (word < words)[None, :])
    return total, found


@triton.jit
def load_bytes(low, row, column, width: tl.constexpr):
    """Return the bytes of rows in FP8 as integers."""
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    return tl.load(low + at, mask=(column < width)[None, :]).to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def transpose_group(
    low, transposed, group, groups, width: tl.constexpr, columns: tl.constexpr, multiple: tl.constexpr
):  # fmt: skip
    """Store the transpose of a group of `multiple` rows of low [T', C], which this program has stored.

    They still are in cache, and a kernel that works on whole rows need not hold so many of them in registers.
    """
    tl.debug_barrier()  # all threads have stored their part
    each: tl.constexpr = multiple // IN_WORD
    transposed = transposed.to(tl.pointer_type(tl.int32), bitcast=True)
    word = group * each + tl.arange(0, each)
    row = word * IN_WORD
    for start in tl.range(0, width, columns):
        column = start + tl.arange(0, columns)
        bytes = load_bytes(low, row, column, width)
        bytes |= load_bytes(low, row + 1, column, width) << 8
        bytes |= load_bytes(low, row + 2, column, width) << 16
        bytes |= load_bytes(low, row + 3, column, width) << 24
        at = column.to(tl.int64)[:, None] * (groups * each) + word[None, :]
        tl.store(transposed + at, tl.trans(bytes), mask=(column < width)[:, None])


@triton.jit(do_not_specialize=["rows", "groups"], do_not_specialize_on_alignment=["scale", "recorded"])
def quantize_both_ways(
    x, scale, recorded, low, transposed, rows, groups, width: tl.constexpr, columns: tl.constexpr,
    limit: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Cast a tile of x / scale and its transpose, with zeros after the last row; record its largest magnitude."""
    word = tl.program_id(0) * (tile // IN_WORD) + tl.arange(0, tile // IN_WORD)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    cast_rows(
        x, None, None, scale, recorded, low, transposed, word, column, rows, groups, width, limit, multiple
    )  # fmt: skip


@triton.jit
def quantize_weights(
    table, form: tl.constexpr, columns: tl.constexpr, limit: tl.constexpr, tile: tl.constexpr, multiple: tl.constexpr
):
    """Do the same to a tile of one of many bf16 matrices [16 G, 16 C].

    The table [matrices, 7] has addresses of x, scale, record, rows and columns, then G and C.
    """
    row = table + tl.program_id(1) * 7
    groups, width = tl.load(row + 5).to(tl.int32), tl.load(row + 6).to(tl.int32) * multiple
    down = tl.cdiv(groups * multiple, tile)
    word = tl.program_id(0) % down * (tile // IN_WORD) + tl.arange(0, tile // IN_WORD)
    column = tl.program_id(0) // down * columns + tl.arange(0, columns)
    if tl.program_id(0) // down * columns < width:
        x = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.bfloat16)), 16)
        scale = tl.load(row + 1).to(tl.pointer_type(tl.float32))
        recorded = tl.load(row + 2).to(tl.pointer_type(tl.float32))
        low = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(form)), 16)
        transposed = tl.multiple_of(tl.load(row + 4).to(tl.pointer_type(form)), 16)
        cast_rows(
            x, None, None, scale, recorded, low, transposed, word, column, groups * multiple, groups, width, limit,
            multiple,
        )  # fmt: skip


class Target(NamedTuple):
    """Memory for T rows of C columns in FP8, and what kernels that write them have in common."""

    low: Quantized
    arguments: tuple[Tensor | None, ...]
    """Scale, record, rows and columns."""
    groups: int
    """T' / 16."""
    constants: dict[str, int | float]


def target(rows: int, width: int, into: Cast) -> Target:
    """Return memory for a tensor [rows, width] in FP8."""
    groups, device = -(-rows // MULTIPLE), into.scale.device
    low = torch.empty(groups * MULTIPLE, width, dtype=into.dtype, device=device)
    transposed = torch.empty(width, groups * MULTIPLE, dtype=into.dtype, device=device)
    constants = {"limit": torch.finfo(into.dtype).max, "multiple": MULTIPLE}
    arguments = into.scale, into.record, low, transposed
    return Target(Quantized(low, transposed, into.scale), arguments, groups, constants)


def cast_both_ways(x: Tensor, into: Cast) -> Quantized:
    """Return x [T, C] in FP8."""
    x = x.contiguous()
    rows, width = x.shape
    made = target(rows, width, into)
    launch(
        quantize_both_ways, (-(-len(made.low.rows) // _TILE), -(-width // _COLUMNS)), x, *made.arguments, rows,
        made.groups, width=width, columns=_COLUMNS, tile=_TILE, warps=_WARPS, **made.constants,
    )  # fmt: skip
    return checked(quantize_both_ways, made.low)


def casts_together(pairs: Sequence[tuple[Tensor, Cast]]) -> Callable[[], list[Quantized]]:
    """Return a function that casts bf16 matrices to E4M3 in one launch, each time into the same memory.

    Their sizes are multiples of 16; they and their scales stay where they are.
    """
    made = [target(len(values), values.shape[1], into) for values, into in pairs]
    rows, tiles = list[int](), 0
    for (values, _), one in zip(pairs, made, strict=True):
        rows += [each.data_ptr() for each in (values, *one.arguments) if each is not None]
        rows += [one.groups, values.shape[1] // MULTIPLE]
        tiles = max(tiles, -(-len(values) // _TILE) * -(-values.shape[1] // _COLUMNS))
    table = sent(torch.tensor(rows), pairs[0][0].device)
    how = {"form": tl.float8e4nv, "columns": _COLUMNS, "tile": _TILE, "warps": _WARPS, **made[0].constants}

    def cast() -> list[Quantized]:
        launch(quantize_weights, (tiles, len(made)), table, **how)
        return [checked(quantize_weights, one.low) for one in made]

    return cast


def checked(kernel: Any, low: Quantized) -> Quantized:
    """Return what a kernel has written; of its first result in a process columns and rows are compared.

    Raises:
        UsageError: they have other numbers.
    """
    what = kernel.fn.__name__, low.rows.dtype
    if what not in _CHECKED and not low.rows.is_meta:
        _CHECKED.add(what)
        if not torch.equal(low.columns.view(torch.uint8), low.rows.view(torch.uint8).t()):
            problem = f"the kernel {what[0]} writes wrong numbers with this GPU and Triton: use precision bf16"
            raise UsageError("device-unsupported", problem)
    return low
