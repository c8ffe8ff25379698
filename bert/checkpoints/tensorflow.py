"""TensorFlow checkpoints (the "V2" tensor bundle) without TensorFlow.

PREFIX.index is a LevelDB table of tensor name -> data type, shape, file, place and CRC; PREFIX.data-00000-of-0000N hold
the bytes. The messages are those of tensorflow/core/protobuf/tensor_bundle.proto. The names of variables are
google-research/bert's; `hugging_face_name` translates them.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bert.checkpoints.tensorflow_index import entries, fields, masked, signed
from common.errors import InputError, read_code
from common.reading import read_errors

_MOST_FILES = 100_000  # their number has five digits
_READ_BYTES = 1 << 20

# Numbers of tensorflow/core/framework/types.proto. What is not here (text, resources) is not a weight.
_TYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}

# Of optimizers (Adam, LAMB), of loss scaling and of the schedule: no weights.
_NO_WEIGHT = re.compile(
    r"(adam|lamb)_[mv]|global_step|(^|/)(adam\w*|lamb\w*|beta[12]_power|loss_scale|good_steps|learning_rate)(/|$)",
    re.IGNORECASE,
)
# Heads that Hugging Face has under another name (run_squad.py's).
_HEADS = {"cls/squad/": "qa_outputs/"}
# Those of run_classifier.py, which are in no scope.
_CLASSIFIER = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}
_WHOLE_PARTS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies."""

    shape: tuple[int, ...]
    type_number: int
    """TensorFlow's number of its data type."""
    shard: int
    """Number of its data file, from 0."""
    offset: int
    """Its first byte in that file."""
    size: int
    """Its bytes."""
    crc: int
    """Masked CRC-32C of these bytes."""
    partitioned: bool
    """It is stored in slices, under other keys."""


@dataclass(frozen=True, slots=True)
class TensorFlowCheckpoint:
    """An index; tensors are read when they are asked for."""

    prefix: Path
    """What the names of its files begin with."""
    num_shards: int
    big_endian: bool
    """Byte order of the tensors."""
    entries: Mapping[str, TensorEntry]
    """Every tensor by its name, in the order of the names."""

    def holds_numbers(self, name: str) -> bool:
        """Return whether a tensor is numeric; others (text, the object graph) cannot be read."""
        return self.entries[name].type_number in _TYPES

    def read(self, name: str) -> Tensor:
        """Return one tensor, its checksum verified.

        Raises:
            InputError: it is missing, of a type that is not a number, or stored in slices; its file is missing, too
                short or damaged.
        """
        entry = self.entries.get(name)
        index = index_file(self.prefix)
        if entry is None:
            raise InputError(
                "weights-mismatch", f"{index} has no tensor {name!r}: it has {', '.join(list(self.entries)[:3])}, ..."
            )
        if entry.partitioned:
            raise InputError(
                "model-unsupported", f"{name} of {index} is partitioned: save it in TensorFlow without a partitioner"
            )
        kind = _TYPES.get(entry.type_number)
        if kind is None:
            raise InputError(
                "model-unsupported", f"{name} of {index} has data type {entry.type_number}: weights are numbers"
            )
        content = self._bytes(name, entry)
        if not entry.size:
            return torch.empty(entry.shape, dtype=kind)
        if self.big_endian:
            swapped = np.frombuffer(content, f"V{kind.itemsize}").view(np.uint8).reshape(-1, kind.itemsize)[:, ::-1]
            content = bytearray(swapped.tobytes())
        return torch.frombuffer(content, dtype=kind).reshape(entry.shape)

    def _bytes(self, name: str, entry: TensorEntry) -> bytearray:
        from google_crc32c import extend

        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        remedy = f"copy all files {self.prefix.name}.* again from their source"
        try:
            with path.open("rb") as file:
                held = file.seek(0, 2)
                if entry.offset + entry.size > held:
                    raise InputError(
                        "file-truncated",
                        f"{path} is cut short: {name} ends at {entry.offset + entry.size}, it at {held}; {remedy}",
                    )
                file.seek(entry.offset)
                content, crc = bytearray(), 0
                while part := file.read(min(_READ_BYTES, entry.size - len(content))):
                    content += part
                    crc = extend(crc, part)
                if len(content) != entry.size:
                    raise InputError("file-changed", f"{path} was truncated while being read; {remedy}")
        except OSError as error:
            raise InputError(
                read_code(error),
                f"cannot read {path}, one of {self.num_shards} .data files: {error.strerror}; {remedy}",
            ) from error
        if masked(crc) != entry.crc:
            raise InputError("file-damaged", f"the checksum of {name} in {path} is wrong: {remedy}")
        return content


