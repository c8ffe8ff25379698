"""Folders of HDF5 shards: found, described, turned into the batches of each rank. Torch only where batches are made."""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.instances import Instances
from bert.data.shards import ShardInfo, check_shard, read_shard, write_shard
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.batch import Batch
    from bert.tasks.base import DataSpec

__all__ = ["Hdf5Batches", "ShardFolder", "check_shard", "find_shards", "folder_info", "read_shard", "write_shard"]

METADATA_FILE = "metadata.json"
_SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
_PREPARATION_NAME = re.compile(r"hdf5_lower_case_.*seq_len_(?P<seq_len>\d+)_.*")
_CACHE_BYTES = 64 * 2**20
"""Shards read before are kept in memory up to this size, so that small data is read once."""
_BATCHES_AHEAD = 2


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
    samples_per_shard: tuple[int, ...]
    """Samples of each file."""


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
        raise InputError(f"{folder} {what}: give a folder of HDF5 shards, or `synthetic`")
    groups: dict[Path, list[Path]] = {}
    for path in folder.rglob("*.h*5"):
        match = _SHARD_NAME.fullmatch(path.name)
        if match and match["split"] == split and path.is_file():
            groups.setdefault(_preparation(path, folder), []).append(path)
    if not groups:
        raise InputError(_nothing_found(folder, split))
    if len(groups) > 1:
        groups = _choose(folder, groups, seq_len)
    (paths,) = groups.values()
    return sorted(paths, key=_order)


def _order(path: Path) -> tuple[str, int]:
    match = _SHARD_NAME.fullmatch(path.name)
    assert match is not None
    return str(path.parent / match["dataset"]), int(match["number"])


def _preparation(path: Path, folder: Path) -> Path:
    """Return the `hdf5_lower_case_...` folder above a shard; without one, `folder` itself."""
    return next((parent for parent in path.parents if _PREPARATION_NAME.fullmatch(parent.name)), folder)


def _choose(folder: Path, groups: dict[Path, list[Path]], seq_len: int | None) -> dict[Path, list[Path]]:
    def length(preparation: Path) -> int:
        match = _PREPARATION_NAME.fullmatch(preparation.name)
        return int(match["seq_len"]) if match else check_shard(groups[preparation][0]).seq_len

    lengths = {preparation: length(preparation) for preparation in sorted(groups)}
    fitting = [preparation for preparation in lengths if lengths[preparation] == seq_len]
    if len(fitting) == 1:
        return {fitting[0]: groups[fitting[0]]}
    listed = "".join(f"\n  {preparation} (seq_len {lengths[preparation]})" for preparation in fitting or lengths)
    wanted = "" if seq_len is None else f" and {len(fitting)} of them have seq_len {seq_len}"
    raise InputError(f"{folder} holds {len(groups)} preparations{wanted}; give the folder of one of them:{listed}")


def _nothing_found(folder: Path, split: str) -> str:
    if next(folder.rglob("*.txt"), None) is not None and next(folder.rglob("*.h*5"), None) is None:
        remedy = f"it holds text: `bertbench data pretrain --input {folder} --output SHARDS`, then give SHARDS"
    else:
        remedy = "make some with `bertbench data pretrain`, or give the folder that holds them"
    return f"{folder} holds no HDF5 shard named <dataset>_{split}_<number>.hdf5: {remedy}"


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
    for name in ("seq_len", "max_predictions"):
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
        samples_per_shard=tuple(info.samples for info in infos),
    )


def _must_agree(name: str, values: dict[Path, Any]) -> None:
    (first_path, first), *others = values.items()
    for path, value in others:
        if value != first:
            raise InputError(
                f"shards that do not belong together: {name} is {first} in {first_path}, but {value} in {path}; "
                "give the folder of one dataset, or prepare both with the same options and --vocab"
            )


