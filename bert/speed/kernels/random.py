"""Random bits for dropout. The backward pass recomputes them from their key, so no mask is stored.

Philox4x32-10 (Salmon et al. 2011), as in PyTorch's dropout on a GPU. One call returns 128 bits: 16 bits for each of 8
elements. Probabilities are therefore rounded to multiples of 2^-16, as on a CPU. Element c of row r, in rows of width
W, uses bits 16 (c % 8) to 16 (c % 8) + 15 of the call with counter r ceil(W / 8) + c // 8.

Attention has more elements, so it does as FlashAttention-2: 7 rounds, and 8 bits for each of 16 weights. Probabilities
are rounded to multiples of 2^-8. The weight of query token t, key column c of the same sequence and head h uses byte
2 (c % 64 // 8) + c % 2 of the call with counter (t, 4 (c // 64) + c % 8 // 2, h, 0), whatever the tiles are. These are
the columns of one row that one thread has in the result of a tensor core, so bits need no exchange between threads.
"""

import triton
import triton.language as tl

LEVELS, WEIGHT_LEVELS = 1 << 16, 1 << 8


def dropped_levels(probability: float, levels: int = LEVELS) -> int:
    """Return how many of the values are dropped."""
    return round(probability * levels)


def dropout_constants(probability: float) -> dict[str, int | float]:
    """Return what a kernel has to know of dropout: how many levels are dropped, and the factor of the others."""
    dropped = dropped_levels(probability)
    return {"dropped": dropped, "scale": LEVELS / (LEVELS - dropped)}


@triton.jit
def kept(key, row, width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr):
    """Return bool [rows, columns] for the given rows [rows], True where an element is kept."""
    groups: tl.constexpr = (width + 7) // 8
    counter = (row[:, None] * groups + tl.arange(0, columns // 8)[None, :]).to(tl.uint32)
    zero = counter * 0
    a, b, c, d = tl.philox(tl.load(key), counter, zero, zero, zero)
    words = tl.join(tl.join(a, c), tl.join(b, d))
    levels = tl.reshape(tl.join(words & 0xFFFF, words >> 16), (row.shape[0], columns))
    return levels >= dropped


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
