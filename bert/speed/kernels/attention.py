"""Attention over concatenated sequences, with dropout, forward and backward (Dao 2023, arXiv 2307.08691).

One program computes a tile of queries of one head and sequence, or in the second half of the backward pass a tile of
keys, in a loop over the tiles of the other. Scores are never stored; the backward pass computes them again, once for
the gradients of queries and once for those of keys and values, so that no sum needs atomic additions. It writes the
three gradients into one tensor and sums them for the bias. Scores, softmax and sums are float32; GEMMs multiply the
16-bit type of the tensors. Exponents have base 2.

Dropout draws 8 bits for each of 16 weights from Philox with 7 rounds, as FlashAttention-2: probabilities are rounded to
multiples of 2^-8. The weight of query token t, key column c of the same sequence and head h uses byte
2 (c % 64 // 8) + c % 2 of the call with counter (t, 4 (c // 64) + c % 8 // 2, h, 0), whatever the tiles are. These are
the columns of one row that one thread has in the result of a tensor core, so bits need no exchange between threads.

Measured on an H100: docs/results/2026-11-26-h100.md.

Shapes: B sequences, S tokens of the longest, T tokens of all sequences, N heads, D width of a head, M queries and K
keys of a tile; H = N x D, P programs per block of columns.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.speed.kernels import dropped_levels, launch, random_key
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


# By width of a head. Registers, not shared memory, limit how many programs a multiprocessor runs at once.
FORWARD = {16: Tiles(64, 64, 4, 2), 32: Tiles(64, 64, 4, 2), 64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 8, 2, 255)}
OF_QUERIES = {16: Tiles(64, 64, 4, 2), 32: Tiles(64, 64, 4, 2), 64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 8, 2)}
OF_KEYS = {16: Tiles(64, 64, 4, 2), 32: Tiles(64, 64, 4, 2), 64: Tiles(64, 64, 4, 3), 128: Tiles(32, 64, 8, 2)}
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
def place_of(ends, tiles, heads: tl.constexpr, size: tl.constexpr):
    """Return the first row of a program's tile in its sequence, the head, the sequence's first token and its length."""
    program = tl.program_id(0)
    row = program // tiles
    sequence = row // heads
    begin = tl.load(ends + sequence)
    return program % tiles * size, row % heads, begin, tl.load(ends + sequence + 1) - begin


@triton.jit
def rows_of(part, row, here, stride: tl.constexpr, depth: tl.constexpr):
    """Load rows [rows, D] of a sequence; 0 for rows that are not `here`."""
    return tl.load(part + row[:, None] * stride + tl.arange(0, depth)[None, :], mask=here[:, None], other=0.0)


@triton.jit(do_not_specialize=["tokens", "tiles"])
def attention_forward(
    qkv, ends, key, context, logsumexp, tokens, tiles, heads: tl.constexpr, depth: tl.constexpr, queries: tl.constexpr,
    keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the context of a tile of queries and the base-2 logarithms of the sums of their exponentials."""
    tile, head, begin, length = place_of(ends, tiles, heads, queries)
    if tile < length:
        hidden: tl.constexpr = heads * depth
        scale: tl.constexpr = _LOG2_E * depth**-0.5
        part = qkv + begin.to(tl.int64) * (3 * hidden) + head * depth
        row = tile + tl.arange(0, queries)
        here, token = row < length, begin + row
        query = rows_of(part, row, here, 3 * hidden, depth)
        number = tl.load(key) if dropped > 0 else 0
        # A 0 that the compiler does not know: with a constant one it drops weights after their cast, for 3 x the work.
        nothing = (tokens >> 31).to(tl.float32)
        top = tl.full((queries,), float("-inf"), tl.float32)
        total = tl.zeros((queries,), tl.float32)
        result = tl.zeros((queries, depth), tl.float32)
        for first in range(0, length, keys):
            column = first + tl.arange(0, keys)
            real = column < length
            scores = tl.dot(query, tl.trans(rows_of(part + hidden, column, real, 3 * hidden, depth)))
            if first + keys > length:
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
    result, sums, tiles, part: tl.constexpr, value, begin, row, here, head, heads: tl.constexpr, depth: tl.constexpr
):
    """Write the gradient of a tile of queries, keys or values (part 0, 1, 2), and its sum."""
    hidden: tl.constexpr = heads * depth
    place = part * hidden + head * depth + tl.arange(0, depth)
    to = result + begin.to(tl.int64) * (3 * hidden) + row[:, None] * (3 * hidden) + place[None, :]
    tl.store(to, value, mask=here[:, None])
    if sums is not None:
        program = tl.program_id(0)
        line = program // tiles // heads * tiles + program % tiles
        tl.store(sums + line.to(tl.int64) * (3 * hidden) + place, tl.sum(tl.where(here[:, None], value, 0.0), 0))


