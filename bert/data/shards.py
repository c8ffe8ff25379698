"""One HDF5 shard of pretraining instances: written whole or not at all, checked, read. Imports no torch."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.instances import Instances
from common.atomic import atomic_path
from common.errors import InputError

SETTINGS_ATTRIBUTE = "bertbench_settings"
# dataset -> dtype, and whether it has one row per instance of L tokens, of P predictions, or a single value.
_COLUMNS = {
    "input_ids": ("int32", "L"),
    "input_mask": ("int8", "L"),
    "segment_ids": ("int8", "L"),
    "masked_lm_positions": ("int32", "P"),
    "masked_lm_ids": ("int32", "P"),
    "next_sentence_labels": ("int8", ""),
}
assert list(_COLUMNS) == [field.name for field in fields(Instances)]
_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What the header of a shard says."""

    path: Path
    """The file."""
    samples: int
    """Instances, N."""
    seq_len: int
    """Tokens per instance, L."""
    max_predictions: int
    """Masked positions per instance at most, P."""
    settings: str | None
    """Fingerprint of the settings that `data pretrain` made it with; None for a file from elsewhere."""


def write_shard(path: Path, instances: Instances, settings: str | None = None) -> None:
    """Write a shard, gzip-compressed; the same instances give the same bytes.

    Raises:
        InputError: there are no instances, which no reader could use.
        StorageError: the folder cannot be written or the disk is full.
    """
    import h5py

    if not len(instances):
        raise InputError(f"no instance for {path.name}: its documents hold no text; use fewer shards")
    # Made in memory (compressed) and written as plain bytes: on a full disk the HDF5 library crashes the process.
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        for name, (dtype, _) in _COLUMNS.items():
            array = getattr(instances, name).astype(dtype, copy=False)
            chunks = (min(_CHUNK_ROWS, len(array)), *array.shape[1:])
            file.create_dataset(name, data=array, compression="gzip", chunks=chunks, track_times=False)
        if settings is not None:
            file.attrs[SETTINGS_ATTRIBUTE] = settings
        file.flush()
        image = file.id.get_file_image()
    with atomic_path(path) as temporary:
        temporary.write_bytes(image)


def check_shard(path: Path) -> ShardInfo:
    """Read the header of a shard and check that it is whole and has the datasets of the format.

    Raises:
        InputError: truncated, not HDF5, a dataset missing, of another type or shape, or no instance; the message names
            the file.
    """
    with _opened(path) as file:
        return _check(path, file)


def read_shard(path: Path) -> Instances:
    """Read a whole shard into memory.

    Raises:
        InputError: as check_shard, and where the data cannot be decompressed or holds values no instance can have.
    """
    with _opened(path) as file:
        _check(path, file)
        try:
            instances = Instances(**{name: file[name][:] for name in _COLUMNS})
        except OSError as error:
            raise InputError(f"{path} is damaged ({error}): make or copy it again") from error
    _check_values(path, instances)
    return instances


def _opened(path: Path) -> Any:
    import h5py

    try:
        return h5py.File(path, "r")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: give a folder of HDF5 shards") from error
    except OSError as error:
        reason = "it is truncated" if "truncated" in str(error) else f"it is no readable HDF5 file ({error})"
        raise InputError(
            f"{path} is damaged: {reason}; make it again with `bertbench data pretrain`, or copy it again"
        ) from error


def _check(path: Path, file: Any) -> ShardInfo:
    import h5py

    missing = [name for name in _COLUMNS if not isinstance(file.get(name), h5py.Dataset)]
    if missing:
        raise InputError(f"{path} lacks the dataset(s) {', '.join(missing)}: it is no shard of pretraining instances")
    shapes = {name: file[name].shape for name in _COLUMNS}
    for name, (dtype, row) in _COLUMNS.items():
        if not np.issubdtype(file[name].dtype, np.integer):
            raise InputError(f"{path}: {name} has type {file[name].dtype}; it must be an integer type ({dtype})")
        if len(shapes[name]) != (2 if row else 1):
            raise InputError(f"{path}: {name} has shape {shapes[name]}; it must have {'2 axes' if row else '1 axis'}")
    if len({shape[0] for shape in shapes.values()}) > 1:
        lengths = ", ".join(f"{name} {shape[0]}" for name, shape in shapes.items())
        raise InputError(f"{path}: its datasets differ in length ({lengths}): make it again")
    for row in ("L", "P"):
        widths = {name: shapes[name][1] for name, (_, kind) in _COLUMNS.items() if kind == row}
        if len(set(widths.values())) > 1 or not min(widths.values()):
            raise InputError(f"{path}: its datasets differ in width ({widths}), or have none: make it again")
    samples, seq_len = shapes["input_ids"]
    if not samples:
        raise InputError(f"{path} holds no instance: remove it or make it again")
    settings = file.attrs.get(SETTINGS_ATTRIBUTE)
    return ShardInfo(path, samples, seq_len, shapes["masked_lm_ids"][1], None if settings is None else str(settings))


def _check_values(path: Path, instances: Instances) -> None:
    seq_len = instances.input_ids.shape[1]
    for name, low, high in (
        ("input_ids", 0, None),
        ("input_mask", 0, 1),
        ("segment_ids", 0, 1),
        ("masked_lm_positions", 0, seq_len - 1),
        ("masked_lm_ids", 0, None),
        ("next_sentence_labels", 0, 1),
    ):
        values = getattr(instances, name)
        least, most = int(values.min()), int(values.max())
        if least < low or (high is not None and most > high):
            allowed = f"{low} to {high}" if high is not None else f"{low} or more"
            raise InputError(f"{path}: {name} holds values from {least} to {most}; allowed is {allowed}: make it again")
    lengths = instances.input_mask.sum(axis=1, dtype=np.int64)
    if (lengths == 0).any() or (np.diff(instances.input_mask, axis=1) > 0).any():
        row = int(np.flatnonzero((lengths == 0) | (np.diff(instances.input_mask, axis=1) > 0).any(axis=1))[0])
        raise InputError(f"{path}: input_mask of instance {row} is not a run of 1 followed by 0: make it again")
