"""HDF5 shards of pretraining instances: one reader, the folders they are in, a description of a folder. No torch."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.pool import Progress
from bert.data.vocabulary import VOCABULARY_FILE, load_vocabulary
from bert.tasks.pretrain.instances import Instances
from common.errors import Code, InputError, read_code
from common.reading import read_json

Int64 = npt.NDArray[np.int64]
SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
SPLITS = ("training", "test")
METADATA_FILE = "metadata.json"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "input_ids": ("int32", "L"),
    "input_mask": ("int8", "L"),
    "segment_ids": ("int8", "L"),
    "masked_lm_positions": ("int32", "P"),
    "masked_lm_ids": ("int32", "P"),
    "next_sentence_labels": ("int8", ""),
}
"""Dataset -> dtype, and whether it has one row per instance of L tokens, of P predictions, or a single value."""


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What is known of a shard before its rows are."""

    samples: int  # N
    seq_len: int  # L
    max_predictions: int  # P

    def shape(self, row: str) -> tuple[int, ...]:
        """Return the shape of a dataset with such rows: "L", "P" or ""."""
        return (self.samples, *{"L": (self.seq_len,), "P": (self.max_predictions,), "": ()}[row])


@contextmanager
def opened(path: Path) -> Iterator[tuple[ShardHeader, Any]]:
    """Open a shard: its header, and the file.

    Raises InputError, which names the file: it cannot be opened, a dataset is missing or of another shape or type, or a
    read inside the block meets damaged data.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield _header(path, file), file
    except (OSError, RuntimeError) as error:
        code: Code = "file-truncated" if "truncated" in str(error) else read_code(error)
        raise InputError(
            code, f"{path} is damaged or no HDF5 file ({error}): remove it and create or copy it again"
        ) from error


def _header(path: Path, file: Any) -> ShardHeader:
    missing = [name for name in COLUMNS if not hasattr(file.get(name), "shape")]
    if missing:
        raise InputError(
            "columns-missing", f"{path} lacks the dataset(s) {', '.join(missing)}: give shards of pretraining instances"
        )
    columns = [file[name] for name in COLUMNS]
    header = ShardHeader(len(file["input_ids"]), file["input_ids"].shape[-1], file["masked_lm_ids"].shape[-1])
    shapes = [header.shape(row) for _, row in COLUMNS.values()]
    is_whole = header.samples and all(np.issubdtype(column.dtype, np.integer) for column in columns)
    if not is_whole or [column.shape for column in columns] != shapes:
        described = ", ".join(f"{column.name[1:]} {column.dtype} {list(column.shape)}" for column in columns)
        raise InputError(
            "file-damaged", f"{path} needs integers [N, L], [N, P] and [N], but has {described}: create it again"
        )
    return header


def check_shard(path: Path) -> ShardHeader:
    """Read the header of a shard. Raises InputError as `opened`."""
    with opened(path) as (header, _):
        return header


def read_shard(path: Path, rows: slice = slice(None)) -> Instances:
    """Read a shard, or some of its rows, into memory. Raises InputError as `opened`, and for values out of range."""
    with opened(path) as (header, file):
        instances = Instances(**{name: file[name][rows] for name in COLUMNS})
    most = {"masked_lm_positions": header.seq_len - 1, "input_mask": 1, "segment_ids": 1, "next_sentence_labels": 1}
    for name in COLUMNS:
        values = getattr(instances, name)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > most.get(name, high):
            allowed = f"0 to {most[name]}" if name in most else "0 or more"
            raise InputError(
                "rows-invalid", f"{path}: {name} holds {low} to {high}, allowed is {allowed}: create it again"
            )
    mask = instances.input_mask
    if not mask[:, 0].all() or (np.diff(mask, axis=1) > 0).any():
        raise InputError("rows-invalid", f"{path}: input_mask must be 1s, then 0s, in each row: create it again")
    return instances


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The shards of one split."""

    path: Path
    """Deepest folder that holds all of them."""
    paths: tuple[Path, ...]
    """The files, in the order of dataset and number."""
    counts: tuple[int, ...]
    """Samples of each file."""
    seq_len: int
    max_predictions: int
    vocab_size: int | None
    """Word pieces, from the metadata beside the shards; None if there is none (shards from elsewhere)."""
    vocabulary: str | None
    """Hash of the vocabulary; None likewise."""
    fingerprint: str
    """Hash of names, sizes and sample counts."""

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return sum(self.counts)


