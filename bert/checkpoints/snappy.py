"""Snappy's block format, read only: TensorFlow compressed the index of checkpoints with it until 2018.

The index of a large model is some 100 kB, so plain Python is fast enough and saves a dependency. The format:
https://github.com/google/snappy/blob/main/format_description.txt
"""

_MOST_GROWTH = 22  # a copy of 3 bytes yields at most 64


def decompress(data: bytes) -> bytes:
    """Return the decompressed bytes, of which there are at most 22 for each byte of `data`.

    Raises:
        ValueError: the data is not Snappy's or damaged; the message says how.
    """
    length, position = _length(data)
    if length > _MOST_GROWTH * len(data):
        raise ValueError(f"{len(data)} bytes of Snappy data cannot hold {length} bytes")
    found = bytearray()
    while position < len(data):
        tag = data[position]
        kind, position = tag & 3, position + 1
        if kind == 0:
            count, position = _literal_length(data, tag >> 2, position)
            if position + count > len(data):
                raise ValueError("Snappy data ends within a literal")
            found += data[position : position + count]
            position += count
        else:
            width = (1, 2, 4)[kind - 1]
            if position + width > len(data):
                raise ValueError("Snappy data ends within a copy")
            offset = int.from_bytes(data[position : position + width], "little")
            position += width
            count = (tag >> 2) + 1
            if kind == 1:
                offset |= tag >> 5 << 8
                count = (tag >> 2 & 7) + 4
            if not 0 < offset <= len(found):
                raise ValueError(f"a copy in Snappy data reaches back {offset} bytes where {len(found)} are known")
            _copy(found, offset, count)
        if len(found) > length:
            break
    if len(found) != length:
        raise ValueError(f"Snappy data announces {length} bytes and holds {'more' if len(found) > length else 'fewer'}")
    return bytes(found)


def _length(data: bytes) -> tuple[int, int]:
    """The announced length (a varint of at most 5 bytes) and where it ends."""
    length = 0
    for position, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return length, position + 1
    raise ValueError("Snappy data does not begin with a length")


def _literal_length(data: bytes, short: int, position: int) -> tuple[int, int]:
    """Length of a literal, and where its bytes start; above 60 the length follows in 1 to 4 bytes of its own."""
    if short < 60:
        return short + 1, position
    width = short - 59
    if position + width > len(data):
        raise ValueError("Snappy data ends within the length of a literal")
    return int.from_bytes(data[position : position + width], "little") + 1, position + width


def _copy(found: bytearray, offset: int, count: int) -> None:
    """Append `count` bytes from `offset` bytes back; what is being appended may be part of it."""
    start = len(found) - offset
    if offset >= count:
        found += found[start : start + count]
    else:
        piece = bytes(found[start:])
        found += (piece * (count // offset + 1))[:count]
