"""Random bits for dropout. The backward pass recomputes them from their key, so no mask is stored.

Philox4x32-10 (Salmon et al. 2011), as in PyTorch's dropout on a GPU. One call returns 128 bits: 16 bits for each of 8
elements. Probabilities are therefore rounded to multiples of 2^-16, as in bert.speed.dropout. Element c of row r, in
rows of width W, uses bits 16 (c % 8) to 16 (c % 8) + 15 of the call with counter r ceil(W / 8) + c // 8.
"""

import triton
import triton.language as tl

LEVELS = 1 << 16


def dropped_levels(probability: float) -> int:
    """Return how many of the 2^16 values are dropped."""
    return round(probability * LEVELS)


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
