"""TensorFlow checkpoints (the "V2" tensor bundle) without TensorFlow.

PREFIX.index is a LevelDB table of tensor name -> data type, shape, file, place and CRC; PREFIX.data-00000-of-0000N hold
the bytes. The messages are those of tensorflow/core/protobuf/tensor_bundle.proto. The names of variables are
google-research/bert's; `hugging_face_name` translates them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bert.checkpoints.tensorflow_index import entries, fields, masked
from common.errors import InputError
from common.reading import read_errors

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
        """Return one tensor of numbers, its checksum verified.

        Raises:
            InputError: it is stored in slices, or its file is missing, too short or damaged.
        """
        from google_crc32c import value

        entry = self.entries[name]
        if entry.partitioned:
            raise InputError(
                "model-unsupported", f"{name} of {self.prefix} is partitioned: save it without a partitioner"
            )
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        remedy = f"copy all files {self.prefix.name}.* again from their source"
        with read_errors(path, remedy):
            content = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        if len(content) < entry.size:
            raise InputError("file-truncated", f"{path} ends inside {name}: {remedy}")
        if masked(value(content.tobytes())) != entry.crc:
            raise InputError("file-damaged", f"the checksum of {name} in {path} is wrong: {remedy}")
        kind = _TYPES[entry.type_number]
        if self.big_endian:
            content = np.ascontiguousarray(content.reshape(-1, kind.itemsize)[:, ::-1]).reshape(-1)
        tensor = torch.from_numpy(content).view(kind) if entry.size else torch.empty(0, dtype=kind)
        return tensor.reshape(entry.shape)


def index_file(prefix: Path) -> Path:
    """Return the file that makes `prefix` a checkpoint."""
    return prefix.with_name(f"{prefix.name}.index")


def open_checkpoint(prefix: Path) -> TensorFlowCheckpoint:
    """Read the index of the checkpoint whose files begin with `prefix`."""
    path = index_file(prefix)
    with read_errors(path, "give the .index of a checkpoint"):
        table = path.read_bytes()
    try:
        rows = dict(entries(table))
        header = dict(fields(rows.pop(b"")))
        # Keys that begin with a zero are the slices of partitioned variables.
        tensors = {key.decode(): _entry(value) for key, value in rows.items() if not key.startswith(b"\0")}
        return TensorFlowCheckpoint(prefix, header[1], header.get(2) == 1, tensors)
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(
            "file-damaged", f"{path} is damaged or not a TensorFlow index ({error}): copy it again"
        ) from error


def _entry(message: bytes) -> TensorEntry:
    about = dict(fields(message))
    shape = tuple(dict(fields(size)).get(1, 0) for number, size in fields(about.get(2, b"")) if number == 2)
    kind, shard, offset, size, crc = (about.get(number, 0) for number in (1, 3, 4, 5, 6))
    return TensorEntry(shape, kind, shard, offset, size, crc, partitioned=7 in about)


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
