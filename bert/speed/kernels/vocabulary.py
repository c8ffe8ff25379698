"""What a vocabulary is read for: embeddings with LayerNorm and dropout in one pass, and cross-entropy.

Cross-entropy reads the logits once; the backward pass overwrites them with their gradient. PyTorch writes the logits in
float32 and their log-softmax, then the gradient in float32 and in 16 bits.

Shapes: T tokens, V words, S positions, K segments, H hidden width, P programs; M rows of logits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.autograd.graph import increment_version

from bert.speed.copies import add_rows, has_low_gradients
from bert.speed.kernels import columns_of, dropout_constants, launch, programs, random_key, warps_of
from bert.speed.kernels.norm import kept

Tokens = tuple[Tensor, Tensor, Tensor | None]
"""Row numbers of tokens in the tables of words, positions and segments, int64 [...] each."""
_NO_PADDING = -1
_MOST_COLUMNS = 2048


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


def embed(
    tables: tuple[Tensor, Tensor, Tensor | None],
    tokens: Tokens,
    norm: torch.nn.LayerNorm,
    probability: float,
    dtype: torch.dtype,
    padding: int,
    key: Tensor | None = None,
) -> Tensor:
    """Return dropout(LayerNorm(sum of the embeddings)) [..., H].

    Args:
        tables: words [V, H], positions [S, H] and segments [K, H] or None.
        tokens: row numbers in the tables; results are undefined for numbers outside a table.
        norm: LayerNorm with weight and bias.
        probability: dropout probability; 0 in evaluation.
        dtype: type of the result.
        padding: word whose row gets no gradient.
        key: of dropout, int64 [1]; None draws one.
    """
    words = tables[0]
    # With gradients in bf16 the table is no autograd input: bert.speed.copies.add_rows adds them in place.
    held = (words,) if has_low_gradients(words) and torch.is_grad_enabled() else None
    own = words.detach() if held else words
    result: Tensor = _Embed.apply(
        own, *tables[1:], norm.weight, norm.bias, tokens, norm.eps, probability, dtype, padding, held, key
    )
    return result


class _Embed(Function):
    @staticmethod
    def forward(
        ctx: Any, words: Tensor, positions: Tensor, segments: Tensor | None, weight: Tensor, shift: Tensor,
        tokens: Tokens, eps: float, probability: float, dtype: torch.dtype, padding: int, held: tuple[Tensor] | None,
        key: Tensor | None,
    ) -> Tensor:  # fmt: skip
        width, rows, columns = words.shape[1], tokens[0].numel(), columns_of(words.shape[1])
        ctx.how = {"width": width, "columns": columns, "warps": warps_of(columns), **dropout_constants(probability)}
        key = random_key(words, key) if ctx.how["dropped"] else None
        which = [*tokens[:2], None if segments is None else tokens[2]]
        read = [each if each is None else each.contiguous() for each in (words, positions, segments, *which)]
        result = torch.empty(*tokens[0].shape, width, dtype=dtype, device=words.device)
        # Two allocations: the second half of a shared one may be unaligned, and needs another compilation.
        mean, inverse = (torch.empty(rows, device=words.device) for _ in range(2))
        launch(embedding_layer_norm_forward, (rows,), *read, weight, shift, key, result, mean, inverse, eps, **ctx.how)
        ctx.save_for_backward(*read, weight, key, mean, inverse)
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
            of_weight, of_shift, *(None,) * 7,
        )  # fmt: skip


@triton.jit
def cross_entropy_forward(logits, labels, losses, normalizers, width: tl.constexpr, columns: tl.constexpr):
    """Compute the loss of a row; store its maximum and log(sum(exp(logits - maximum))) separately, for precision."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((columns,), -1e30, tl.float32)
    total = tl.zeros((columns,), tl.float32)
    for first in tl.range(0, width, columns):
        column = first + tl.arange(0, columns)
        value = tl.load(logits + row * width + column, mask=column < width, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, value)
        total = total * tl.exp(largest - larger) + tl.exp(value - larger)
        largest = larger
    most = tl.max(largest, 0)
    spread = tl.log(tl.sum(total * tl.exp(largest - most), 0))
    label = tl.load(labels + row)
    # An invalid label makes the loss NaN; PyTorch's kernels abort.
    own = tl.load(logits + row * width + label, mask=(label >= 0) & (label < width), other=float("nan"))
    tl.store(losses + row, most - own.to(tl.float32) + spread)
    tl.store(normalizers + 2 * row, most)
    tl.store(normalizers + 2 * row + 1, spread)


@triton.jit
def cross_entropy_backward(logits, labels, normalizers, scale, width: tl.constexpr, columns: tl.constexpr):
    """Overwrite a block of a row of logits with its gradient, (softmax - one-hot) x scale."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    at = logits + row * width + column
    label = tl.load(labels + row)
    factor = tl.load(scale)
    value = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
    value = tl.exp(value - tl.load(normalizers + 2 * row) - tl.load(normalizers + 2 * row + 1))
    tl.store(at, (value - (column == label).to(tl.float32)) * factor, mask=column < width)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, a float32 scalar, of logits [M, V] and int64 labels [M]; 0 for M = 0.

    A label that is no class, -100 too, makes it NaN. The backward pass overwrites the logits: nothing else may read
    them.
    """
    result: Tensor = _CrossEntropy.apply(logits, labels)
    return result


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels = logits.contiguous(), labels.contiguous()
        rows, width = logits.shape
        columns = min(_MOST_COLUMNS, columns_of(width))
        ctx.how = {"width": width, "columns": columns, "warps": warps_of(columns)}
        losses, normalizers = (torch.empty(rows, count, device=logits.device) for count in (1, 2))
        launch(cross_entropy_forward, (rows,), logits, labels, losses, normalizers, **ctx.how)
        ctx.save_for_backward(logits, labels, normalizers)
        mean: Tensor = losses.sum() / max(rows, 1)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, labels, normalizers = ctx.saved_tensors
        rows, width = logits.shape
        scale, blocks = grad.float() / max(rows, 1), -(-width // ctx.how["columns"])
        launch(cross_entropy_backward, (rows, blocks), logits, labels, normalizers, scale, **ctx.how)
        increment_version(logits)  # a second backward pass fails
        return logits, None
