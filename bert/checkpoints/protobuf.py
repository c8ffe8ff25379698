"""The wire format of protocol buffers, as much of it as the index of a TensorFlow checkpoint needs.

https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an unsigned integer, or bytes for texts and messages.

    Raises:
        ValueError: the data is not a message or damaged.
    """
    position = 0
    while position < len(data):
        tag, position = varint(data, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == VARINT:
            value, position = varint(data, position)
            yield number, value
            continue
        if kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        elif kind == BYTES:
            length, position = varint(data, position)
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        content = data[position : position + length]
        if len(content) != length:
            raise ValueError("a message ends within a field")
        position += length
        yield number, content if kind == BYTES else int.from_bytes(content, "little")


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer (below 2^64) at `position` and where it ends. Raises ValueError."""
    value = 0
    for index in range(10):
        if position + index >= len(data):
            raise ValueError("the data ends within a number")
        byte = data[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, position + index + 1
    raise ValueError("a number is longer than 64 bits")


def signed(value: int) -> int:
    """Return an int64 that was read as unsigned."""
    return value - (1 << 64) if value >> 63 else value
