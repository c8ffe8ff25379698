"""Attention over concatenated sequences, with dropout, forward and backward (Dao 2023, arXiv 2307.08691).

One program computes a tile of queries of one head and sequence, or in the second half of the backward pass a tile of
keys, in a loop over the tiles of the other. The batch brings a list of all tiles, the longest sequences first: no
program is without work, and the last ones are short. Scores are never stored; the backward pass computes them again,
once for the gradients of queries and once for those of keys and values, so that no sum needs atomic additions. It
writes the three gradients into one tensor and sums them for the bias. Scores, softmax and sums are float32; GEMMs
multiply the 16-bit type of the tensors. Exponents have base 2.

Dropout draws 8 bits for each of 16 weights from Philox with 7 rounds, as FlashAttention-2: probabilities are rounded to
multiples of 2^-8. The weight of query token t, key column c of the same sequence and head h uses byte
2 (c % 64 // 8) + c % 2 of the call with counter (t, 4 (c // 64) + c % 8 // 2, h, 0), whatever the tiles are. These are
the columns of one row that one thread has in the result of a tensor core, so bits need no exchange between threads.

Measured on an H100: docs/results/2026-11-26-h100.md.

Shapes: T tokens of all sequences, E tiles, N heads, D width of a head, M queries and K keys of a tile; H = N x D.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.kernels import dropped_levels, launch, processor, random_key
from common.errors import UsageError


class Tiles(NamedTuple):
    """How a kernel divides its work: arguments of its launch."""

    queries: int
    """M, a power of 2."""
    keys: int
    """K, a multiple of 64 and a power of 2, as random bits are drawn for 64 keys at a time."""
    warps: int
    num_stages: int
    """Tiles of the loop that are in memory at once: one is computed, the others are loaded."""
    maxnreg: int | None = None
    """Most registers of a thread; None for as many as the compiler takes."""


# By width of a head; a program has the 64 rows of a tile of the list. With heads of 64, 4, 4 and 3 programs at once fit
# on a multiprocessor of an H100, as Triton 3.6 and 3.9 compile them: they wait more than they compute, and the more of
# them, the less it waits. Not measured on a GPU.
_NARROW = dict.fromkeys((16, 32), Tiles(64, 64, 4, 2))
FORWARD = {**_NARROW, 64: Tiles(64, 64, 4, 3, 128), 128: Tiles(64, 64, 8, 2, 255)}
OF_QUERIES = {**_NARROW, 64: Tiles(64, 64, 4, 2, 128), 128: Tiles(64, 64, 8, 2)}
OF_KEYS = {**_NARROW, 64: Tiles(64, 64, 4, 2, 168), 128: Tiles(32, 64, 8, 2)}
WIDTHS = frozenset(FORWARD)
WEIGHT_LEVELS = 1 << 8
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def kept_weights(key, token, head, first, columns: tl.constexpr, dropped: tl.constexpr):
    """Return bool [M, columns] for query tokens [M], True where a weight is kept.

    `key` is the number itself; `first` is the first key column, a multiple of 64 as is `columns`.
    """
    blocks: tl.constexpr = columns // 64
    group = (first // 16 + tl.arange(0, 4 * blocks)).to(tl.uint32)[None, :]
    token = token.to(tl.uint32)[:, None]
    zero = token * 0 + group * 0
    a, b, c, d = tl.philox(key, token + zero, group + zero, zero + head.to(tl.uint32), zero, 7)
    shape: tl.constexpr = (token.shape[0], blocks, 1, 4, 1)
    a, b, c, d = tl.reshape(a, shape), tl.reshape(b, shape), tl.reshape(c, shape), tl.reshape(d, shape)
    eighth = tl.arange(0, 8)[None, None, :, None, None]
    odd = tl.arange(0, 2)[None, None, None, None, :]
    word = tl.where(eighth < 4, tl.where(eighth < 2, a, b), tl.where(eighth < 6, c, d))
    level = (word >> (eighth % 2 * 16 + odd * 8).to(tl.uint32)) & 0xFF
    return tl.reshape(level >= dropped, (token.shape[0], columns))


@triton.jit
def place_of(work):
    """Return a program's head, and of its tile the first row in its sequence, whose first token and length are next."""
    entry = work + tl.program_id(1) * 3
    return tl.program_id(0), tl.load(entry + 2), tl.load(entry), tl.load(entry + 1)