def _vocab_size(parent: Path, infos: Iterable[ShardInfo], split: str) -> int | None:
    path = parent / METADATA_FILE
    if not path.exists():
        return None
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        size, planned = int(metadata["vocab_size"]), metadata["shards"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no metadata of shards ({error}): make it again with `data pretrain`") from error
    names = {info.path.name for info in infos if info.path.parent == parent}
    wanted = {name for name in planned if (match := _SHARD_NAME.fullmatch(name)) and match["split"] == split}
    missing = sorted(wanted - names)
    if missing:
        raise InputError(
            f"the preparation of {parent} is unfinished, {len(missing)} shard(s) are missing ({missing[0]}): "
            "run the same `bertbench data pretrain` again, it continues"
        )
    return size


class Hdf5Batches:
    """Endless batches of a shard folder.

    All ranks walk the same endless sequence of samples: epoch after epoch, the shards in an order shuffled by (seed,
    epoch), the samples of each in an order shuffled by (seed, epoch, shard). Global batch k is samples k W B to
    (k + 1) W B - 1 of it (W ranks, B = micro_batch_size) and rank r takes its r-th run of B. So ranks are disjoint,
    every sample comes once per epoch, an incomplete last batch is filled from the next epoch, and a folder smaller
    than one global batch works too.

    Sequences stay padded to the shards' length. The number of predictions is the shards', not `spec.max_predictions`.
    A background thread prepares two batches ahead. Iterate over one iterator at a time.

    Raises:
        InputError: as folder_info, or the shards have another sequence length or a larger vocabulary than `spec`.
    """

    def __init__(self, spec: "DataSpec", split: str = "training") -> None:
        self.spec = spec
        self.info = folder_info(Path(spec.source), split, spec.seq_len)
        if self.info.seq_len != spec.seq_len:
            raise InputError(
                f"the shards in {self.info.path} have {self.info.seq_len} tokens per sample, not "
                f"{spec.seq_len}: use {self.info.seq_len}, or `bertbench data pretrain --seq-len {spec.seq_len}`"
            )
        self._position = 0
        self._shards: OrderedDict[int, Instances] = OrderedDict()
        self._order: dict[tuple[int, ...], np.ndarray[Any, np.dtype[np.int64]]] = {}

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""
        step = self.spec.micro_batch_size * self.spec.world_size
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        ahead: list[Future[Batch]] = []
        try:
            begin = self._position
            while True:
                while len(ahead) <= _BATCHES_AHEAD:
                    ahead.append(executor.submit(self._batch, begin + len(ahead) * step))
                batch = ahead.pop(0).result()
                begin += step
                self._position = begin
                yield batch
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded, in samples over all ranks."""
        return {"samples": self._position, "seed": self.spec.seed, "fingerprint": self.info.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ.

        Raises:
            InputError: the state belongs to other shards.
            UsageError: it was saved with another seed, hence another order.
        """
        if state.get("fingerprint") != self.info.fingerprint:
            raise InputError(f"the saved data position is not one of {self.info.path}: use the shards it was made with")
        if state["seed"] != self.spec.seed:
            raise UsageError(
                f"the saved data position has seed {state['seed']}, this run seed {self.spec.seed}: use {state['seed']}"
            )
        self._position = int(state["samples"])

    def _batch(self, begin: int) -> "Batch":
        start = begin + self.spec.rank * self.spec.micro_batch_size
        parts = list(self._rows(start, start + self.spec.micro_batch_size))
        return to_batch(parts)

    def _rows(self, start: int, stop: int) -> Iterator[tuple[Instances, np.ndarray[Any, np.dtype[np.int64]]]]:
        """Yield (shard, its rows) for the samples start .. stop - 1 of the endless sequence."""
        counts = np.array(self.info.samples_per_shard)
        while start < stop:
            epoch, offset = divmod(start, self.info.samples)
            order = self._shuffled(len(counts), epoch)
            ends = np.cumsum(counts[order])
            slot = int(np.searchsorted(ends, offset, side="right"))
            shard = int(order[slot])
            first = offset - int(ends[slot]) + int(counts[shard])
            last = min(first + stop - start, int(counts[shard]))
            yield self._load(shard), self._shuffled(int(counts[shard]), epoch, shard)[first:last]
            start += last - first

    def _shuffled(self, count: int, *stream: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if stream not in self._order:
            if len(self._order) > 16:
                self._order.clear()
            # The length of the stream tells the order of shards from that of samples.
            rng = np.random.default_rng([abs(self.spec.seed), len(stream), *stream])
            self._order[stream] = rng.permutation(count)
        return self._order[stream]

    def _load(self, shard: int) -> Instances:
        if shard in self._shards:
            self._shards.move_to_end(shard)
            return self._shards[shard]
        path = self.info.paths[shard]
        instances = read_shard(path)
        largest = max(int(instances.input_ids.max()), int(instances.masked_lm_ids.max()))
        if largest >= self.spec.vocab_size:
            raise InputError(
                f"{path} holds the word piece {largest}, but the model has only {self.spec.vocab_size}: "
                "use the vocabulary the shards were made with"
            )
        if len(instances) != self.info.samples_per_shard[shard]:
            raise InputError(f"{path} has changed while it was in use: start again")
        self._shards[shard] = instances
        while len(self._shards) > 1 and sum(map(_bytes, self._shards.values())) > _CACHE_BYTES:
            self._shards.popitem(last=False)
        return instances


def _bytes(instances: Instances) -> int:
    return instances.input_ids.nbytes * 3 // 2 + instances.masked_lm_ids.nbytes * 2


def to_batch(parts: "list[tuple[Instances, np.ndarray[Any, np.dtype[np.int64]]]]") -> "Batch":
    """Return the batch of rows of one or several shards, tensors and counts as bert.batch documents them."""
    import torch

    from bert.batch import Batch, BatchCounts

    def gather(name: str) -> Any:
        found = [getattr(shard, name)[rows] for shard, rows in parts]
        return (found[0] if len(found) == 1 else np.concatenate(found)).astype(np.int64)

    mask, columns = gather("input_mask"), gather("masked_lm_positions")
    rows, seq_len = mask.shape
    # Position 0 is [CLS], which is never masked, so the first 0 is where the padding starts.
    used = np.logical_and.accumulate(columns != 0, axis=1)
    positions = (np.arange(rows)[:, None] * seq_len + columns)[used]
    lengths = mask.sum(axis=1)
    arrays = {
        "input_ids": gather("input_ids"),
        "attention_mask": mask,
        "token_type_ids": gather("segment_ids"),
        "masked_positions": positions,
        "masked_labels": gather("masked_lm_ids")[used],
        "next_sentence_labels": gather("next_sentence_labels"),
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        BatchCounts(
            samples=rows,
            real_tokens=int(lengths.sum()),
            padded_tokens=rows * seq_len,
            predicted_positions=len(positions),
            squared_lengths=int((lengths**2).sum()),
        ),
    )
