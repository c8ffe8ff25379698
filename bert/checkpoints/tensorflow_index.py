"""The index of a TensorFlow checkpoint: LevelDB's sorted table, with values in the wire format of protocol buffers.

A table is a row of blocks and a footer that says where the index block lies, whose entries say where the data blocks
lie. Keys are sorted; each leaves out what it shares with the one before. Every block ends in its kind of compression
and its masked CRC-32C. https://github.com/google/leveldb/blob/main/doc/table_format.md and
https://protobuf.dev/programming-guides/encoding. Read only.
"""

from collections.abc import Iterator

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48

_TRAILER_BYTES = 5
_MASK_DELTA = 0xA282EAD8
_MOST_GROWTH = 22  # a copy of 3 bytes in Snappy data yields at most 64
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def masked(crc: int) -> int:
    """Return a CRC-32C as LevelDB and TensorFlow store it, so that CRCs of CRCs stay good checks."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values in the order of the keys."""
    if len(table) < FOOTER_BYTES:
        raise ValueError(f"it has {len(table)} bytes, less than the {FOOTER_BYTES} of a footer")
    footer = table[-FOOTER_BYTES:]
    if not footer.endswith(MAGIC):
        raise ValueError("it does not end with a table's magic number")
    position = varint(footer, varint(footer, 0)[1])[1]  # past the metadata's handle: TensorFlow keeps none there
    start, position = varint(footer, position)
    size, position = varint(footer, position)
    last: bytes | None = None
    for _, handle in _block_entries(_block(table, start, size)):
        data_start, end = varint(handle, 0)
        for key, value in _block_entries(_block(table, data_start, varint(handle, end)[0])):
            # Sorted keys also mean that no block is read twice, however often a damaged index names it.
            if last is not None and key <= last:
                raise ValueError(f"the key {key[:80]!r} comes after {last[:80]!r}, out of order")
            last = key
            yield key, value


def _block(table: bytes, start: int, size: int) -> bytes:
    """The content of the block of `size` bytes at `start`, checked and decompressed."""
    import google_crc32c

    end = start + size
    if end + _TRAILER_BYTES > len(table) - FOOTER_BYTES:
        raise ValueError(f"a block of {size} bytes at {start} does not fit into {len(table)} bytes")
    kind = table[end]
    expected = int.from_bytes(table[end + 1 : end + _TRAILER_BYTES], "little")
    if masked(google_crc32c.value(table[start : end + 1])) != expected:
        raise ValueError(f"the checksum of the block at byte {start} is wrong")
    if kind == 0:
        return table[start:end]
    if kind == 1:
        return _decompressed(table[start:end])
    raise ValueError(f"the block at byte {start} has the unknown compression {kind}")


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; the places to restart from, which follow the entries, are only for searching."""
    if len(block) < 4:
        raise ValueError("a block is too short")
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    if end < 0:
        raise ValueError("a block lists more restart points than it can hold")
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        length, position = varint(block, position)
        if shared > len(key) or position + own + length > end:
            raise ValueError("a block holds a damaged entry")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + length]
        position += length


def _decompressed(data: bytes) -> bytes:
    """The content of a block in Snappy's format, in which TensorFlow wrote until 2018."""
    from cramjam import DecompressionError, snappy

    length = varint(data, 0)[0]
    if length > _MOST_GROWTH * len(data):  # otherwise cramjam would make room for it
        raise ValueError(f"{len(data)} bytes of Snappy data cannot hold {length} bytes")
    try:
        return bytes(snappy.decompress_raw(data))
    except DecompressionError as error:
        raise ValueError(str(error)) from error


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
            raise ValueError(f"a field has the unknown wire type {kind}")
        content = data[position : position + length]
        if len(content) != length:
            raise ValueError("a message ends inside a field")
        position += length
        yield number, content if kind == BYTES else int.from_bytes(content, "little")


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer (below 2^64) at `position` and where it ends. Raises ValueError."""
    value = 0
    for index in range(10):
        if position + index >= len(data):
            raise ValueError("the data ends inside a number")
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
