"""HDF5 shards of pretraining instances: their headers are checked, their data is read or mapped. Imports no torch.

A shard is either gzip-compressed, as everybody's code reads it, or stored plainly (gzip level 0), and then its data
is in the file as arrays do in memory: `map_shard` gives access to it without reading it.
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
from common.errors import InputError, content_code

SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
PREPARATION_NAME = re.compile(r"hdf5_lower_case_.*seq_len_(?P<seq_len>\d+)_.*")
"""Of the folder above the shards of one sequence length."""
METADATA_FILE = "metadata.json"


SETTINGS_ATTRIBUTE = "bertbench_settings"
BIN_LENGTHS_ATTRIBUTE = "bertbench_bin_lengths"
BIN_COUNTS_ATTRIBUTE = "bertbench_bin_counts"
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
DEFAULT_GZIP_LEVEL = 1
"""Of zlib."""
_ALIGNMENT = 64
"""Bytes that mapped arrays are aligned to."""


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
    """Fingerprint of the settings it is made with."""
    gzip_level: int = DEFAULT_GZIP_LEVEL
    """1 (fastest) to 9 (smallest); 0 stores the arrays plainly, so that they can be mapped into memory."""
    bin_lengths: tuple[int, ...] = ()
    """Longest real length of each bin; () = not binned."""
    bin_counts: tuple[int, ...] = ()


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
    # Alignment leaves gaps, which only plain arrays are worth.
    alignment = {} if header.gzip_level else {"alignment_threshold": 1, "alignment_interval": _ALIGNMENT}
    with h5py.File(content, "w", **alignment) as file:
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
                if header.gzip_level:
                    _write_chunk(dataset, start + begin, rows, header.gzip_level)
                else:
                    dataset[start + begin : start + begin + len(rows)] = rows
        start += len(block)
    assert start == header.samples, f"{start} rows instead of {header.samples}"


def _create(file: Any, header: ShardHeader) -> dict[str, Any]:
    widths = {"L": (header.seq_len,), "P": (header.max_predictions,), "": ()}
    datasets = {}
    for name, (dtype, row) in COLUMNS.items():
        shape = (header.samples, *widths[row])
        layout: dict[str, Any] = {}
        if header.gzip_level:
            chunks = (min(CHUNK_ROWS, header.samples), *widths[row])
            layout = {"compression": "gzip", "compression_opts": header.gzip_level, "shuffle": True, "chunks": chunks}
        datasets[name] = file.create_dataset(name, shape, dtype, track_times=False, **layout)
    if header.settings is not None:
        file.attrs[SETTINGS_ATTRIBUTE] = header.settings
    if header.bin_lengths:
        file.attrs[BIN_LENGTHS_ATTRIBUTE] = np.array(header.bin_lengths, np.int32)
        file.attrs[BIN_COUNTS_ATTRIBUTE] = np.array(header.bin_counts, np.int64)
    return datasets


def _write_chunk(dataset: Any, start: int, rows: npt.NDArray[Any], gzip_level: int) -> None:
    missing = dataset.chunks[0] - len(rows)
    if missing:  # chunks are stored whole
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    origin = (start, *(0 for _ in rows.shape[1:]))
    dataset.id.write_direct_chunk(origin, _compressed(_shuffled(rows), gzip_level))


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


def _compressed(data: bytes, gzip_level: int) -> bytes:
    if gzip_level != DEFAULT_GZIP_LEVEL:
        return zlib.compress(data, gzip_level)
    # Of masked word pieces little but runs of zeros repeats: looking for runs alone is faster, and no larger.
    compressor = _compressobj()(gzip_level, strategy=zlib.Z_RLE)
    return bytes(compressor.compress(data) + compressor.flush())


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
    """Maximum masked positions per instance, P."""
    settings: str | None
    """Fingerprint of the settings that `data pretrain` made it with; None for a file from elsewhere."""
    bin_lengths: tuple[int, ...] = ()
    """Longest real length of each bin, ascending, the last is L; () = the rows are not binned."""
    bin_counts: tuple[int, ...] = ()
    """Rows of each bin; the rows lie bin after bin."""
    mappable: bool = False
    """The data lies plainly in the file: map_shard takes it."""


def check_shard(path: Path) -> ShardInfo:
    """Read the header of a shard and check that it is whole and has the datasets of the format."""
    with opened(path) as file:
        return _check(path, file)


def read_shard(path: Path, rows: slice = slice(None), columns: int | None = None) -> Instances:
    """Read a shard, or some of its rows, into memory.

    Args:
        path: the shard.
        rows: those that are wanted.
        columns: tokens of each row that are kept, where the rest is padding.

    Raises:
        InputError: as check_shard, and where the data cannot be decompressed or holds values no instance can have.
    """
    with opened(path) as file:
        _check(path, file)
        try:
            instances = Instances(**{name: file[name][rows] for name in COLUMNS})
        except OSError as error:
            raise InputError("file-damaged", f"{path} is damaged ({error}): create or copy it again") from error
    instances = cut(instances, columns)
    check_values(path, instances)
    return instances


def cut(instances: Instances, columns: int | None, rows: slice = slice(None)) -> Instances:
    """Return some rows, and of each so many tokens; views, as far as these are contiguous."""
    kept = {name: getattr(instances, name)[rows] for name in COLUMNS}
    for name, (_, width) in COLUMNS.items():
        if width == "L" and columns not in (None, kept[name].shape[1]):
            kept[name] = kept[name][:, :columns]
    return Instances(**kept)


def map_shard(path: Path) -> Instances:
    """Return a plainly stored shard as read-only arrays over the file: rows are read when they are used.

    The values are not checked, which would read all of them; check_values does.
    """
    with opened(path) as file:
        info = _check(path, file)
        if not info.mappable:
            raise InputError("file-format", f"{path} is compressed: read it, or create it again with --gzip-level 0")
        places = {name: (file[name].dtype, file[name].shape, file[name].id.get_offset()) for name in COLUMNS}
    try:
        # Plain arrays over the map: NumPy's subclass is several times slower to index.
        arrays = {
            name: np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)
            for name, (dtype, shape, offset) in places.items()
        }
    except (OSError, ValueError) as error:
        raise InputError(
            "file-damaged", f"{path} cannot be memory-mapped ({error}): copy or create it again"
        ) from error
    return Instances(**arrays)


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
        is_truncated = "truncated" in str(error)
        reason = "it is truncated" if is_truncated else f"it is not a readable HDF5 file ({error})"
        raise InputError(
            "file-truncated" if is_truncated else content_code(error),
            f"{path} is damaged: {reason}; create or copy it again",
        ) from error


def _check(path: Path, file: Any) -> ShardInfo:
    import h5py

    missing = [name for name in COLUMNS if not isinstance(file.get(name), h5py.Dataset)]
    if missing:
        raise InputError(
            "columns-missing", f"{path} lacks the dataset(s) {', '.join(missing)}: give shards of pretraining instances"
        )
    shapes = {name: file[name].shape for name in COLUMNS}
    rows, widths = shapes["input_ids"][:1], {"L": shapes["input_ids"][1:], "P": shapes["masked_lm_ids"][1:], "": ()}
    fits = len(widths["L"]) == len(widths["P"]) == 1 and min(*widths["L"], *widths["P"]) > 0
    is_whole = fits and all(
        shapes[name] == (*rows, *widths[row]) and np.issubdtype(file[name].dtype, np.integer)
        for name, (_, row) in COLUMNS.items()
    )
    if not is_whole:
        described = ", ".join(f"{name} {file[name].dtype} {list(shapes[name])}" for name in COLUMNS)
        raise InputError(
            "file-damaged", f"{path} needs integers [N, L], [N, P] and [N], but has {described}: create it again"
        )
    samples, seq_len = shapes["input_ids"]
    if not samples:
        raise InputError("file-empty", f"{path} holds no instances: remove it or create it again")
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
    attribute_values: list[Any] = [attributes.get(name) for name in (BIN_LENGTHS_ATTRIBUTE, BIN_COUNTS_ATTRIBUTE)]
    if all(values is None for values in attribute_values):
        return (), ()
    lengths, counts = (tuple(np.atleast_1d(values).tolist()) for values in attribute_values)
    try:
        ascend = lengths[-1:] == (seq_len,) and lengths[0] >= 1 and list(lengths) == sorted(set(lengths))
        is_whole = ascend and len(counts) == len(lengths) and min(counts) >= 0 and sum(counts) == samples
    except TypeError:
        is_whole = False
    if not is_whole:
        raise InputError(
            "file-damaged",
            f"{path}: bins {lengths} of {counts} rows do not fit {samples} rows of {seq_len} tokens: create it again",
        )
    return lengths, counts


def _is_plain(dataset: Any, dtype: str) -> bool:
    return dataset.dtype == np.dtype(dtype) and dataset.chunks is None and dataset.id.get_offset() is not None


def check_values(path: Path, instances: Instances) -> None:
    """Raise InputError if rows hold values that no instance of so many tokens can have."""
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
                "rows-invalid", f"{path}: {name} holds {least} to {most}, allowed is {allowed}: create it again"
            )
    lengths = instances.input_mask.sum(axis=1, dtype=np.int64)
    if (lengths == 0).any() or (np.diff(instances.input_mask, axis=1) > 0).any():
        row = int(np.flatnonzero((lengths == 0) | (np.diff(instances.input_mask, axis=1) > 0).any(axis=1))[0])
        raise InputError("rows-invalid", f"{path}: input_mask of instance {row} is not 1s, then 0s: create it again")
