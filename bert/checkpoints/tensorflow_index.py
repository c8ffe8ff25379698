"""The index of a TensorFlow checkpoint: LevelDB's sorted table, with values in the wire format of protocol buffers.

A table is a row of blocks and a footer that says where the index block lies, whose entries say where the data blocks
lie. Keys are sorted; each leaves out what it shares with the one before. Every block ends in its kind of compression
and its masked CRC-32C. https://github.com/google/leveldb/blob/main/doc/table_format.md and
https://protobuf.dev/programming-guides/encoding. Read only.
"""

from collections.abc import Iterator
from typing import Any

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")

_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def masked(crc: int) -> int:
    """Return a CRC-32C as LevelDB and TensorFlow store it, so that CRCs of CRCs stay good checks."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values in the order of the keys. Raises ValueError, IndexError if the table is damaged."""
    footer = table[-_FOOTER_BYTES:]
    if not footer.endswith(MAGIC):
        raise ValueError("it does not end as a table does")
    _, position = _handle(footer, 0)  # of the metadata, of which TensorFlow keeps none
    index, _ = _handle(footer, position)
    for _, value in _block_entries(_block(table, *index)):
        yield from _block_entries(_block(table, *_handle(value, 0)[0]))


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return where a block starts and its size, and where the handle ends."""
    start, position = _varint(data, position)
    size, position = _varint(data, position)
    return (start, size), position


def _block(table: bytes, start: int, size: int) -> bytes:
    """Return the content of a block, checked and decompressed: until 2018 TensorFlow wrote Snappy."""
    import google_crc32c
    from cramjam import snappy

    end = start + size
    expected = int.from_bytes(table[end + 1 : end + _TRAILER_BYTES], "little")
    if masked(google_crc32c.value(table[start : end + 1])) != expected:
        raise ValueError(f"the checksum of the block at byte {start} is wrong")
    content, is_compressed = table[start:end], table[end] == 1
    return bytes(snappy.decompress_raw(content)) if is_compressed else content


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; the places to restart from, which follow the entries, are only for searching."""
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    position, key = 0, b""
    while position < end:
        shared, position = _varint(block, position)
        added, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + added]
        position += added
        yield key, block[position : position + length]
        position += length


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message: an unsigned integer, or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        else:
            length = {_FIXED32: 4, _FIXED64: 8}[kind]
        content = data[position : position + length]
        position += length
        yield number, content if kind == _BYTES else int.from_bytes(content, "little")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at `position` and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
