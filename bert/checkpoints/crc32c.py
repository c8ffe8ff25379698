"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), fast enough in NumPy for checkpoints of gigabytes.

A CRC is the remainder of the data, as a polynomial over GF(2), by a fixed polynomial, and so linear: the data is cut
into rows of many 32-bit words, the rows are added up column by column (each earlier row multiplied by x to the power
of the bits in a row), and at the end the columns in the same way. Each multiplication is two table look-ups.
"""

import sys
from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # bits reversed: bit 31 is x^0
_MASK_DELTA = 0xA282EAD8
_MOST_WORDS_PER_ROW_LOG2 = 14  # 64 KiB: row and sum stay in the processor's cache


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of `data`."""
    view = memoryview(data).cast("B")
    if len(view) < 64:
        return _short(view)
    log2 = min(_MOST_WORDS_PER_ROW_LOG2, (len(view) // 32).bit_length() - 1)
    row = 4 << log2
    # Leading zeros change nothing, so the first rows are padded in front; two rows hold the 4 bytes that are inverted.
    head = len(view) % row + row
    first = bytearray(2 * row)
    first[2 * row - head :] = view[:head]
    for index in range(4):
        first[2 * row - head + index] ^= 0xFF
    total = np.zeros(1 << log2, np.uint32)
    for part in (memoryview(first), view[head:]):
        for start in range(0, len(part), row):
            total = _times(total, log2) ^ _words(part[start : start + row])
    for level in reversed(range(log2)):
        half = 1 << level
        total = _times(total[:half], level) ^ total[half:]
    return int(_times(total, 0)[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of `data` as LevelDB and TensorFlow store it, so that CRCs of CRCs stay good checks."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _words(part: memoryview) -> Words:
    words = np.frombuffer(part, "<u4")
    return words if sys.byteorder == "little" else words.astype(np.uint32)


def _short(view: memoryview) -> int:
    table = _byte_table()
    value = 0xFFFFFFFF
    for byte in view:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@cache
def _byte_table() -> tuple[int, ...]:
    return tuple(_shifted(value, 8) for value in range(256))


def _shifted(value: int, bits: int) -> int:
    """`value` times x^bits."""
    for _ in range(bits):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


def _times(values: Words, log2: int) -> Words:
    """`values` times x^(32 x 2^log2)."""
    low, high = _tables(log2)
    product: Words = low[values & 0xFFFF] ^ high[values >> 16]
    return product


@cache
def _tables(log2: int) -> tuple[Words, Words]:
    """Products of all low and all high halves of a word."""
    if log2 == 0:
        images = np.array([_shifted(1 << bit, 32) for bit in range(32)], np.uint32)
    else:
        units = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
        images = _times(_times(units, log2 - 1), log2 - 1)
    return _sums(images[:16]), _sums(images[16:])


def _sums(images: Words) -> Words:
    """For each 16-bit number the sum of the images of its bits."""
    sums = np.zeros(1, np.uint32)
    for image in images:
        sums = np.concatenate([sums, sums ^ image])
    return sums
