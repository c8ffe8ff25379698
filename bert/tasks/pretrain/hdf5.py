"""The stage `hdf5`: shards of sentence text in, HDF5 shards of pretraining instances out.

They are gzip-compressed, as everybody's code reads them.
"""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert.data.finished import Counts, Finished, Stage, make_file
from bert.data.pool import Progress, Workers
from bert.data.vocabulary import Vocabulary
from bert.tasks.pretrain.instances import Instances, TokenShard, plan_instances
from bert.tasks.pretrain.masking import InstanceConfig, pieces_of
from bert.tasks.pretrain.shards import COLUMNS, SHARD_NAME, SPLITS, ShardHeader
from common.atomic import storage_errors
from common.errors import InputError
from common.reading import read_errors

VERSION = 3
"""Raised when the code writes other bytes."""
REAL_TOKENS = "tokens in instances"
CHUNK_ROWS = 1024
"""Rows of one compressed chunk."""
_SETTINGS_ATTRIBUTE = "bertbench_settings"
_GZIP_LEVEL = 1
_BLOCK = 4 * 2**20
"""Bytes tokenized at once."""


class Length(NamedTuple):
    """The shards of one sequence length."""

    stage: Stage
    """Where they go; its settings must name all that follows."""
    config: InstanceConfig


class _Job(NamedTuple):
    text: Path
    lengths: tuple[Length, ...]
    vocabulary: Vocabulary


def shard_name(text: Path) -> str:
    """Return the name of the shard of a text file."""
    return f"{text.stem}.hdf5"


def make_shards(
    texts: Sequence[Path], vocabulary: Vocabulary, lengths: Sequence[Length], workers: Workers, progress: Progress
) -> list[Finished]:
    """Make one HDF5 shard of each length of each file of sentence text `<dataset>_{training|test}_<i>.txt`.

    A file is tokenized once for all lengths; whole shards are kept, and the bytes do not depend on the workers.
    """
    jobs = []
    for text in texts:
        missing = tuple(length for length in lengths if not length.stage.is_done(shard_name(text)))
        if missing:
            jobs.append(_Job(text, missing, vocabulary))
    progress("hdf5", len(texts) - len(jobs), len(texts))
    for number, _ in enumerate(workers.map(_make, jobs), start=1):
        progress("hdf5", len(texts) - len(jobs) + number, len(texts))
    return [length.stage.finish([shard_name(text) for text in texts]) for length in lengths]


def _make(job: _Job) -> None:
    tokens = tokenize(job.text, job.vocabulary)
    for length in job.lengths:
        make_file(length.stage.path / shard_name(job.text), partial(_write, job, tokens, length))


def _write(job: _Job, tokens: TokenShard, length: Length, path: Path) -> Counts:
    match = SHARD_NAME.fullmatch(shard_name(job.text))
    assert match is not None, job.text
    stream = SPLITS.index(match["split"]), int(match["number"])
    pieces = pieces_of(job.vocabulary)
    if not len(tokens.ids) or not len(plan := plan_instances(tokens, pieces, length.config, stream)):
        raise InputError("data-too-small", f"{job.text} is too small for a shard: use fewer --shards")
    header = ShardHeader(len(plan), length.config.seq_len, length.config.max_predictions)
    counts = Counts()
    write_blocks(path, header, _counted(plan.blocks(), match["split"], counts), length.stage.fingerprint)
    counts.add("tokens", len(tokens.ids))
    counts.add("unknown tokens", int(np.count_nonzero(tokens.ids == job.vocabulary.ids["[UNK]"])))
    return counts


def _counted(blocks: Iterator[Instances], split: str, counts: Counts) -> Iterator[Instances]:
    for block in blocks:
        counts.add(f"{split} instances", len(block))
        counts.add(REAL_TOKENS, int(block.input_mask.sum(dtype=np.int64)))
        yield block


def tokenize(path: Path, vocabulary: Vocabulary) -> TokenShard:
    """Return the word pieces of sentence text: "\\n" ends each sentence, an empty line each document.

    Sentences without word pieces are left out. Raises InputError if the file cannot be read or is not UTF-8.
    """
    ids, lengths, document_ends = [vocabulary.tokens([]).values], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    sentences = 0
    for block in _blocks(path):
        lines = block.removesuffix(b"\n").split(b"\n")
        found = vocabulary.tokens(lines)
        has_pieces = found.lengths > 0
        is_empty = np.fromiter(map(len, lines), np.int64, len(lines)) == 0
        ids.append(found.values)
        lengths.append(found.lengths[has_pieces])
        document_ends.append(sentences + np.cumsum(has_pieces)[is_empty])
        sentences += int(has_pieces.sum())
    documents = np.unique(np.concatenate([*document_ends, [sentences]]))
    return TokenShard(np.concatenate(ids), np.cumsum(np.concatenate(lengths)), documents[documents > 0])


def _blocks(path: Path) -> Iterator[bytes]:
    with read_errors(path, "remove it and run again"), path.open("rb") as text:
        while block := text.read(_BLOCK):
            block += text.readline()
            if not block.isascii():
                block.decode()
            yield block


def write_blocks(path: Path, header: ShardHeader, blocks: Iterable[Instances], settings: str | None = None) -> None:
    """Write a shard whose rows come in blocks; what is held in memory is one block and the file.

    All blocks but the last hold a multiple of CHUNK_ROWS. `settings`, a fingerprint, becomes an attribute of the file.
    """
    import h5py

    # Not to the disk: the HDF5 library ends the process when a write fails while it closes a file (a full disk).
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        datasets = {
            name: file.create_dataset(
                name,
                header.shape(row),
                dtype,
                track_times=False,
                compression="gzip",
                compression_opts=_GZIP_LEVEL,
                shuffle=True,
                chunks=(min(CHUNK_ROWS, header.samples), *header.shape(row)[1:]),
            )
            for name, (dtype, row) in COLUMNS.items()
        }
        if settings is not None:
            file.attrs[_SETTINGS_ATTRIBUTE] = settings
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
    with storage_errors(path):
        path.write_bytes(content.getbuffer())


def _write_chunk(dataset: Any, start: int, rows: npt.NDArray[Any]) -> None:
    missing = dataset.chunks[0] - len(rows)
    if missing:  # chunks are stored whole
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    # HDF5's shuffle filter: all first bytes of the numbers, then all second ones, ...
    shuffled = rows.reshape(-1).view(np.uint8).reshape(-1, rows.itemsize).T.tobytes()
    # Of masked word pieces little but runs of zeros repeats: looking for runs alone is faster, and no larger.
    compressor = _compressobj()(_GZIP_LEVEL, strategy=zlib.Z_RLE)
    origin = (start, *(0 for _ in rows.shape[1:]))
    dataset.id.write_direct_chunk(origin, bytes(compressor.compress(shuffled) + compressor.flush()))


@cache
def _compressobj() -> Callable[..., Any]:
    """Return the compressor of zlib-ng, else of zlib. By runs alone both write the same bytes, zlib-ng faster."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib.compressobj
    return zlib_ng.compressobj