def folder_info(folder: Path, split: str = "training", seq_len: int | None = None) -> ShardFolder:
    """Find the shards of a split, `<dataset>_<split>_<number>.hdf5` at or below `folder`, and read their headers.

    `seq_len` picks one of several preparations; a single one is described whatever its length is.

    Raises InputError: there are none, several preparations, a damaged or missing shard, or shards that do not belong
    together.
    """
    paths = _find(folder, split, seq_len)
    headers = {path: check_shard(path) for path in paths}
    metadata = {parent: _metadata(parent, paths, split) for parent in sorted({path.parent for path in paths})}
    for name in ("seq_len", "max_predictions"):
        _must_agree(name, {path: getattr(header, name) for path, header in headers.items()})
    _must_agree("vocab_size", {parent: known.get("vocab_size") for parent, known in metadata.items()})
    common, first = Path(os.path.commonpath(metadata)), headers[paths[0]]
    known = next(iter(metadata.values()))
    digest = hashlib.blake2b(digest_size=16)
    for path, header in headers.items():
        digest.update(f"{path.relative_to(common).as_posix()} {path.stat().st_size} {header.samples}\n".encode())
    return ShardFolder(
        path=common,
        paths=tuple(paths),
        counts=tuple(header.samples for header in headers.values()),
        seq_len=first.seq_len,
        max_predictions=first.max_predictions,
        vocab_size=known.get("vocab_size"),
        vocabulary=known.get("vocab"),
        fingerprint=digest.hexdigest(),
    )


def open_shards(folder: Path, split: str, seq_len: int) -> ShardFolder:
    """Look at the shards of a split with samples of this length. Raises InputError as folder_info, or of another."""
    info = folder_info(folder, split, seq_len)
    if info.seq_len != seq_len:
        raise InputError(
            "data-mismatch",
            f"{info.path} has {info.seq_len} tokens per sample: use it with --seq-len {info.seq_len}, not {seq_len}",
        )
    return info


def _find(folder: Path, split: str, seq_len: int | None) -> list[Path]:
    if not folder.is_dir():
        code: Code = "path-kind" if folder.exists() else "path-missing"
        raise InputError(code, f"{folder} is no folder: give a folder of HDF5 shards, or `synthetic`")
    groups: dict[Path, list[Path]] = {}
    numbers: dict[Path, tuple[str, int]] = {}
    for path in folder.rglob(f"*_{split}_*.h*5"):
        match = SHARD_NAME.fullmatch(path.name)
        if match and match["split"] == split and path.is_file():
            # Shards from elsewhere are in no folder named as ours: all of them are one preparation.
            named = (parent for parent in path.parents if parent.name.startswith("hdf5_lower_case_"))
            groups.setdefault(next(named, folder), []).append(path)
            numbers[path] = str(path.parent / match["dataset"]), int(match["number"])
    if not groups:
        remedy = "or train without evaluation (--eval-every 0)" if split == "test" else "from text"
        raise InputError(
            "data-missing",
            f"{folder} has no shard <dataset>_{split}_<number>.hdf5: make some by `bertbench data pretrain`, {remedy}",
        )
    chosen = next(iter(groups)) if len(groups) == 1 else _choose(folder, groups, seq_len)
    return sorted(groups[chosen], key=numbers.__getitem__)


def _choose(folder: Path, groups: Mapping[Path, list[Path]], seq_len: int | None) -> Path:
    lengths = {preparation: check_shard(groups[preparation][0]).seq_len for preparation in sorted(groups)}
    fitting = [preparation for preparation in lengths if lengths[preparation] == seq_len]
    if len(fitting) == 1:
        return fitting[0]
    code: Code = "data-ambiguous" if seq_len is None or fitting else "data-mismatch"
    listed = ", ".join(f"{preparation} (seq_len {lengths[preparation]})" for preparation in fitting or lengths)
    wanted = "" if seq_len is None else f", {len(fitting)} of seq_len {seq_len}"
    raise InputError(code, f"{folder} holds {len(groups)} preparations{wanted}; give the folder of one: {listed}")


def _must_agree(name: str, values: Mapping[Path, Any]) -> None:
    first, *others = values
    for path in others:
        if values[path] != values[first]:
            raise InputError(
                "data-mismatch",
                f"{name} is {values[first]} in {first}, but {values[path]} in {path}: give the folder of one dataset",
            )


