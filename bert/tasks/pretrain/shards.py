"""HDF5 shards of pretraining instances: their headers are checked, their data is read or mapped. Imports no torch.

A shard is either gzip-compressed, as everybody's code reads it, or stored plainly (gzip level 0), and then its data
lies in the file as arrays do in memory: `map_shard` gives access to it without reading it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shard_writer import (
    BIN_COUNTS_ATTRIBUTE,
    BIN_LENGTHS_ATTRIBUTE,
    COLUMNS,
    SETTINGS_ATTRIBUTE,
)
from common.errors import InputError, content_code

_MOST_GROWTH = 1100
"""Bytes that a byte of a file can hold: Deflate, which shards are compressed with, makes at most 1,032 of one."""

assert list(COLUMNS) == [field.name for field in fields(Instances)]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What the header of a shard says."""

    path: Path
    samples: int
    """Instances, N."""
    seq_len: int
    """Tokens per instance, L."""
    max_predictions: int
    """Masked positions per instance at most, P."""
    settings: str | None
    """Fingerprint of the settings that `data pretrain` made it with; None for a file from elsewhere."""
    bin_lengths: tuple[int, ...] = ()
    """Longest real length of each bin, ascending, the last is L; () = the rows are not binned."""
    bin_counts: tuple[int, ...] = ()
    """Rows of each bin; the rows lie bin after bin."""
    mappable: bool = False
    """The data lies plainly in the file: map_shard takes it."""


def check_shard(path: Path) -> ShardInfo:
    """Read the header of a shard and check that it is whole and has the datasets of the format.

    Raises:
        InputError: truncated, not HDF5, a dataset missing, of another type or shape, no instance, or bins that do not
            fit; the message names the file.
    """
    with opened(path) as file:
        return _check(path, file)


def read_shard(path: Path) -> Instances:
    """Read a whole shard into memory.

    Raises:
        InputError: as check_shard, and where the data cannot be decompressed or holds values no instance can have.
    """
    with opened(path) as file:
        _check(path, file)
        try:
            instances = Instances(**{name: file[name][:] for name in COLUMNS})
        except OSError as error:
            raise InputError("file-damaged", f"{path} is damaged ({error}): make or copy it again") from error
    _check_values(path, instances)
    return instances


def map_shard(path: Path) -> Instances:
    """Return a plainly stored shard as read-only arrays over the file: rows are read when they are used.

    The values are not checked, which would read all of them; `bertbench data inspect` does.

    Raises:
        InputError: as check_shard, and where the shard is compressed.
    """
    with opened(path) as file:
        info = _check(path, file)
        if not info.mappable:
            raise InputError(
                "file-format",
                f"{path} cannot be mapped into memory, it is compressed: read it, or make it again with --gzip-level 0",
            )
        places = {name: (file[name].dtype, file[name].shape, file[name].id.get_offset()) for name in COLUMNS}
    try:
        # Plain arrays over the map: NumPy's subclass is several times slower to index.
        arrays = {
            name: np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)
            for name, (dtype, shape, offset) in places.items()
        }
    except (OSError, ValueError) as error:
        raise InputError(
            "file-damaged", f"{path} cannot be mapped into memory ({error}): copy or make it again"
        ) from error
    return Instances(**arrays)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a shard for reading.

    Raises:
        InputError: it cannot be opened, holds no data of its own or impossibly much, or a read inside the block meets
            damaged data; the message names the file.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            _refuse_claims(path, file)
            yield file
    except FileNotFoundError as error:
        raise InputError("path-missing", f"{path} does not exist: give a folder of HDF5 shards") from error
    except (OSError, RuntimeError) as error:
        is_truncated = "truncated" in str(error)
        reason = "it is truncated" if is_truncated else f"it is no readable HDF5 file ({error})"
        raise InputError(
            "file-truncated" if is_truncated else content_code(error),
            f"{path} is damaged: {reason}; make it again with `bertbench data pretrain`, or copy it again",
        ) from error


def _refuse_claims(path: Path, file: Any) -> None:
    """Refuse data that lie in other files of this machine, and a header that announces more than the file can hold."""
    import h5py

    found = datasets_of(file)
    links = [name for name in file if not isinstance(file.get(name, getlink=True), h5py.HardLink)]
    links += [name for name, dataset in found.items() if dataset.is_virtual or dataset.external]
    if links:
        raise InputError(
            "file-unsafe", f"{path}: {links[0]} lies in another file: give shards that hold their own data"
        )
    announced, size = sum(int(dataset.nbytes) for dataset in found.values()), path.stat().st_size
    if announced > _MOST_GROWTH * size:
        raise InputError(
            "file-damaged",
            f"{path} has {size:,} bytes and announces {announced:,} bytes of data, more than it can hold: get it again",
        )


