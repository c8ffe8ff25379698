"""Writes TensorFlow checkpoints for the tests of their reader, compressed, in several files and of any byte order."""

from pathlib import Path

import google_crc32c
import torch
from cramjam import snappy
from torch import Tensor

from bert.checkpoints.tensorflow import MAGIC, masked

KINDS = {torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.int64: 9, torch.bfloat16: 14, torch.float16: 19}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(kind: int, shape: list[int], shard: int, offset: int, size: int, crc: int) -> bytes:
    dims = b"".join(message(2, number(1, length)) for length in shape)
    place = number(3, shard) + number(4, offset) + number(5, size)
    return number(1, kind) + message(2, dims) + place + varint(6 << 3 | 5) + crc.to_bytes(4, "little")


def header(shards: int) -> bytes:
    return number(1, shards) + message(3, number(1, 1))


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Entries that leave out what their key shares with the one before, and one place to restart from."""
    found, last = b"", b""
    for key, value in entries:
        shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        found += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return found + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


def sealed(content: bytes, compressed: bool = False) -> bytes:
    """A block with its trailer."""
    content = (bytes(snappy.compress_raw(content)) + b"\x01") if compressed else content + b"\x00"
    return content + masked(google_crc32c.value(content)).to_bytes(4, "little")


def table(blocks: list[tuple[bytes, bytes]], compressed: bool = False) -> bytes:
    """Blocks with their last keys -> a whole file."""
    found, index = b"", []
    for last, content in blocks:
        whole = sealed(content, compressed)
        index.append((last, varint(len(found)) + varint(len(whole) - 5)))
        found += whole
    handles = b""
    for content in (block([]), block(index)):
        whole = sealed(content, compressed)
        handles += varint(len(found)) + varint(len(whole) - 5)
        found += whole
    return found + handles.ljust(40, b"\0") + MAGIC


def rows_of(tensors: dict[str, Tensor], shards: int = 1) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The rows of an index and the data files; tensors go to the files in turn."""
    rows, files = [(b"", header(shards))], [b""] * shards
    for place, (name, tensor) in enumerate(sorted(tensors.items())):
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        shard = place % shards
        crc = masked(google_crc32c.value(content))
        row = entry(KINDS[tensor.dtype], list(tensor.shape), shard, len(files[shard]), len(content), crc)
        rows.append((name.encode(), row))
        files[shard] += content
    return rows, files


def write_rows(prefix: Path, rows: list[tuple[bytes, bytes]], files: list[bytes], compressed: bool = False) -> None:
    """A checkpoint with 8 rows of the index in a block."""
    blocks = [(rows[i : i + 8][-1][0], block(rows[i : i + 8])) for i in range(0, len(rows), 8)]
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(blocks, compressed))
    for shard, content in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{len(files):05d}").write_bytes(content)


def write_checkpoint(prefix: Path, tensors: dict[str, Tensor], *, shards: int = 1, compressed: bool = False) -> None:
    write_rows(prefix, *rows_of(tensors, shards), compressed)
