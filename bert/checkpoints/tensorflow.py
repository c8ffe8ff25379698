"""TensorFlow checkpoints (the "V2" tensor bundle) without TensorFlow.

PREFIX.index is a LevelDB table of tensor name -> data type, shape, file, place and CRC; PREFIX.data-00000-of-0000N hold
the bytes. The messages are those of tensorflow/core/protobuf/tensor_bundle.proto. The names of variables are
google-research/bert's; `hugging_face_name` translates them.

A table is a row of blocks and a footer that says where the index block lies, whose entries say where the data blocks
lie. Keys are sorted; each leaves out what it shares with the one before. Every block ends in its kind of compression
and its masked CRC-32C. https://github.com/google/leveldb/blob/main/doc/table_format.md and
https://protobuf.dev/programming-guides/encoding.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import InputError
from common.reading import read_errors

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")

_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SLICES = 7
"""Field of a BundleEntryProto that says how a variable is cut into parts."""

# Numbers of tensorflow/core/framework/types.proto. What is not here (text, resources) is not a weight.
_TYPES: dict[int, torch.dtype] = {
    1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16,
}  # fmt: skip

# Of optimizers (Adam, LAMB), of loss scaling and of the schedule: no weights.
_NO_WEIGHT = re.compile(
    r"(adam|lamb)_[mv]|global_step|(^|/)(adam\w*|lamb\w*|beta[12]_power|loss_scale|good_steps|learning_rate)(/|$)",
    re.IGNORECASE,
)
# Heads of run_classifier.py, which are in no scope.
_CLASSIFIER = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}
_LAST_PARTS = {
    "kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias",
}  # fmt: skip


def index_file(prefix: Path) -> Path:
    """Return the file that makes `prefix` a checkpoint."""
    return prefix.with_name(f"{prefix.name}.index")


def read_variables(prefix: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the wanted variables of the checkpoint whose files begin with `prefix`, and the names of all others.

    Checksums are verified. What is not numeric (text, the object graph) is among the others. Raises InputError.
    """
    path = index_file(prefix)
    with read_errors(path, "give the .index of a checkpoint"):
        table = path.read_bytes()
    try:
        rows = dict(index_entries(table))
        shards = dict(fields(rows.pop(b"")))[1]
        # Keys that begin with a zero are parts of partitioned variables.
        entries = {key.decode(): dict(fields(value)) for key, value in rows.items() if not key.startswith(b"\0")}
        shapes = {
            name: [dict(fields(size)).get(1, 0) for number, size in fields(entry.get(2, b"")) if number == 2]
            for name, entry in entries.items()
        }
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(
            "file-damaged", f"{path} is damaged or not a TensorFlow index ({error}): copy it again"
        ) from error
    names = [name for name, entry in entries.items() if entry.get(1, 0) in _TYPES and wanted(name)]
    if sliced := [name for name in names if _SLICES in entries[name]]:
        raise InputError(
            "model-unsupported", f"{sliced[0]} of {path} is partitioned: save the checkpoint anew with whole variables"
        )
    tensors = {name: _read(prefix, shards, name, entries[name]).reshape(shapes[name]) for name in names}
    return tensors, tuple(entries.keys() - tensors.keys())


def _read(prefix: Path, shards: int, name: str, entry: dict[int, Any]) -> Tensor:
    """Return the flat tensor of a BundleEntryProto, by number of field: 1 type, 3 file, 4 offset, 5 size, 6 CRC."""
    from google_crc32c import value

    kind, size = _TYPES[entry[1]], entry.get(5, 0)
    path = prefix.with_name(f"{prefix.name}.data-{entry.get(3, 0):05d}-of-{shards:05d}")
    remedy = f"copy all files {prefix.name}.* again from their source"
    with read_errors(path, remedy):
        content = np.fromfile(path, np.uint8, size, offset=entry.get(4, 0))
    if masked(value(content.tobytes())) != entry.get(6, 0):
        raise InputError("file-damaged", f"the checksum of {name} in {path} is wrong: {remedy}")
    return torch.from_numpy(content).view(kind) if size else torch.empty(0, dtype=kind)


def is_weight(name: str) -> bool:
    """Return whether a variable is a weight; optimizers and schedules keep theirs under names of their own."""
    return _NO_WEIGHT.search(name) is None


def hugging_face_name(name: str) -> tuple[str, bool]:
    """Return the parameter's name of a variable that is a weight, and whether the matrix must be transposed.

    bert/encoder/layer_0/attention/self/query/kernel -> bert.encoder.layer.0.attention.self.query.weight, transposed.
    """
    name = name.removeprefix("module/")
    if name in _CLASSIFIER:
        return _CLASSIFIER[name], False
    parts = name.replace("cls/squad/", "qa_outputs/").split("/")  # run_squad.py's head
    last = parts[-1]
    transposed = last == "kernel"
    if last.endswith("_embeddings"):
        parts.append("weight")
    else:
        parts[-1] = _LAST_PARTS.get(last, last)
    return ".".join(re.sub(r"^layer_(\d+)$", r"layer.\1", part) for part in parts), transposed


def masked(crc: int) -> int:
    """Return a CRC-32C as LevelDB and TensorFlow store it, so that CRCs of CRCs stay good checks."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def index_entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
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
