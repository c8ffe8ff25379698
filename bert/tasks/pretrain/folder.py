"""Folders of HDF5 shards: found and described; how long their samples are. Imports no torch."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.shards import METADATA_FILE, PREPARATION_NAME, SHARD_NAME, ShardInfo, check_shard
from common.errors import Code, InputError, content_code
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
    bin_lengths: tuple[int, ...]
    """Most real tokens per sample in each bin, ascending; (seq_len,) where the shards are not binned."""
    counts: tuple[tuple[int, ...], ...]
    """Samples of each file in each bin; in the file they lie bin after bin."""
    mappable: tuple[bool, ...]
    """Per file: its data lies plainly in it, so that it can be mapped into memory."""

    def columns(self, which: int) -> int:
        """Tokens per sample of a bin, padding included."""
        return self.bin_lengths[which]


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
    code: Code = "data-missing"
    if next(folder.rglob("*.txt"), None) is not None and next(folder.rglob("*.h*5"), None) is None:
        code = "data-unprepared"
        remedy = f"it holds text: `bertbench data pretrain --input {folder} --output SHARDS`, then give SHARDS"
    else:
        remedy = "create some with `bertbench data pretrain`, or give the folder that holds them"
    return InputError(code, f"{folder} holds no HDF5 shard named <dataset>_{split}_<number>.hdf5: {remedy}")


def folder_info(folder: Path, split: str = "training", seq_len: int | None = None) -> ShardFolder:
    """Find the shards of a split and read their headers.

    Args:
        folder: as for find_shards.
        split: "training" or "test".
        seq_len: picks one of several preparations; a single one is described whatever its length is.
    """
    paths = find_shards(folder, split, seq_len)
    infos = [check_shard(path) for path in paths]
    for name in ("seq_len", "max_predictions", "bin_lengths"):
        _must_agree(name, {info.path: getattr(info, name) for info in infos})
    vocab_sizes = {parent: _vocab_size(parent, infos, split) for parent in sorted({path.parent for path in paths})}
    _must_agree("vocab_size", vocab_sizes)
    parents = sorted({path.parent for path in paths}, key=lambda parent: len(parent.parts))
    common = next(
        parent for parent in (parents[0], *parents[0].parents) if all(p.is_relative_to(parent) for p in parents)
    )
    digest = hashlib.blake2b(digest_size=16)
    for info in infos:
        digest.update(
            f"{info.path.relative_to(common).as_posix()} {info.path.stat().st_size} {info.samples}\n".encode()
        )
    return ShardFolder(
        path=common,
        paths=tuple(paths),
        seq_len=infos[0].seq_len,
        max_predictions=infos[0].max_predictions,
        vocab_size=next(iter(vocab_sizes.values())),
        samples=sum(info.samples for info in infos),
        fingerprint=digest.hexdigest(),
        bin_lengths=infos[0].bin_lengths or (infos[0].seq_len,),
        counts=tuple(info.bin_counts or (info.samples,) for info in infos),
        mappable=tuple(info.mappable for info in infos),
    )


def _must_agree(name: str, values: dict[Path, Any]) -> None:
    (first_path, first), *others = values.items()
    for path, value in others:
        if value != first:
            raise InputError(
                "data-mismatch",
                f"{name} is {first} in {first_path}, but {value} in {path}: give the folder of one dataset",
            )


def _vocab_size(parent: Path, infos: Iterable[ShardInfo], split: str) -> int | None:
    path, metadata = parent / METADATA_FILE, read_metadata(parent)
    if metadata is None:
        return None
    size, planned = metadata.get("vocab_size"), metadata.get("shards")
    if not isinstance(size, int) or not isinstance(planned, list):
        raise InputError(
            "record-foreign", f"{path} does not hold shard metadata: create it again with `bertbench data pretrain`"
        )
    names = {info.path.name for info in infos if info.path.parent == parent}
    wanted = {name for name in planned if (match := SHARD_NAME.fullmatch(str(name))) and match["split"] == split}
    missing = sorted(wanted - names)
    if missing:
        raise InputError(
            "data-unprepared",
            f"{parent} lacks {len(missing)} shard(s) ({missing[0]}): run `bertbench data pretrain` again",
        )
    return size


def read_metadata(folder: Path) -> dict[str, Any] | None:
    """Return what metadata.json beside shards says; None if there is none. Raises InputError: it is damaged."""
    path = folder / METADATA_FILE
    return read_json(path) if path.exists() else None


Int64 = npt.NDArray[np.int64]

_MOST_SAMPLES = 2**18
"""So many samples are looked at, in whole shards spread over the folder: every mask of a large one takes long."""


@dataclass(frozen=True, slots=True)
class SampleLengths:
    """The lengths of a folder's samples, by bin; one bin where the folder is not binned."""

    bin_lengths: tuple[int, ...]
    """Tokens per sample of each bin, padding included."""
    weights: tuple[int, ...]
    """Samples of the folder in each bin."""
    histogram: Int64
    """[bins, seq_len + 1] samples of each length among those looked at."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that synthetic batches depend on."""
        digest = hashlib.blake2b(repr((self.bin_lengths, self.weights)).encode(), digest_size=16)
        digest.update(self.histogram.astype("<i8").tobytes())
        return f"lengths-{digest.hexdigest()}"

    def draw(self, rng: np.random.Generator, which: int, count: int) -> Int64:
        """Return `count` lengths of a bin in random order: evenly spaced quantiles, so that few show the whole."""
        ends = np.cumsum(self.histogram[which])
        places = (np.arange(count) + 0.5) / count * ends[-1]
        return rng.permutation(np.searchsorted(ends, places, side="right"))

    def share(self, count: int) -> Int64:
        """Return [bins] how many of `count` batches are of each bin: in proportion, largest remainders rounded up."""
        exact = count * np.array(self.weights) / sum(self.weights)
        whole = exact.astype(np.int64)
        whole[np.argsort(whole - exact, kind="stable")[: count - int(whole.sum())]] += 1
        return whole


