"""Sum of word, position and segment embeddings, LayerNorm and dropout in one pass.

Shapes: T tokens, V words, S positions, K segments, H hidden width, P programs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.copies import add_rows, has_low_gradients
from bert.speed.kernels import columns_of, dropout_constants, launch, programs, random_key, warps_of
from bert.speed.kernels.norm import kept

_NO_PADDING = -1


@triton.jit
def summed(words, positions, segments, ids, columns_at, types, row, column, here, width: tl.constexpr):
    """Return the sum of a token's three embeddings [columns] in float32."""
    total = tl.load(words + tl.load(ids + row) * width + column, mask=here, other=0.0).to(tl.float32)
    total += tl.load(positions + tl.load(columns_at + row) * width + column, mask=here, other=0.0).to(tl.float32)
    if segments is not None:
        total += tl.load(segments + tl.load(types + row) * width + column, mask=here, other=0.0).to(tl.float32)
    return total


@triton.jit
def factors(key, row, width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr):
    """Return the dropout factor of each element of a row [columns]: 0 or the scale."""
    keep = tl.reshape(kept(key, row + tl.arange(0, 1), width, columns, dropped), (columns,))
    return tl.where(keep, scale, 0.0)


@triton.jit
def embedding_layer_norm_forward(
    words, positions, segments, ids, columns_at, types, weight, shift, key, result, mean, inverse, eps,
    width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Embed one token."""
    row = tl.program_id(0)
    column = tl.arange(0, columns)
    here = column < width
    total = summed(words, positions, segments, ids, columns_at, types, row, column, here, width)
    center = tl.sum(total, 0) / width
    total = tl.where(here, total - center, 0.0)
    sharpness = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    value = total * sharpness * tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    value += tl.load(shift + column, mask=here, other=0.0).to(tl.float32)
    if dropped > 0:
        value *= factors(key, row, width, columns, dropped, scale)
    tl.store(result + row.to(tl.int64) * width + column, value, mask=here)
    tl.store(mean + row, center)
    tl.store(inverse + row, sharpness)


@triton.jit(do_not_specialize=["rows"])
def embedding_layer_norm_backward(
    words, positions, segments, ids, columns_at, types, weight, key, mean, inverse, grad, grad_sum, sums, rows,
    width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the embedding sum of every P-th token; sums [P, 2, H]: partial gradients of the norm."""
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, columns)
    here = column < width
    factor = tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    of_weight = tl.zeros((columns,), tl.float32)
    of_shift = tl.zeros((columns,), tl.float32)
    for first in tl.range(0, rows - program, count):
        row = program + first
        total = summed(words, positions, segments, ids, columns_at, types, row, column, here, width)
        sharpness = tl.load(inverse + row)
        normed = tl.where(here, (total - tl.load(mean + row)) * sharpness, 0.0)
        at = row.to(tl.int64) * width + column
        given = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        if dropped > 0:
            given *= factors(key, row, width, columns, dropped, scale)
        of_weight += given * normed
        of_shift += given
        given *= factor
        even, along = tl.sum(given, 0) / width, tl.sum(given * normed, 0) / width
        tl.store(grad_sum + at, (given - even - normed * along) * sharpness, mask=here)
    tl.store(sums + program * 2 * width + column, of_weight, mask=here)
    tl.store(sums + program * 2 * width + width + column, of_shift, mask=here)


class Tokens(NamedTuple):
    """Row numbers of tokens in the embedding tables, int64 [...] each."""

    ids: Tensor
    columns: Tensor
    types: Tensor | None


def embed(
    tables: tuple[Tensor, Tensor, Tensor | None],
    tokens: Tokens,
    norm: torch.nn.LayerNorm,
    probability: float,
    dtype: torch.dtype,
    padding: int,
) -> Tensor:
    """Return dropout(LayerNorm(sum of the embeddings)) [..., H].

    Args:
        tables: words [V, H], positions [S, H] and segments [K, H] or None.
        tokens: row numbers in the tables; results are undefined for numbers outside a table.
        norm: LayerNorm with weight and bias.
        probability: dropout probability; 0 in evaluation.
        dtype: type of the result.
        padding: word whose row gets no gradient.
    """
    words = tables[0]
    # With gradients in bf16 the table is no autograd input: bert.speed.copies.add_rows adds them in place.
    held = (words,) if has_low_gradients(words) and torch.is_grad_enabled() else None
    own = words.detach() if held else words
    result: Tensor = _Embed.apply(
        own, *tables[1:], norm.weight, norm.bias, tokens, norm.eps, probability, dtype, padding, held
    )
    return result


class _Embed(Function):
    @staticmethod
    def forward(
        ctx: Any, words: Tensor, positions: Tensor, segments: Tensor | None, weight: Tensor, shift: Tensor,
        tokens: Tokens, eps: float, probability: float, dtype: torch.dtype, padding: int, held: tuple[Tensor] | None,
    ) -> Tensor:  # fmt: skip
        width, rows, columns = words.shape[1], tokens.ids.numel(), columns_of(words.shape[1])
        ctx.how = {"width": width, "columns": columns, "warps": warps_of(columns), **dropout_constants(probability)}
        key = random_key(words) if ctx.how["dropped"] else None
        tables = [table if table is None else table.contiguous() for table in (words, positions, segments)]
        which = [tokens.ids, tokens.columns, None if segments is None else tokens.types]
        numbers = [each if each is None else each.contiguous() for each in which]
        result = torch.empty(*tokens.ids.shape, width, dtype=dtype, device=words.device)
        # Two allocations: the second half of a shared one may be unaligned, and needs another compilation.
        mean, inverse = (torch.empty(rows, device=words.device) for _ in range(2))
        launch(
            embedding_layer_norm_forward,
            (rows,),
            *tables,
            *numbers,
            weight,
            shift,
            key,
            result,
            mean,
            inverse,
            eps,
            **ctx.how,
        )
        ctx.save_for_backward(*tables, *numbers, weight, key, mean, inverse)
        ctx.padding, ctx.held = padding, held
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        words, positions, segments, ids, columns, types, weight, key, mean, inverse = ctx.saved_tensors
        rows, width = len(mean), words.shape[1]
        grad_sum = torch.empty(rows, width, device=grad.device)
        count = programs(grad, rows)
        sums = torch.empty(count, 2, width, device=grad.device)
        launch(
            embedding_layer_norm_backward, (count,), words, positions, segments, ids, columns, types, weight, key, mean,
            inverse, grad.contiguous(), grad_sum, sums, rows, **ctx.how,
        )  # fmt: skip
        of_weight, of_shift = sums.sum(0).to(weight.dtype)

        def of_table(number: int, table: Tensor, which: Tensor, padding: int) -> Tensor | None:
            if not ctx.needs_input_grad[number]:
                return None
            made: Tensor = torch.ops.aten.embedding_dense_backward(
                grad_sum, which.flatten(), len(table), padding, False
            )
            return made.to(table.dtype)

        if ctx.held is not None:
            add_rows(ctx.held[0], ids.flatten(), grad_sum, ctx.padding)
        of_segments = None if segments is None else of_table(2, segments, types, _NO_PADDING)
        return (
            of_table(0, words, ids, ctx.padding), of_table(1, positions, columns, _NO_PADDING), of_segments,
            of_weight, of_shift, *(None,) * 6,
        )  # fmt: skip
