"""Philox4x32-10 in NumPy, written from the paper (Salmon et al. 2011, section 3.3), and the masks that kernels make."""

import numpy as np
import torch
from torch import Tensor

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: list[np.ndarray], key: tuple[int, int], rounds: int = 10) -> list[np.ndarray]:
    """Return four arrays of 32 random bits of four arrays of counters."""
    a, b, c, d = (np.asarray(part, dtype=np.uint64) for part in counter)
    first, second = key
    for _ in range(rounds):
        left, right = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b = (right >> np.uint64(32)) ^ b ^ np.uint64(first), right & _LOW
        c, d = (left >> np.uint64(32)) ^ d ^ np.uint64(second), left & _LOW
        first, second = (first + _WEYL[0]) & 0xFFFFFFFF, (second + _WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def key_of(seed: int) -> int:
    """Return the first key that is drawn from the generator of a CPU with this seed."""
    torch.manual_seed(seed)
    return int(torch.empty(1, dtype=torch.int64).random_())


def factors(key: int, rows: int, width: int, probability: float) -> Tensor:
    """Return what dropout multiplies [rows, width] by, float64."""
    if not probability:
        return torch.ones(rows, width, dtype=torch.float64)
    groups = -(-width // 8)
    numbers = np.arange(rows * groups)
    words = np.stack(philox([numbers, *3 * [numbers * 0]], (key & 0xFFFFFFFF, key >> 32)), axis=-1)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    levels = halves.reshape(rows, groups * 8)[:, :width].astype(np.int64)
    dropped = round(probability * 65536)
    return torch.from_numpy(levels >= dropped).double() * (65536 / (65536 - dropped))


def weight_factors(key: int, begin: int, tokens: int, head: int, probability: float) -> Tensor:
    """Return what dropout multiplies attention's weights by, float64 [tokens, tokens], of one head of a sequence.

    `begin` is the number of the sequence's first token among all tokens.
    """
    if not probability:
        return torch.ones(tokens, tokens, dtype=torch.float64)
    query, column = np.meshgrid(begin + np.arange(tokens), np.arange(tokens), indexing="ij")
    counter = [query, column // 64 * 4 + column % 8 // 2, np.full_like(query, head), np.zeros_like(query)]
    words = np.stack(philox(counter, (key & 0xFFFFFFFF, key >> 32), rounds=7))
    byte = column % 64 // 8 * 2 + column % 2
    word = np.take_along_axis(words, (byte // 4)[None], axis=0)[0]
    levels = (word >> (byte % 4 * 8).astype(np.uint64)) & np.uint64(0xFF)
    dropped = round(probability * 256)
    return torch.from_numpy(levels.astype(np.int64) >= dropped).double() * (256 / (256 - dropped))