def folder_lengths(info: ShardFolder) -> SampleLengths:
    """Read the lengths of a folder's samples; the same folder gives the same ones."""
    weights = tuple(int(total) for total in np.sum(info.counts, axis=0))
    histogram = np.zeros((len(info.bin_lengths), info.seq_len + 1), dtype=np.int64)
    for shard in _looked_at(info):
        lengths = _read_lengths(info, shard)
        bins = np.repeat(np.arange(len(histogram)), info.counts[shard])
        np.add.at(histogram, (bins, lengths), 1)
    # A bin that no shard looked at has samples of: take it to be full.
    for which in np.flatnonzero(histogram.sum(axis=1) == 0):
        histogram[which, info.bin_lengths[which]] = 1
    return SampleLengths(info.bin_lengths, weights, histogram)


def _looked_at(info: ShardFolder) -> list[int]:
    shards = len(info.paths)
    wanted = max(1, min(shards, _MOST_SAMPLES * shards // info.samples))
    return [number * shards // wanted for number in range(wanted)]


def _read_lengths(info: ShardFolder, shard: int) -> Int64:
    import h5py

    path = info.paths[shard]
    try:
        with h5py.File(path, "r") as file:
            lengths: Int64 = file["input_mask"][:].sum(axis=1, dtype=np.int64)
    except (OSError, KeyError) as error:
        raise InputError(
            content_code(error), f"{path} is damaged or missing ({error}): create or copy it again"
        ) from error
    if len(lengths) != sum(info.counts[shard]) or lengths.min() < 1:
        code: Code = "file-changed" if len(lengths) != sum(info.counts[shard]) else "rows-invalid"
        raise InputError(code, f"{path} has changed or holds samples without tokens: create it again")
    return lengths