@triton.jit(do_not_specialize=["tokens", "tiles"])
def attention_query_gradients(
    qkv, ends, key, context, logsumexp, grad, along, result, sums, tokens, tiles, heads: tl.constexpr,
    depth: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of queries, and `along` [N, T] for those of keys and values."""
    tile, head, begin, length = place_of(ends, tiles, heads, queries)
    hidden: tl.constexpr = heads * depth
    row = tile + tl.arange(0, queries)
    here, token = row < length, begin + row
    of_query = tl.zeros((queries, depth), tl.float32)
    if tile < length:
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
        for first in range(0, length, keys):
            column = first + tl.arange(0, keys)
            real = column < length
            own_key = rows_of(part + hidden, column, real, 3 * hidden, depth)
            own_value = rows_of(part + 2 * hidden, column, real, 3 * hidden, depth)
            weights, of_weights = weights_and_gradients(
                query, tl.trans(own_key), given, tl.trans(own_value), sharpness, depth
            )
            if dropped > 0:
                of_weights = tl.where(kept_weights(number, token, head, first, keys, dropped), of_weights, 0.0)
            of_scores = weights * (of_weights - product[:, None])
            if first + keys > length:
                of_scores = tl.where(real[None, :], of_scores, 0.0)
            of_query = tl.dot(of_scores.to(query.dtype), own_key, of_query)
        of_query *= kept * depth**-0.5
    store_gradient(result, sums, tiles, 0, of_query, begin, row, here, head, heads, depth)


@triton.jit(do_not_specialize=["tokens", "tiles"])
def attention_key_gradients(
    qkv, ends, key, logsumexp, grad, along, result, sums, tokens, tiles, heads: tl.constexpr, depth: tl.constexpr,
    queries: tl.constexpr, keys: tl.constexpr, dropped: tl.constexpr, kept: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of keys and values."""
    tile, head, begin, length = place_of(ends, tiles, heads, keys)
    hidden: tl.constexpr = heads * depth
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
    store_gradient(result, sums, tiles, 1, of_key, begin, column, real, head, heads, depth)
    store_gradient(result, sums, tiles, 2, of_value, begin, column, real, head, heads, depth)


def attention(
    qkv: Tensor, ends: Tensor, longest: int, probability: float, bias: Tensor | None, key: Tensor | None = None
) -> Tensor:
    """Return the context [T, N, D] of queries, keys and values [T, 3, N, D] in bf16 or fp16.

    Args:
        qkv: queries, keys and values; D is one of WIDTHS.
        ends: token before which each sequence ends, and 0 before them [B + 1], int32.
        longest: tokens that no sequence has more of.
        probability: dropout probability of the weights; rounded to multiples of 1 / 256, of which it must leave one.
        bias: [3 H], added to `qkv` without tracking its gradient, which is computed here; None for no such bias.
        key: of dropout, int64 [1]; None draws one.
    """
    context: Tensor = _Attention.apply(qkv, ends, longest, probability, bias, key)
    return context


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, ends: Tensor, longest: int, probability: float, bias: Tensor | None, key: Tensor | None
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
        ctx.longest, ctx.bias_dtype = min(longest, tokens), None if bias is None else bias.dtype
        key = random_key(qkv, key) if dropped else None
        context = qkv.new_empty(tokens, heads, depth)
        logsumexp = torch.empty(heads, tokens, device=qkv.device)
        tiles = FORWARD[depth]
        count = -(-ctx.longest // tiles.queries)
        launch(
            attention_forward, (count * heads * (len(ends) - 1),), qkv, ends, key, context, logsumexp, tokens, count,
            **ctx.how, **tiles._asdict(),
        )  # fmt: skip
        ctx.save_for_backward(qkv, ends, key, context, logsumexp)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, ends, key, context, logsumexp = ctx.saved_tensors
        grad, depth = grad.contiguous(), qkv.shape[-1]
        result, along, sums = torch.empty_like(qkv), torch.empty_like(logsumexp), None
        first, second = OF_QUERIES[depth], OF_KEYS[depth]
        counts = -(-ctx.longest // first.queries), -(-ctx.longest // second.keys)
        sequences = len(ends) - 1
        if ctx.bias_dtype is not None:
            make = torch.empty if counts[0] == counts[1] else torch.zeros  # a program writes one line
            sums = make(sequences * max(counts), qkv[0].numel(), device=qkv.device)
        lines = sequences * qkv.shape[2]
        launch(
            attention_query_gradients, (counts[0] * lines,), qkv, ends, key, context, logsumexp, grad, along, result,
            sums, len(qkv), counts[0], **ctx.how, **first._asdict(),
        )  # fmt: skip
        launch(
            attention_key_gradients, (counts[1] * lines,), qkv, ends, key, logsumexp, grad, along, result, sums,
            len(qkv), counts[1], **ctx.how, **second._asdict(),
        )  # fmt: skip
        return result, None, None, None, None if sums is None else sums.sum(0).to(ctx.bias_dtype), None
