"""HDF5 shards of pretraining instances, written and read, and folders of them. Imports no torch.

They are gzip-compressed, as everybody's code reads them.
"""

import hashlib
import io
import os
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
from common.errors import Code, InputError, read_code
from common.reading import read_json

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
        code: Code = "file-truncated" if "truncated" in str(error) else read_code(error)
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


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The shards of one split."""

    path: Path
    """Deepest folder that holds all of them."""
    paths: tuple[Path, ...]
    """The files, in the order of dataset and number."""
    seq_len: int
    """Tokens per sample."""
    max_predictions: int
    """Maximum masked positions per sample."""
    vocab_size: int | None
    """Word pieces, from the metadata beside the shards; None if there is none (shards from elsewhere)."""
    samples: int
    """Samples of all shards."""
    fingerprint: str
    """Hash of names, sizes and sample counts."""
    counts: tuple[int, ...]
    """Samples of each file."""


def find_shards(folder: Path, split: str = "training", seq_len: int | None = None) -> list[Path]:
    """Return the shards of a split: `<dataset>_<split>_<number>.hdf5` in `folder` or at any depth below it.

    Args:
        folder: the shards' own folder, or one above it (what `data pretrain --output` was given).
        split: "training" or "test".
        seq_len: picks one of several preparations below `folder`.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing",
            f"{folder} {what}: give a folder of HDF5 shards, or `synthetic`",
        )
    groups: dict[Path, list[Path]] = {}
    for path in folder.rglob("*.h*5"):
        match = SHARD_NAME.fullmatch(path.name)
        if match and match["split"] == split and path.is_file():
            groups.setdefault(_preparation(path, folder), []).append(path)
    if not groups:
        raise _nothing_found(folder, split)
    if len(groups) > 1:
        groups = _choose(folder, groups, seq_len)
    (paths,) = groups.values()
    return sorted(paths, key=_order)


def _order(path: Path) -> tuple[str, int]:
    match = SHARD_NAME.fullmatch(path.name)
    assert match is not None
    return str(path.parent / match["dataset"]), int(match["number"])


def _preparation(path: Path, folder: Path) -> Path:
    """Return the `hdf5_lower_case_...` folder above a shard; without one, `folder` itself."""
    return next((parent for parent in path.parents if PREPARATION_NAME.fullmatch(parent.name)), folder)


def _choose(folder: Path, groups: dict[Path, list[Path]], seq_len: int | None) -> dict[Path, list[Path]]:
    def length(preparation: Path) -> int:
        match = PREPARATION_NAME.fullmatch(preparation.name)
        return int(match["seq_len"]) if match else check_shard(groups[preparation][0]).seq_len

    lengths = {preparation: length(preparation) for preparation in sorted(groups)}
    fitting = [preparation for preparation in lengths if lengths[preparation] == seq_len]
    if len(fitting) == 1:
        return {fitting[0]: groups[fitting[0]]}
    listed = "".join(f"\n  {preparation} (seq_len {lengths[preparation]})" for preparation in fitting or lengths)
    wanted = "" if seq_len is None else f" and {len(fitting)} of them have seq_len {seq_len}"
    code: Code = "data-mismatch" if seq_len is not None and not fitting else "data-ambiguous"
    raise InputError(
        code, f"{folder} holds {len(groups)} preparations{wanted}; give the folder of one of them:{listed}"
    )


def _nothing_found(folder: Path, split: str) -> InputError:
    is_text = next(folder.rglob("*.txt"), None) is not None and next(folder.rglob("*.h*5"), None) is None
    remedy = "it holds text: `bertbench data pretrain --input`" if is_text else "`bertbench data pretrain` makes some"
    code: Code = "data-unprepared" if is_text else "data-missing"
    return InputError(code, f"{folder} holds no HDF5 shard named <dataset>_{split}_<number>.hdf5: {remedy}")


