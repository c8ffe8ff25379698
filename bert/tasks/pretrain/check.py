"""Check a folder of HDF5 shards: header, counts, ten decoded instances."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.data.pool import Progress
from bert.data.vocabulary import VOCABULARY_FILE, load_vocabulary
from bert.tasks.pretrain.instances import Instances, unmasked
from bert.tasks.pretrain.shards import COLUMNS, ShardFolder, folder_info, opened, read_shard

_SPLITS = ("training", "test")
_DECODED = 10
_BLOCK_ROWS = 2**14


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """Counts of one split."""

    split: str
    shards: int
    instances: int
    real_tokens: int
    """Tokens without padding."""
    masked_tokens: int
    random_pairs: int


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """One instance as text."""

    shard: str
    row: int
    tokens: list[str]
    """Real tokens; a masked one is [shown:hidden]. Ids where there is no vocabulary."""
    is_random: bool
    """NSP label: segment B is random."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardCheck:
    """What a folder of shards holds."""

    folder: str
    seq_len: int
    max_predictions: int
    vocab_size: int | None
    datasets: dict[str, str]
    """Type, shape and compression of each dataset in the first shard."""
    splits: list[SplitCounts]
    rows: list[DecodedRow]


def check_shards(folder: Path, vocab: Path | None = None, progress: Progress = lambda *_: None) -> ShardCheck:
    """Read every shard at or below a folder as training does. Raises InputError where training refuses it."""
    splits = [split for split in _SPLITS if any(folder.rglob(f"*_{split}_*.h*5"))] or ["training"]
    infos = {split: folder_info(folder, split) for split in splits}
    first = next(iter(infos.values()))
    with opened(first.paths[0]) as file:
        datasets = {
            name: f"{file[name].dtype} {list(file[name].shape)} {file[name].compression or 'uncompressed'}"
            for name in COLUMNS
        }
    return ShardCheck(
        folder=str(first.path),
        seq_len=first.seq_len,
        max_predictions=first.max_predictions,
        vocab_size=first.vocab_size,
        datasets=datasets,
        splits=[_count(split, info, progress) for split, info in infos.items()],
        rows=_decode(first, vocab),
    )


def _count(split: str, info: ShardFolder, progress: Progress) -> SplitCounts:
    totals = np.zeros(3, np.int64)
    for number, (path, samples) in enumerate(zip(info.paths, info.counts, strict=True), start=1):
        for begin in range(0, samples, _BLOCK_ROWS):
            block = read_shard(path, slice(begin, begin + _BLOCK_ROWS))
            counted = (block.input_mask, block.masked_lm_positions, block.next_sentence_labels)
            totals += [np.count_nonzero(values) for values in counted]
        progress(f"check {split}", number, len(info.paths))
    return SplitCounts(split, len(info.paths), info.samples, *totals.tolist())


def _decode(info: ShardFolder, vocab: Path | None) -> list[DecodedRow]:
    beside = info.paths[0].with_name(VOCABULARY_FILE)
    path = vocab or (beside if beside.is_file() else None)
    pieces = load_vocabulary(path, lower_case=True).pieces if path else ()
    ends = np.cumsum(info.counts)
    rows = []
    for number in sorted({part * info.samples // _DECODED for part in range(_DECODED)}):
        shard = int(np.searchsorted(ends, number, side="right"))
        row = number - int(ends[shard - 1] if shard else 0)
        one = read_shard(info.paths[shard], slice(row, row + 1))
        rows.append(DecodedRow(info.paths[shard].name, row, _tokens(one, pieces), bool(one.next_sentence_labels[0])))
    return rows


def _tokens(one: Instances, pieces: tuple[str, ...]) -> list[str]:
    original, lengths, _ = unmasked(one)
    masked = set(one.masked_lm_positions[0].tolist()) - {0}
    texts = [
        [pieces[number] if number < len(pieces) else str(number) for number in ids[0, : lengths[0]].tolist()]
        for ids in (one.input_ids, original)
    ]
    pairs = enumerate(zip(*texts, strict=True))
    return [f"[{shown}:{hidden}]" if column in masked else shown for column, (shown, hidden) in pairs]
