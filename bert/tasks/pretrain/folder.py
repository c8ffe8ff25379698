"""Folders of HDF5 shards: found and described; how long their samples are. Imports no torch."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.shards import METADATA_FILE, PREPARATION_NAME, SHARD_NAME, check_shard, opened
from common.errors import Code, InputError
from common.reading import read_json


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