def folder_info(folder: Path, split: str = "training", seq_len: int | None = None) -> ShardFolder:
    """Find the shards of a split and read their headers.

    Args:
        folder: as for find_shards.
        split: "training" or "test".
        seq_len: picks one of several preparations; a single one is described whatever its length is.
    """
    paths = find_shards(folder, split, seq_len)
    infos = {path: check_shard(path) for path in paths}
    first = infos[paths[0]]
    for name in ("seq_len", "max_predictions"):
        _must_agree(name, {path: getattr(info, name) for path, info in infos.items()})
    vocab_sizes = {parent: _vocab_size(parent, paths, split) for parent in sorted({path.parent for path in paths})}
    _must_agree("vocab_size", vocab_sizes)
    common = Path(os.path.commonpath(vocab_sizes))
    digest = hashlib.blake2b(digest_size=16)
    for path, info in infos.items():
        digest.update(f"{path.relative_to(common).as_posix()} {path.stat().st_size} {info.samples}\n".encode())
    return ShardFolder(
        path=common,
        paths=tuple(paths),
        seq_len=first.seq_len,
        max_predictions=first.max_predictions,
        vocab_size=next(iter(vocab_sizes.values())),
        samples=sum(info.samples for info in infos.values()),
        fingerprint=digest.hexdigest(),
        counts=tuple(info.samples for info in infos.values()),
    )


def open_test_shards(folder: Path, seq_len: int) -> ShardFolder:
    """Look at the test shards of a folder. Raises InputError: there are none, or a damaged one."""
    try:
        return folder_info(folder, "test", seq_len)
    except InputError as error:
        raise InputError(error.code, f"{error}; or train without evaluation (--eval-every 0)") from error


def _must_agree(name: str, values: dict[Path, Any]) -> None:
    (first_path, first), *others = values.items()
    for path, value in others:
        if value != first:
            raise InputError(
                "data-mismatch",
                f"{name} is {first} in {first_path}, but {value} in {path}: give the folder of one dataset",
            )


def _vocab_size(parent: Path, paths: Iterable[Path], split: str) -> int | None:
    metadata = read_metadata(parent)
    if metadata is None:
        return None
    names = {path.name for path in paths if path.parent == parent}
    planned = (match for name in metadata["shards"] if (match := SHARD_NAME.fullmatch(name)))
    missing = sorted({match[0] for match in planned if match["split"] == split} - names)
    if missing:
        raise InputError(
            "data-unprepared",
            f"{parent} lacks {len(missing)} shard(s) ({missing[0]}): run `bertbench data pretrain` again",
        )
    return int(metadata["vocab_size"])


def read_metadata(folder: Path) -> dict[str, Any] | None:
    """Return what metadata.json beside shards says; None if there is none. Raises InputError if it is not ours."""
    path = folder / METADATA_FILE
    if not path.exists():
        return None
    metadata = read_json(path)
    if metadata.get("schema_version") != 1:
        raise InputError("record-foreign", f"{path} is not shard metadata of this version: create the shards again")
    return metadata


Int64 = npt.NDArray[np.int64]

_MOST_SAMPLES = 2**18
"""So many samples are looked at, in whole shards spread over the folder: every mask of a large one takes long."""


@dataclass(frozen=True, slots=True)
class SampleLengths:
    """The lengths of a folder's samples."""

    samples: int
    """Samples of the folder."""
    histogram: Int64
    """[seq_len + 1] samples of each length among those looked at."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that synthetic batches depend on."""
        sizes = (len(self.histogram) - 1,), (self.samples,)
        digest = hashlib.blake2b(repr(sizes).encode(), digest_size=16)
        digest.update(self.histogram.astype("<i8").tobytes())
        return f"lengths-{digest.hexdigest()}"

    def draw(self, rng: np.random.Generator, count: int) -> Int64:
        """Return `count` lengths in random order: evenly spaced quantiles, so that few show the whole."""
        ends = np.cumsum(self.histogram)
        places = (np.arange(count) + 0.5) / count * ends[-1]
        return rng.permutation(np.searchsorted(ends, places, side="right"))


def folder_lengths(info: ShardFolder) -> SampleLengths:
    """Read the lengths of a folder's samples; the same folder gives the same ones."""
    histogram = np.zeros(info.seq_len + 1, dtype=np.int64)
    for shard in _looked_at(info):
        histogram += np.bincount(_read_lengths(info.paths[shard]), minlength=info.seq_len + 1)
    return SampleLengths(info.samples, histogram)


def _looked_at(info: ShardFolder) -> list[int]:
    shards = len(info.paths)
    wanted = max(1, min(shards, _MOST_SAMPLES * shards // info.samples))
    return [number * shards // wanted for number in range(wanted)]


def _read_lengths(path: Path) -> Int64:
    with opened(path) as file:
        lengths: Int64 = file["input_mask"][:].sum(axis=1, dtype=np.int64)
    return lengths