def _metadata(folder: Path, paths: list[Path], split: str) -> dict[str, Any]:
    """Return what metadata.json beside shards says, nothing where there is none. Raises InputError: a shard lacks."""
    path = folder / METADATA_FILE
    if not path.exists():
        return {}
    metadata = read_json(path)
    if metadata.get("schema_version") != 1:
        raise InputError("record-foreign", f"{path} is not shard metadata of this version: create the shards again")
    here = {path.name for path in paths if path.parent == folder}
    planned = {name for name in metadata["shards"] if (match := SHARD_NAME.fullmatch(name)) and match["split"] == split}
    missing = sorted(planned - here)
    if missing:
        raise InputError(
            "data-unprepared",
            f"{folder} lacks {len(missing)} shard(s) ({missing[0]}): run `bertbench data pretrain` again",
        )
    return metadata


_MOST_SAMPLES = 2**18
"""So many samples are looked at, in whole shards spread over the folder: every mask of a large one takes long."""


def folder_lengths(info: ShardFolder) -> Int64:
    """Return how many samples of each length a folder has, among those looked at [seq_len + 1]."""
    shards = len(info.paths)
    wanted = max(1, min(shards, _MOST_SAMPLES * shards // info.samples))
    histogram = np.zeros(info.seq_len + 1, dtype=np.int64)
    for number in range(wanted):
        with opened(info.paths[number * shards // wanted]) as (_, file):
            histogram += np.bincount(file["input_mask"][:].sum(axis=1, dtype=np.int64), minlength=info.seq_len + 1)
    return histogram


_DECODED = 10


def check_shards(folder: Path, vocab: Path | None = None, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Read every shard at or below a folder as training does; return what it holds as plain JSON values.

    Beside the folder's header these are `datasets`, the type, shape and compression of each dataset in the first shard;
    `splits`, the counts of each; and `rows`, ten instances as text. Raises InputError where training refuses a shard.
    """
    splits = [split for split in SPLITS if any(folder.rglob(f"*_{split}_*.h*5"))] or ["training"]
    infos = {split: folder_info(folder, split) for split in splits}
    first = next(iter(infos.values()))
    with opened(first.paths[0]) as (_, file):
        columns = {name: file[name] for name in COLUMNS}
        datasets = {
            name: f"{column.dtype} {list(column.shape)} {column.compression or 'uncompressed'}"
            for name, column in columns.items()
        }
    return {
        "folder": str(first.path),
        "seq_len": first.seq_len,
        "max_predictions": first.max_predictions,
        "vocab_size": first.vocab_size,
        "datasets": datasets,
        "splits": [_count(split, info, progress) for split, info in infos.items()],
        "rows": list(_decode(first, vocab)),
    }


def _count(split: str, info: ShardFolder, progress: Progress) -> dict[str, Any]:
    counted = ("input_mask", "masked_lm_positions", "next_sentence_labels")
    totals = np.zeros(3, np.int64)
    for number, path in enumerate(info.paths, start=1):
        shard = read_shard(path)
        totals += [np.count_nonzero(getattr(shard, column)) for column in counted]
        progress(f"check {split}", number, len(info.paths))
    names = ("real_tokens", "masked_tokens", "random_pairs")
    totalled = dict(zip(names, totals.tolist(), strict=True))
    return {"split": split, "shards": len(info.paths), "instances": info.samples, **totalled}


def _decode(info: ShardFolder, vocab: Path | None) -> Iterator[dict[str, Any]]:
    """Yield instances: their real tokens, a masked one as [shown:hidden], and whether segment B is random."""
    beside = info.paths[0].with_name(VOCABULARY_FILE)
    path = vocab or (beside if beside.is_file() else None)
    pieces = dict(enumerate(load_vocabulary(path, lower_case=True).pieces)) if path else {}
    ends = np.cumsum(info.counts)
    for number in sorted({part * info.samples // _DECODED for part in range(_DECODED)}):
        shard = int(np.searchsorted(ends, number, side="right"))
        row = number - int(ends[shard]) + info.counts[shard]
        one = read_shard(info.paths[shard], slice(row, row + 1))
        shown, hidden = (
            [pieces.get(id_, str(id_)) for id_ in ids[0].tolist()] for ids in (one.input_ids, one.masked_lm_ids)
        )
        for column, piece in zip(one.masked_lm_positions[0].tolist(), hidden, strict=True):
            shown[column] = f"[{shown[column]}:{piece}]" if column else shown[column]
        tokens = shown[: one.input_mask.sum()]
        is_random = bool(one.next_sentence_labels[0])
        yield {"shard": info.paths[shard].name, "row": row, "tokens": tokens, "is_random": is_random}