def datasets_of(file: Any) -> dict[str, Any]:
    """Return all datasets of an open file, at any depth, by their names in it."""
    import h5py

    found: dict[str, Any] = {}

    def visit(name: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset):
            found[name] = member

    file.visititems(visit)
    return found


def _check(path: Path, file: Any) -> ShardInfo:
    import h5py

    missing = [name for name in COLUMNS if not isinstance(file.get(name), h5py.Dataset)]
    if missing:
        raise InputError(
            "columns-missing",
            f"{path} lacks the dataset(s) {', '.join(missing)}: it is no shard of pretraining instances",
        )
    shapes = {name: file[name].shape for name in COLUMNS}
    for name, (dtype, row) in COLUMNS.items():
        if not np.issubdtype(file[name].dtype, np.integer):
            raise InputError(
                "file-damaged", f"{path}: {name} has type {file[name].dtype}; it must be an integer type ({dtype})"
            )
        if len(shapes[name]) != (2 if row else 1):
            raise InputError(
                "file-damaged", f"{path}: {name} has shape {shapes[name]}; it must have {'2 axes' if row else '1 axis'}"
            )
    if len({shape[0] for shape in shapes.values()}) > 1:
        lengths = ", ".join(f"{name} {shape[0]}" for name, shape in shapes.items())
        raise InputError("file-damaged", f"{path}: its datasets differ in length ({lengths}): make it again")
    for row in ("L", "P"):
        widths = {name: shapes[name][1] for name, (_, kind) in COLUMNS.items() if kind == row}
        if len(set(widths.values())) > 1 or not min(widths.values()):
            raise InputError(
                "file-damaged", f"{path}: its datasets differ in width ({widths}), or have none: make it again"
            )
    samples, seq_len = shapes["input_ids"]
    if not samples:
        raise InputError("file-empty", f"{path} holds no instance: remove it or make it again")
    settings = file.attrs.get(SETTINGS_ATTRIBUTE)
    bin_lengths, bin_counts = _bins(path, file.attrs, samples, seq_len)
    return ShardInfo(
        path=path,
        samples=samples,
        seq_len=seq_len,
        max_predictions=shapes["masked_lm_ids"][1],
        settings=None if settings is None else str(settings),
        bin_lengths=bin_lengths,
        bin_counts=bin_counts,
        mappable=all(_is_plain(file[name], dtype) for name, (dtype, _) in COLUMNS.items()),
    )


def _bins(
    path: Path, attributes: Mapping[str, Any], samples: int, seq_len: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found: list[Any] = [attributes.get(name) for name in (BIN_LENGTHS_ATTRIBUTE, BIN_COUNTS_ATTRIBUTE)]
    if found[0] is None and found[1] is None:
        return (), ()
    try:
        lengths, counts = (tuple(int(value) for value in np.atleast_1d(values)) for values in found)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("file-damaged", f"{path}: its bins are damaged ({error}): make it again") from error
    ascending: Sequence[int] = sorted(set(lengths))
    if tuple(ascending) != lengths or lengths[-1:] != (seq_len,) or lengths[0] < 1:
        raise InputError(
            "file-damaged", f"{path}: its bins end at {lengths}, which must ascend to {seq_len}: make it again"
        )
    if len(counts) != len(lengths) or min(counts) < 0 or sum(counts) != samples:
        raise InputError(
            "file-damaged", f"{path}: its bins hold {counts} rows, which must add up to {samples}: make it again"
        )
    return lengths, counts


def _is_plain(dataset: Any, dtype: str) -> bool:
    return dataset.dtype == np.dtype(dtype) and dataset.chunks is None and dataset.id.get_offset() is not None


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
            raise InputError(
                "rows-invalid",
                f"{path}: {name} holds values from {least} to {most}; allowed is {allowed}: make it again",
            )
    lengths = instances.input_mask.sum(axis=1, dtype=np.int64)
    if (lengths == 0).any() or (np.diff(instances.input_mask, axis=1) > 0).any():
        row = int(np.flatnonzero((lengths == 0) | (np.diff(instances.input_mask, axis=1) > 0).any(axis=1))[0])
        raise InputError(
            "rows-invalid", f"{path}: input_mask of instance {row} is not a run of 1 followed by 0: make it again"
        )
