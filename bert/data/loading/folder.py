"""Folders of HDF5 shards: found and described. Imports no torch: plans look at folders with it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.checkpoints.model_config import read_json
from bert.tasks.pretrain.naming import METADATA_FILE, PREPARATION_NAME, SHARD_NAME
from bert.tasks.pretrain.shards import ShardInfo, check_shard
from common.errors import Code, InputError


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
    """Masked positions per sample at most."""
    vocab_size: int | None
    """Word pieces, from the metadata beside the shards; None where there is none (shards from elsewhere)."""
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

    Raises:
        InputError: no shard, or several preparations that `seq_len` does not tell apart; the message lists them.
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
        remedy = "make some with `bertbench data pretrain`, or give the folder that holds them"
    return InputError(code, f"{folder} holds no HDF5 shard named <dataset>_{split}_<number>.hdf5: {remedy}")


def folder_info(folder: Path, split: str = "training", seq_len: int | None = None) -> ShardFolder:
    """Find the shards of a split and read their headers.

    Args:
        folder: as for find_shards.
        split: "training" or "test".
        seq_len: picks one of several preparations; a single one is described whatever its length is.

    Raises:
        InputError: no shard, a damaged one (named), shards that do not belong together, an unfinished preparation.
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
                f"shards that do not belong together: {name} is {first} in {first_path}, but {value} in {path}; "
                "give the folder of one dataset, or prepare both with the same options and --vocab",
            )


def _vocab_size(parent: Path, infos: Iterable[ShardInfo], split: str) -> int | None:
    path = parent / METADATA_FILE
    if not path.exists():
        return None
    metadata = read_json(path)
    size, planned = metadata.get("vocab_size"), metadata.get("shards")
    if not isinstance(size, int) or not isinstance(planned, list):
        raise InputError("record-foreign", f"{path} is no metadata of shards: make it again with `data pretrain`")
    names = {info.path.name for info in infos if info.path.parent == parent}
    wanted = {name for name in planned if (match := SHARD_NAME.fullmatch(str(name))) and match["split"] == split}
    missing = sorted(wanted - names)
    if missing:
        raise InputError(
            "data-unprepared",
            f"the preparation of {parent} is unfinished, {len(missing)} shard(s) are missing ({missing[0]}): "
            "run the same `bertbench data pretrain` again, it continues",
        )
    return size
