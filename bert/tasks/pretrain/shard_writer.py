"""Writes the HDF5 shards of pretraining instances, block after block, whole or not at all. Imports no torch.

Chunks are compressed here and handed to the HDF5 library as they are: it need not shuffle, compress or hold them.
"""

import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.instances import Instances
from common.atomic import atomic_path
from common.errors import InputError, UsageError

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
    """Masked positions per instance at most, P."""
    settings: str | None = None
    """Fingerprint of the settings it is made with."""
    gzip_level: int = DEFAULT_GZIP_LEVEL
    """1 (fastest) to 9 (smallest); 0 stores the arrays plainly, so that they can be mapped into memory."""
    bin_lengths: tuple[int, ...] = ()
    """Longest real length of each bin; () = not binned."""
    bin_counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a level that does not exist."""
        if not 0 <= self.gzip_level <= 9:
            raise UsageError("option-value", f"gzip level {self.gzip_level} must be 0 (stored plainly) to 9 (smallest)")


def write_shard(
    path: Path, instances: Instances, settings: str | None = None, gzip_level: int = DEFAULT_GZIP_LEVEL
) -> None:
    """Write a shard that is in memory, without bins; the same instances give the same bytes.

    Raises:
        InputError: there are no instances, which no reader could use.
        StorageError: the folder cannot be written or the disk is full.
    """
    header = ShardHeader(
        samples=len(instances),
        seq_len=instances.input_ids.shape[1],
        max_predictions=instances.masked_lm_ids.shape[1],
        settings=settings,
        gzip_level=gzip_level,
    )
    write_blocks(path, header, [instances])


def write_blocks(
    path: Path, header: ShardHeader, blocks: Iterable[Instances], written: Callable[[], None] = lambda: None
) -> None:
    """Write a shard whose rows come in blocks; what is held in memory is one block and its compressed form.

    Args:
        path: the file.
        header: what it holds.
        blocks: its rows; all but the last block hold a multiple of CHUNK_ROWS.
        written: called when the file is complete, before it gets its name.

    Raises:
        InputError: the header promises no instance, which no reader could use.
        StorageError: the folder cannot be written or the disk is full.
        Whatever `blocks` raises.
    """
    import h5py

    if not header.samples:
        raise InputError("data-too-small", f"no instance for {path.name}: its documents hold no text; use fewer shards")
    with atomic_path(path) as temporary, temporary.open("w+b", buffering=0) as plain:
        target = _Target(plain)
        # Alignment leaves gaps, which only plain arrays are worth.
        alignment = {} if header.gzip_level else {"alignment_threshold": 1, "alignment_interval": _ALIGNMENT}
        try:
            with h5py.File(target, "w", **alignment) as file:
                _fill(file, header, blocks, target)
        except Exception:
            target.check()  # what made the library stumble
            raise
        target.check()
        written()


class _Target(io.RawIOBase):
    """A file that never refuses a write: it keeps the first error, and `check` raises it when HDF5 is through.

    The HDF5 library ends the process when a write fails while it closes a file (a full disk).
    """

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.plain = plain
        self.error: OSError | None = None

    def check(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error

    def write(self, data: Any) -> int:
        """Write all of `data`, or move on by as much."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.error is None and len(rest):
                rest = rest[self.plain.write(rest) :]
        except OSError as error:
            self.error = error
        self.plain.seek(len(rest), io.SEEK_CUR)
        return size

    def readinto(self, buffer: Any) -> int:
        """Read; what could not be written reads as zeros."""
        view = memoryview(buffer).cast("B")
        count: int = self.plain.readinto(view) or 0
        if self.error is not None:
            view[count:] = bytes(len(view) - count)
            count = len(view)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move."""
        position: int = self.plain.seek(offset, whence)
        return position

    def tell(self) -> int:
        """Return the position."""
        position: int = self.plain.tell()
        return position

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        try:
            return int(self.plain.truncate(size))
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def flush(self) -> None:
        """Do nothing: nothing is held back."""


def _fill(file: Any, header: ShardHeader, blocks: Iterable[Instances], target: _Target) -> None:
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
        target.check()
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


def _compressed(data: bytes, gzip_level: int) -> bytes:
    # Of masked word pieces little but runs of zeros repeats: looking for runs alone is faster, and no larger.
    strategy = zlib.Z_RLE if gzip_level == DEFAULT_GZIP_LEVEL else zlib.Z_DEFAULT_STRATEGY
    compressor = zlib.compressobj(gzip_level, strategy=strategy)
    return compressor.compress(data) + compressor.flush()
