"""Casts to FP8, together with the transpose that the other GEMM of a layer reads, and the largest magnitude.

One pass: 2 bytes per element are read, and 1 byte each is written for the result and the transpose. The scale is known
before (bert.speed.fp8).

Shapes: T rows, C columns.
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert.speed.fp8 import MULTIPLE, Cast, Quantized
from bert.speed.kernels import launch

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
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # Triton's interpreter knows no instructions


@triton.jit
def magnitude(value):
    """Return magnitudes as the bits of a float32, whose order is the same; NaN is larger than any number."""
    return tl.abs(value).to(tl.int32, bitcast=True)


@triton.jit
def magnitudes(first, second, third, fourth):
    """Return the largest `magnitude` of four, element by element."""
    return tl.maximum(
        tl.maximum(magnitude(first), magnitude(second)), tl.maximum(magnitude(third), magnitude(fourth))
    )  # fmt: skip


@triton.jit
def record_largest(recorded, found):
    """Raise a float32 in memory to the largest of `magnitudes`, the same one whatever the order of programs."""
    tl.atomic_max(recorded, tl.max(tl.max(found, 1), 0), sem="relaxed")


@triton.jit
def narrowed(value, factor, limit: tl.constexpr):
    """Return value x factor within the range of a format, NaN for what is not finite."""
    scaled = tl.minimum(tl.maximum(value * factor, -limit), limit)
    return tl.where(tl.abs(value) < float("inf"), scaled, float("nan"))


@triton.jit
def take_rows(x, row, column, rows, width: tl.constexpr):
    """Return rows of x [rows, width] in float32, and zeros after the last one."""
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    return tl.load(x + at, mask=(row < rows)[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_rows(value, factor, low, row, column, stored_rows, width: tl.constexpr, limit: tl.constexpr):
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
    if _INTERPRETED:
        word = byte_of(first, form) | (byte_of(second, form) << 8)
        word |= (byte_of(third, form) << 16) | (byte_of(fourth, form) << 24)
    elif form == tl.float8e4nv:
        word = tl.inline_asm_elementwise(
            _E4M3, "=r,f,f,f,f", [first, second, third, fourth], dtype=tl.int32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        word = tl.inline_asm_elementwise(
            _E5M2, "=r,f,f,f,f", [first, second, third, fourth], dtype=tl.int32, is_pure=True, pack=1
        )  # fmt: skip
    return word


@triton.jit
def store_both_ways(
    first, second, third, fourth, scale, low, transposed, word, column, groups, width: tl.constexpr,
    limit: tl.constexpr, multiple: tl.constexpr,
):  # fmt: skip
    """Store rows of values / scale in FP8, and their transpose, whose words hold four rows each.

    `first` has the rows 4 x word, `second` those after them, and so on. The number of rows that are stored is given in
    groups of `multiple` rows, so that the compiler knows its divisor.
    """
    factor, row, stored_rows = 1.0 / tl.load(scale), word * IN_WORD, groups * multiple
    first = store_rows(first, factor, low, row, column, stored_rows, width, limit)
    second = store_rows(second, factor, low, row + 1, column, stored_rows, width, limit)
    third = store_rows(third, factor, low, row + 2, column, stored_rows, width, limit)
    fourth = store_rows(fourth, factor, low, row + 3, column, stored_rows, width, limit)
    made = words_of(first, second, third, fourth, low.dtype.element_ty)
    words = groups * (multiple // IN_WORD)
    at = column.to(tl.int64)[:, None] * words + word[None, :]
    tl.store(transposed + at, tl.trans(made), mask=(column < width)[:, None] & (word < words)[None, :])


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
    row = word * IN_WORD
    first = take_rows(x, row, column, rows, width)
    second = take_rows(x, row + 1, column, rows, width)
    third = take_rows(x, row + 2, column, rows, width)
    fourth = take_rows(x, row + 3, column, rows, width)
    if recorded is not None:
        record_largest(recorded, magnitudes(first, second, third, fourth))
    store_both_ways(
        first, second, third, fourth, scale, low, transposed, word, column, groups, width, limit, multiple
    )  # fmt: skip


class Target(NamedTuple):
    """Memory for T rows of C columns in FP8, and what kernels that write them have in common."""

    low: Quantized
    arguments: tuple[Tensor | None, ...]
    """Scale, record, rows and words of columns."""
    groups: int
    """T' / 16."""
    constants: dict[str, int | float]


def target(rows: int, width: int, into: Cast) -> Target:
    """Return memory for a tensor [rows, width] in FP8."""
    groups, device = -(-rows // MULTIPLE), into.scale.device
    low = torch.empty(groups * MULTIPLE, width, dtype=into.dtype, device=device)
    transposed = torch.empty(width, groups * MULTIPLE, dtype=into.dtype, device=device)
    record = None if into.record is None else into.record.view(torch.int32)  # `record_largest` compares integers
    arguments = into.scale, record, low, transposed.view(torch.int32)
    constants = {"limit": torch.finfo(into.dtype).max, "multiple": MULTIPLE}
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
    return made.low
