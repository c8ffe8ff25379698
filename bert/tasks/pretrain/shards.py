"""HDF5 shards of pretraining instances: their headers are checked, their data is read or mapped. Imports no torch.

They are gzip-compressed, as everybody's code reads them.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.instances import Instances
from common.atomic import storage_errors
from common.errors import Code, InputError, content_code

SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
PREPARATION_NAME = re.compile(r"hdf5_lower_case_.*seq_len_(?P<seq_len>\d+)_.*")
"""Of the folder above the shards of one sequence length."""
METADATA_FILE = "metadata.json"


SETTINGS_ATTRIBUTE = "bertbench_settings"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "input_ids": ("int32", "L"),
    "input_mask": ("int8", "L"),
    "segment_ids": ("int8", "L"),
    "masked_lm_positions": ("int32", "P"),
    "masked_lm_ids": ("int32", "P"),
    "next_sentence_labels": ("int8", ""),
}
"""Dataset -> dtype, and whether it has one row per instance of L tokens, of P predictions, or a single value."""
CHUNK_ROWS = 1024
"""Rows of one compressed chunk."""
_GZIP_LEVEL = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardHeader:
    """What is known of a shard before its rows are."""

    samples: int
    """Instances, N."""
    seq_len: int
    """Tokens per instance, L."""
    max_predictions: int
    """Maximum masked positions per instance, P."""
    settings: str | None = None
    """Fingerprint of the settings that `data pretrain` made it with; None for a file from elsewhere."""


def write_blocks(path: Path, header: ShardHeader, blocks: Iterable[Instances]) -> None:
    """Write a shard whose rows come in blocks; what is held in memory is one block and the file.

    Args:
        path: the file.
        header: what it holds.
        blocks: its rows; all but the last block hold a multiple of CHUNK_ROWS.
    """
    import h5py

    # Not to the disk: the HDF5 library ends the process when a write fails while it closes a file (a full disk).
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        _fill(file, header, blocks)
    with storage_errors(path):
        path.write_bytes(content.getbuffer())


def _fill(file: Any, header: ShardHeader, blocks: Iterable[Instances]) -> None:
    datasets = _create(file, header)
    start = 0
    for block in blocks:
        assert start % CHUNK_ROWS == 0, "only the last block may end inside a chunk"
        # One chunk of each dataset after the other: the bytes do not depend on the size of the blocks.
        for begin in range(0, len(block), CHUNK_ROWS):
            for name, dataset in datasets.items():
                rows = np.ascontiguousarray(getattr(block, name)[begin : begin + CHUNK_ROWS], dataset.dtype)
                _write_chunk(dataset, start + begin, rows)
        start += len(block)
    assert start == header.samples, f"{start} rows instead of {header.samples}"


def _create(file: Any, header: ShardHeader) -> dict[str, Any]:
    widths = {"L": (header.seq_len,), "P": (header.max_predictions,), "": ()}
    datasets = {}
    for name, (dtype, row) in COLUMNS.items():
        shape = (header.samples, *widths[row])
        chunks = (min(CHUNK_ROWS, header.samples), *widths[row])
        datasets[name] = file.create_dataset(
            name,
            shape,
            dtype,
            track_times=False,
            compression="gzip",
            compression_opts=_GZIP_LEVEL,
            shuffle=True,
            chunks=chunks,
        )
    if header.settings is not None:
        file.attrs[SETTINGS_ATTRIBUTE] = header.settings
    return datasets


def _write_chunk(dataset: Any, start: int, rows: npt.NDArray[Any]) -> None:
    missing = dataset.chunks[0] - len(rows)
    if missing:  # chunks are stored whole
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    origin = (start, *(0 for _ in rows.shape[1:]))
    dataset.id.write_direct_chunk(origin, _compressed(_shuffled(rows)))


def _shuffled(chunk: npt.NDArray[Any]) -> bytes:
    """Return all first bytes of the numbers, then all second ones, ...: what HDF5's shuffle filter does."""
    if chunk.itemsize == 1:
        return chunk.tobytes()
    return chunk.reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize).T.tobytes()