def index_file(prefix: Path) -> Path:
    """Return the file that makes `prefix` a checkpoint."""
    return prefix.with_name(f"{prefix.name}.index")


def open_checkpoint(prefix: Path) -> TensorFlowCheckpoint:
    """Read the index of the checkpoint whose files begin with `prefix`."""
    path = index_file(prefix)
    with read_errors(path, "give the .index of a checkpoint"):
        table = path.read_bytes()
    try:
        return _parse(prefix, table)
    except ValueError as error:
        raise InputError(
            "file-damaged", f"{path} is damaged or not a TensorFlow index ({error}): copy it again"
        ) from error


def _parse(prefix: Path, table: bytes) -> TensorFlowCheckpoint:
    found: dict[str, TensorEntry] = {}
    header: tuple[int, bool] | None = None
    for key, value in entries(table):
        if header is None:
            if key:
                raise ValueError("it does not start with a header")
            header = _header(value)
        elif not key.startswith(b"\0"):  # such keys are the slices of partitioned variables
            found[key.decode("utf-8")] = _entry(value, header[0])
    if header is None:
        raise ValueError("it is empty")
    return TensorFlowCheckpoint(prefix, header[0], header[1], found)


def _header(message: bytes) -> tuple[int, bool]:
    shards, endianness = 0, 0
    for number, value in fields(message):
        if number == 1:
            if isinstance(value, bytes):
                raise ValueError("it is a checkpoint in the format of 2016 or before: save it again with TensorFlow 1")
            shards = value
        elif number == 2:
            endianness = _integer(value)
    if not 0 < shards <= _MOST_FILES or endianness > 1:
        raise ValueError(f"its header lists {shards} data files and the byte order {endianness}")
    return shards, endianness == 1


def _entry(message: bytes, num_shards: int) -> TensorEntry:
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    partitioned = False
    for number, value in fields(message):
        if number == 2:
            shape = _shape(_message(value))
        elif number == 7:
            partitioned = True
        elif number in numbers:
            numbers[number] = _integer(value)
    kind, shard, offset, size, crc = numbers.values()
    if shard >= num_shards:
        raise ValueError(f"an entry refers to data file {shard} of {num_shards}")
    if kind in _TYPES and not partitioned and size != math.prod(shape) * _TYPES[kind].itemsize:
        raise ValueError(f"a tensor of shape {list(shape)} and type {kind} cannot have {size} bytes")
    return TensorEntry(shape, kind, shard, offset, size, crc, partitioned)


def _shape(message: bytes) -> tuple[int, ...]:
    found: list[int] = []
    for number, value in fields(message):
        if number == 2:
            sizes = [signed(_integer(size)) for inner, size in fields(_message(value)) if inner == 1]
            found.append(sizes[-1] if sizes else 0)
        elif number == 3 and value:
            raise ValueError("a tensor has an unknown shape")
    if any(size < 0 for size in found):
        raise ValueError(f"a tensor has the shape {found[:8]}")
    return tuple(found)


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message is found where a number is expected")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number is found where a message is expected")
    return value


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
    for theirs, published in _HEADS.items():
        if name.startswith(theirs):
            name = published + name.removeprefix(theirs)
    parts = name.split("/")
    last = parts[-1]
    transposed = last == "kernel"
    if last.endswith("_embeddings"):
        parts.append("weight")
    else:
        parts[-1] = _WHOLE_PARTS.get(last, last)
    return ".".join(re.sub(r"^layer_(\d+)$", r"layer.\1", part) for part in parts), transposed
