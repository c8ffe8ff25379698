"""Random bits of dropout, which the backward pass makes again from their key instead of reading a mask.

Philox4x32-10 (Salmon et al. 2011), as PyTorch's dropout on a GPU. One call gives 128 bits: 8 elements, 16 bits each,
so that a probability is rounded to a multiple of 2^-16, as in bert.speed.dropout. Element c of row r of a width W has
bits 16 (c % 8) to 16 (c % 8) + 15 of the call with counter r ceil(W / 8) + c // 8.
"""

import triton
import triton.language as tl

LEVELS = 1 << 16


def dropped_levels(probability: float) -> int:
    """Return how many of the 2^16 levels are dropped."""
    return round(probability * LEVELS)


@triton.jit
def kept(key, row, width: tl.constexpr, columns: tl.constexpr, dropped: tl.constexpr):
    """Return bool [rows, columns], True where an element of these rows [rows] is kept."""
    groups: tl.constexpr = (width + 7) // 8
    counter = (row[:, None] * groups + tl.arange(0, columns // 8)[None, :]).to(tl.uint32)
    zero = counter * 0
    a, b, c, d = tl.philox(tl.load(key), counter, zero, zero, zero)
    words = tl.join(tl.join(a, c), tl.join(b, d))
    levels = tl.reshape(tl.join(words & 0xFFFF, words >> 16), (row.shape[0], columns))
    return levels >= dropped
