"""The stage `hdf5`: token ids in, shards of pretraining instances out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from bert.data.vocabulary import Vocabulary
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.instances import Instances, plan_instances
from bert.tasks.pretrain.masking import Pieces, pieces_of
from bert.tasks.pretrain.shards import DEFAULT_GZIP_LEVEL, ShardHeader, check_shard, write_blocks
from bert.tasks.pretrain.tokens import read_tokens
from common.errors import InputError

STAGE = "hdf5"
VERSION = 2
"""Raised when the code writes other bytes."""
SUFFIX = ".hdf5"
SPLITS = ("training", "test")
"""In the names of shards; the place in this list goes into the seed."""
RANDOM_PAIRS = "pairs with a random second segment"
REAL_TOKENS = "tokens in instances"
ALL_TOKENS = "tokens in instances, padding included"
PREDICTIONS = "masked tokens"
_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)")


def instances_of(split: str) -> str:
    """Return the name under which the instances of a split are counted."""
    return f"{split} instances"


@dataclass(frozen=True, slots=True)
class _Job:
    tokens: Path
    name: str
    stream: tuple[int, int]
    folder: StageFolder
    pieces: Pieces
    config: InstanceConfig
    length_bins: int | None
    gzip_level: int


def make_shards(
    tokens: Sequence[Path],
    folder: StageFolder,
    vocabulary: Vocabulary,
    config: InstanceConfig,
    workers: Workers,
    part: Part,
    progress: Progress,
    length_bins: int | None = None,
    gzip_level: int = DEFAULT_GZIP_LEVEL,
) -> Finished | None:
    """Make one HDF5 shard of each file of token ids; whole shards of the same settings are kept.

    Args:
        tokens: files `<dataset>_{training|test}_<i>.npz` of the stage `tokens`.
        folder: where the shards go; its settings must name all that follows.
        vocabulary: the one the ids are of.
        config: how to cut and mask.
        workers: processes; the bytes do not depend on them.
        part: the share of the shards to make.
        progress: called with "hdf5" and the shards of this share that are done.
        length_bins: rows come by their length, in bins of this many tokens.
        gzip_level: 0 (stored plainly, can be mapped into memory) to 9.

    Returns:
        The stage, or None while other parts are unfinished.
    """
    pieces = pieces_of(vocabulary)
    jobs = [
        _Job(path, path.stem + SUFFIX, _stream(path), folder, pieces, config, length_bins, gzip_level)
        for path in tokens
    ]
    folder.make(_make, jobs, lambda job: is_whole(folder, job.name), workers, part, progress)
    return folder.finish([job.name for job in jobs])


def _stream(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.stem)
    if match is None:
        raise InputError(
            "record-foreign", f"{path} is not named <dataset>_training_<number> or <dataset>_test_<number>"
        )
    return SPLITS.index(match["split"]), int(match["number"])


def is_whole(folder: StageFolder, name: str) -> bool:
    """Return whether a shard is there, is not cut off, and was made with these settings from this input."""
    if not folder.is_done(name):
        return False
    try:
        folder.recorded(name)
        return check_shard(folder.path / name).settings == folder.fingerprint
    except InputError:
        return False


def _make(job: _Job) -> None:
    shard = read_tokens(job.tokens)
    if len(shard.ids) and int(shard.ids.max()) >= job.pieces.size:
        raise InputError(
            "vocabulary-mismatch",
            f"{job.tokens} holds the id {int(shard.ids.max())} of {job.pieces.size}: run the stage tokens again",
        )
    plan = plan_instances(shard, job.pieces, job.config, job.stream, job.length_bins)
    header = ShardHeader(
        samples=len(plan),
        seq_len=job.config.seq_len,
        max_predictions=job.config.max_predictions,
        settings=job.folder.fingerprint,
        gzip_level=job.gzip_level,
        bin_lengths=plan.bin_lengths,
        bin_counts=plan.bin_counts,
    )
    counts = Counts()
    write_blocks(
        job.folder.path / job.name,
        header,
        _counted(plan.blocks(), SPLITS[job.stream[0]], counts),
        written=lambda: job.folder.record(job.name, counts),
    )


def _counted(blocks: Iterator[Instances], split: str, counts: Counts) -> Iterator[Instances]:
    for block in blocks:
        counts.add(instances_of(split), len(block))
        counts.add(RANDOM_PAIRS, int(block.next_sentence_labels.sum(dtype=np.int64)))
        counts.add(REAL_TOKENS, int(block.input_mask.sum(dtype=np.int64)))
        counts.add(ALL_TOKENS, block.input_mask.size)
        counts.add(PREDICTIONS, int(np.count_nonzero(block.masked_lm_positions)))
        yield block