@triton.jit
def rows_of(part, row, here, stride: tl.constexpr, depth: tl.constexpr):
    """Load rows [rows, D] of a sequence; 0 for rows that are not `here`, None for all."""
    at = part + row[:, None] * stride + tl.arange(0, depth)[None, :]
    if here is None:
        return tl.load(at)
    else:
        return tl.load(at, mask=here[:, None], other=0.0)


@triton.jit(do_not_specialize=["tokens"])
def attention_forward(
    qkv, work, key, context, logsumexp, tokens, heads: tl.constexpr, depth: tl.constexpr, queries: tl.constexpr,
    keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the context of a tile of queries and the base-2 logarithms of the sums of their exponentials."""
    hidden: tl.constexpr = heads * depth
    scale: tl.constexpr = _LOG2_E * depth**-0.5
    head, tile, begin, length = place_of(work)
    row = tile + tl.arange(0, queries)
    part = qkv + begin.to(tl.int64) * (3 * hidden) + head * depth
    here, token = row < length, begin + row
    query = rows_of(part, row, here, 3 * hidden, depth)
    number = tl.load(key) if dropped > 0 else 0
    # A 0 that the compiler does not know: with a constant one it drops weights after their cast, for 3 x the work.
    nothing = (tokens >> 31).to(tl.float32)
    top = tl.full((queries,), float("-inf"), tl.float32)
    total = tl.zeros((queries,), tl.float32)
    result = tl.zeros((queries, depth), tl.float32)
    full = length // keys * keys
    for last in tl.static_range(2):  # all full tiles, then the rest, which alone has a mask
        for first in range(full if last else 0, length if last else full, keys):
            column = first + tl.arange(0, keys)
            real = column < length if last else None
            scores = tl.dot(query, tl.trans(rows_of(part + hidden, column, real, 3 * hidden, depth)))
            if real is not None:
                scores = tl.where(real[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(weights, 1)
            if dropped > 0:
                weights = tl.where(kept_weights(number, token, head, first, keys, dropped), weights, nothing)
            value = rows_of(part + 2 * hidden, column, real, 3 * hidden, depth)
            result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None])
            top = higher
    to = context + begin.to(tl.int64) * hidden + head * depth
    at = to + row[:, None] * hidden + tl.arange(0, depth)[None, :]
    tl.store(at, result * (kept / total)[:, None], mask=here[:, None])
    tl.store(logsumexp + head.to(tl.int64) * tokens + token, top + tl.log2(total), mask=here)


@triton.jit
def weights_and_gradients(query, key, grad, value, logsumexp, depth: tl.constexpr):
    """Return weights and their gradients [M, K], both before dropout. Keys and values are transposed [D, K]."""
    scale: tl.constexpr = _LOG2_E * depth**-0.5
    return tl.exp2(tl.dot(query, key) * scale - logsumexp[:, None]), tl.dot(grad, value)


@triton.jit
def store_gradient(
    result, sums, part: tl.constexpr, value, begin, row, here, head, heads: tl.constexpr, depth: tl.constexpr
):
    """Write the gradient of a tile of queries, keys or values (part 0, 1, 2), and its sum."""
    hidden: tl.constexpr = heads * depth
    place = part * hidden + head * depth + tl.arange(0, depth)
    to = result + begin.to(tl.int64) * (3 * hidden) + row[:, None] * (3 * hidden) + place[None, :]
    tl.store(to, value, mask=here[:, None])
    if sums is not None:
        line = sums + tl.program_id(1).to(tl.int64) * (3 * hidden)
        tl.store(line + place, tl.sum(tl.where(here[:, None], value, 0.0), 0))


@triton.jit(do_not_specialize=["tokens"])
def attention_query_gradients(
    qkv, work, key, context, logsumexp, grad, along, result, sums, tokens, heads: tl.constexpr, depth: tl.constexpr,
    queries: tl.constexpr, keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of queries, and `along` [N, T] for those of keys and values."""
    hidden: tl.constexpr = heads * depth
    head, tile, begin, length = place_of(work)
    row = tile + tl.arange(0, queries)
    here, token = row < length, begin + row
    part = qkv + begin.to(tl.int64) * (3 * hidden) + head * depth
    own = begin.to(tl.int64) * hidden + head * depth
    query = rows_of(part, row, here, 3 * hidden, depth)
    given = rows_of(grad + own, row, here, hidden, depth)
    made = rows_of(context + own, row, here, hidden, depth)
    product = tl.sum(given.to(tl.float32) * made.to(tl.float32), 1) * (1 / kept)
    line = head.to(tl.int64) * tokens + token
    tl.store(along + line, product, mask=here)
    sharpness = tl.load(logsumexp + line, mask=here, other=float("inf"))
    number = tl.load(key) if dropped > 0 else 0
    of_query = tl.zeros((queries, depth), tl.float32)
    full = length // keys * keys
    for last in tl.static_range(2):
        for first in range(full if last else 0, length if last else full, keys):
            column = first + tl.arange(0, keys)
            real = column < length if last else None
            own_key = rows_of(part + hidden, column, real, 3 * hidden, depth)
            own_value = rows_of(part + 2 * hidden, column, real, 3 * hidden, depth)
            weights, of_weights = weights_and_gradients(
                query, tl.trans(own_key), given, tl.trans(own_value), sharpness, depth
            )
            if dropped > 0:
                of_weights = tl.where(kept_weights(number, token, head, first, keys, dropped), of_weights, 0.0)
            of_scores = weights * (of_weights - product[:, None])
            if real is not None:
                of_scores = tl.where(real[None, :], of_scores, 0.0)
            of_query = tl.dot(of_scores.to(query.dtype), own_key, of_query)
    store_gradient(result, sums, 0, of_query * (kept * depth**-0.5), begin, row, here, head, heads, depth)


@triton.jit(do_not_specialize=["tokens"])
def attention_key_gradients(
    qkv, work, key, logsumexp, grad, along, result, sums, tokens, heads: tl.constexpr, depth: tl.constexpr,
    queries: tl.constexpr, keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of keys and values."""
    hidden: tl.constexpr = heads * depth
    head, tile, begin, length = place_of(work)
    column = tile + tl.arange(0, keys)
    real = column < length
    of_key = tl.zeros((keys, depth), tl.float32)
    of_value = tl.zeros((keys, depth), tl.float32)
    if tile < length:
        part = qkv + begin.to(tl.int64) * (3 * hidden) + head * depth
        own = grad + begin.to(tl.int64) * hidden + head * depth
        own_key = tl.trans(rows_of(part + hidden, column, real, 3 * hidden, depth))
        own_value = tl.trans(rows_of(part + 2 * hidden, column, real, 3 * hidden, depth))
        line = head.to(tl.int64) * tokens + begin
        number = tl.load(key) if dropped > 0 else 0
        for first in range(0, length, queries):
            row = first + tl.arange(0, queries)
            here = row < length
            query = rows_of(part, row, here, 3 * hidden, depth)
            given = rows_of(own, row, here, hidden, depth)
            # A weight of a row beyond the end is 2^-inf = 0, so it adds nothing.
            sharpness = tl.load(logsumexp + line + row, mask=here, other=float("inf"))
            product = tl.load(along + line + row, mask=here, other=0.0)
            weights, of_weights = weights_and_gradients(query, own_key, given, own_value, sharpness, depth)
            used = weights  # with `used` in both, random bits select one number per weight, not two
            if dropped > 0:
                used = tl.where(kept_weights(number, begin + row, head, tile, keys, dropped), weights, 0.0)
            of_value = tl.dot(tl.trans(used.to(query.dtype)), given, of_value)
            of_scores = used * of_weights - weights * product[:, None]
            of_key = tl.dot(tl.trans(of_scores.to(query.dtype)), query, of_key)
        of_value *= kept
        of_key *= kept * depth**-0.5
    store_gradient(result, sums, 1, of_key, begin, column, real, head, heads, depth)
    store_gradient(result, sums, 2, of_value, begin, column, real, head, heads, depth)


def attention(qkv: Tensor, work: Tensor, probability: float, bias: Tensor | None, key: Tensor | None = None) -> Tensor:
    """Return the context [T, N, D] of queries, keys and values [T, 3, N, D] in bf16 or fp16.

    Args:
        qkv: queries, keys and values; D is one of WIDTHS.
        work: the tiles of all sequences, as of bert.data.batch.tiles_of [E, 3], in any order.
        probability: dropout probability of the weights; rounded to multiples of 1 / 256, of which it must leave one.
        bias: [3 H], added to `qkv` without tracking its gradient, which is computed here; None for no such bias.
        key: of dropout, int64 [1]; None draws one.
    """
    context: Tensor = _Attention.apply(qkv, work, probability, bias, key)
    return context


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, work: Tensor, probability: float, bias: Tensor | None, key: Tensor | None
    ) -> Tensor:
        qkv = qkv.contiguous()
        tokens, _, heads, depth = qkv.shape
        dropped = min(dropped_levels(probability, WEIGHT_LEVELS), WEIGHT_LEVELS - 1)
        if probability > 0 and not dropped:
            raise UsageError(
                "option-value", f"--dropout {probability} would be 0 in attention: give 0, or 0.002 or more"
            )
        kept = WEIGHT_LEVELS / (WEIGHT_LEVELS - dropped)
        ctx.how = {"heads": heads, "depth": depth, "dropped": dropped, "kept": kept}
        ctx.bias_dtype = None if bias is None else bias.dtype
        key = random_key(qkv, key) if dropped else None
        context = qkv.new_empty(tokens, heads, depth)
        logsumexp = torch.empty(heads, tokens, device=qkv.device)
        given = qkv, work, key, context, logsumexp
        launch(attention_forward, (heads, len(work)), *given, tokens, **ctx.how, **settings(FORWARD[depth], qkv))
        ctx.save_for_backward(*given)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, work, key, context, logsumexp = ctx.saved_tensors
        grad, (tokens, _, heads, depth) = grad.contiguous(), qkv.shape
        result, along, sums = torch.empty_like(qkv), torch.empty_like(logsumexp), None
        if ctx.bias_dtype is not None:
            sums = torch.empty(len(work), 3 * heads * depth, device=qkv.device)
        grid, found = (heads, len(work)), (logsumexp, grad, along, result, sums, tokens)
        of_queries, of_keys = (settings(tiles[depth], qkv) for tiles in (OF_QUERIES, OF_KEYS))
        launch(attention_query_gradients, grid, qkv, work, key, context, *found, **ctx.how, **of_queries)
        launch(attention_key_gradients, grid, qkv, work, key, *found, **ctx.how, **of_keys)
        return result, None, None, None if sums is None else sums.sum(0).to(ctx.bias_dtype), None


def settings(tiles: Tiles, like: Tensor) -> dict[str, Any]:
    """Return arguments of a launch; before compute capability 9, with `maxnreg`, too many registers spill."""
    return tiles._asdict() | ({"maxnreg": None} if processor(like.device).major < 9 else {})
