"""LevelDB's sorted table, in which TensorFlow keeps the index of a checkpoint. Read only.

A table is a row of blocks and a footer that says where the index block lies, whose entries say where the data blocks
lie. Keys are sorted; each leaves out what it shares with the one before. Every block ends in its kind of compression
and its masked CRC-32C. https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from collections.abc import Iterator

from bert.checkpoints.crc32c import masked_crc32c
from bert.checkpoints.protobuf import varint
from bert.checkpoints.snappy import decompress

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48

_TRAILER_BYTES = 5
_LONGEST_KEY = 4096


def entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values in the order of the keys.

    Raises:
        ValueError: it is no such table, or damaged; the message says how.
    """
    if len(table) < FOOTER_BYTES:
        raise ValueError(f"it has {len(table)} bytes, fewer than the {FOOTER_BYTES} of a footer")
    footer = table[-FOOTER_BYTES:]
    if not footer.endswith(MAGIC):
        raise ValueError("it does not end as a table does")
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
    end = start + size
    if end + _TRAILER_BYTES > len(table) - FOOTER_BYTES:
        raise ValueError(f"a block of {size} bytes at {start} does not fit into {len(table)} bytes")
    kind = table[end]
    if masked_crc32c(table[start : end + 1]) != int.from_bytes(table[end + 1 : end + _TRAILER_BYTES], "little"):
        raise ValueError(f"the checksum of the block at byte {start} is wrong")
    if kind == 0:
        return table[start:end]
    if kind == 1:
        return decompress(table[start:end])
    raise ValueError(f"the block at byte {start} is compressed in the unknown way {kind}")


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; the places to restart from, which follow the entries, are only for searching."""
    if len(block) < 4:
        raise ValueError("a block is too short")
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    if end < 0:
        raise ValueError("a block names more places to restart from than it can hold")
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        length, position = varint(block, position)
        if shared > len(key) or shared + own > _LONGEST_KEY or position + own + length > end:
            raise ValueError("a block holds a damaged entry")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + length]
        position += length