@cache
def _compressobj() -> Callable[..., Any]:
    """Return the compressor of zlib-ng, else of zlib. By runs alone both write the same bytes, zlib-ng faster."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib.compressobj
    return zlib_ng.compressobj


def _compressed(data: bytes) -> bytes:
    # Of masked word pieces little but runs of zeros repeats: looking for runs alone is faster, and no larger.
    compressor = _compressobj()(_GZIP_LEVEL, strategy=zlib.Z_RLE)
    return bytes(compressor.compress(data) + compressor.flush())


assert list(COLUMNS) == [field.name for field in fields(Instances)]


def check_shard(path: Path) -> ShardHeader:
    """Read the header of a shard and check that it is whole and has the datasets of the format."""
    with opened(path) as file:
        return _check(path, file)


def read_shard(path: Path, rows: slice = slice(None)) -> Instances:
    """Read a shard, or some of its rows, into memory.

    Raises:
        InputError: as check_shard, and where the data cannot be decompressed or holds values no instance can have.
    """
    with opened(path) as file:
        _check(path, file)
        instances = Instances(**{name: file[name][rows] for name in COLUMNS})
    check_values(path, instances)
    return instances


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a shard for reading.

    Raises:
        InputError: it cannot be opened, or a read inside the block meets damaged data; the message names the file.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError("path-missing", f"{path} does not exist: give a folder of HDF5 shards") from error
    except (OSError, RuntimeError) as error:
        code: Code = "file-truncated" if "truncated" in str(error) else content_code(error)
        raise InputError(
            code, f"{path} is damaged or no HDF5 file ({error}): remove it and create or copy it again"
        ) from error


def _check(path: Path, file: Any) -> ShardHeader:
    import h5py

    missing = [name for name in COLUMNS if not isinstance(file.get(name), h5py.Dataset)]
    if missing:
        raise InputError(
            "columns-missing", f"{path} lacks the dataset(s) {', '.join(missing)}: give shards of pretraining instances"
        )
    shapes = {name: file[name].shape for name in COLUMNS}
    rows, widths = shapes["input_ids"][:1], {"L": shapes["input_ids"][1:], "P": shapes["masked_lm_ids"][1:], "": ()}
    fits = len(widths["L"]) == len(widths["P"]) == 1 and min(*rows, *widths["L"], *widths["P"]) > 0
    is_whole = fits and all(
        shapes[name] == (*rows, *widths[row]) and np.issubdtype(file[name].dtype, np.integer)
        for name, (_, row) in COLUMNS.items()
    )
    if not is_whole:
        described = ", ".join(f"{name} {file[name].dtype} {list(shapes[name])}" for name in COLUMNS)
        raise InputError(
            "file-damaged", f"{path} needs integers [N, L], [N, P] and [N], but has {described}: create it again"
        )
    settings = file.attrs.get(SETTINGS_ATTRIBUTE)
    return ShardHeader(
        samples=rows[0],
        seq_len=widths["L"][0],
        max_predictions=widths["P"][0],
        settings=None if settings is None else str(settings),
    )


def check_values(path: Path, instances: Instances) -> None:
    """Raise InputError if rows hold values that no instance of so many tokens can have."""
    most = {
        "input_mask": 1,
        "segment_ids": 1,
        "masked_lm_positions": instances.input_ids.shape[1] - 1,
        "next_sentence_labels": 1,
    }
    for name in COLUMNS:
        values = getattr(instances, name)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > most.get(name, high):
            allowed = f"0 to {most[name]}" if name in most else "0 or more"
            raise InputError(
                "rows-invalid", f"{path}: {name} holds {low} to {high}, allowed is {allowed}: create it again"
            )
    mask = instances.input_mask
    bad = np.flatnonzero((mask[:, 0] != 1) | (np.diff(mask, axis=1) > 0).any(axis=1))
    if len(bad):
        raise InputError("rows-invalid", f"{path}: input_mask of instance {bad[0]} is not 1s, then 0s: create it again")
