"""The stage `hdf5`: shards of sentence text in, shards of pretraining instances out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from bert.data.finished import Counts, Finished, Stage, make_file
from bert.data.pool import Progress, Workers
from bert.data.rows import Int64
from bert.data.tokenizer import Ids, Tokenizer
from bert.data.vocabulary import Vocabulary
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.instances import Instances, TokenShard, plan_instances
from bert.tasks.pretrain.masking import pieces_of
from bert.tasks.pretrain.shards import ShardHeader, write_blocks
from common.errors import InputError
from common.reading import read_errors

VERSION = 3
"""Raised when the code writes other bytes."""
SPLITS = ("training", "test")
"""In the names of shards; the place in this list goes into the seed."""
REAL_TOKENS = "tokens in instances"
_BLOCK = 4 * 2**20
"""Bytes tokenized at once."""
_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Length:
    """The shards of one sequence length."""

    stage: Stage
    """Where they go; its settings must name all that follows."""
    config: InstanceConfig


@dataclass(frozen=True, slots=True)
class _Job:
    text: Path
    lengths: tuple[Length, ...]
    vocabulary: Vocabulary


def shard_names(texts: Sequence[Path]) -> list[str]:
    """Return the names of the shards of some text files."""
    return [f"{path.stem}.hdf5" for path in texts]


def make_shards(
    texts: Sequence[Path], vocabulary: Vocabulary, lengths: Sequence[Length], workers: Workers, progress: Progress
) -> list[Finished]:
    """Make one HDF5 shard of each length of each file of sentence text `<dataset>_{training|test}_<i>.txt`.

    A file is tokenized once for all lengths; whole shards are kept, and the bytes do not depend on the workers.
    """
    names = shard_names(texts)
    jobs = []
    for path, name in zip(texts, names, strict=True):
        missing = tuple(length for length in lengths if not length.stage.is_done(name))
        if missing:
            jobs.append(_Job(path, missing, vocabulary))
    progress("hdf5", len(names) - len(jobs), len(names))
    for number, _ in enumerate(workers.map(_make, jobs), start=1):
        progress("hdf5", len(names) - len(jobs) + number, len(names))
    return [length.stage.finish(names) for length in lengths]


def _make(job: _Job) -> None:
    match = _NAME.fullmatch(job.text.stem)
    assert match is not None, job.text
    tokens = tokenize(job.text, job.vocabulary)
    stream = SPLITS.index(match["split"]), int(match["number"])
    for length in job.lengths:
        (name,) = shard_names([job.text])
        make_file(length.stage.path / name, partial(_write, tokens, job.vocabulary, stream, length))


def _write(tokens: TokenShard, vocabulary: Vocabulary, stream: tuple[int, int], length: Length, path: Path) -> Counts:
    plan = plan_instances(tokens, pieces_of(vocabulary), length.config, stream)
    if not len(plan):
        raise InputError("data-too-small", f"{path.name} would be empty: use fewer --shards")
    header = ShardHeader(
        samples=len(plan),
        seq_len=length.config.seq_len,
        max_predictions=length.config.max_predictions,
        settings=length.stage.fingerprint,
    )
    counts = Counts()
    write_blocks(path, header, _counted(plan.blocks(), SPLITS[stream[0]], counts))
    counts.add("tokens", len(tokens.ids))
    counts.add("unknown tokens", int(np.count_nonzero(tokens.ids == vocabulary.ids["[UNK]"])))
    counts.add(f"shards tokenized with {tokenizer_of(vocabulary).package}")
    return counts


def _counted(blocks: Iterator[Instances], split: str, counts: Counts) -> Iterator[Instances]:
    for block in blocks:
        counts.add(f"{split} instances", len(block))
        counts.add("pairs with a random second segment", int(block.next_sentence_labels.sum(dtype=np.int64)))
        counts.add(REAL_TOKENS, int(block.input_mask.sum(dtype=np.int64)))
        counts.add("tokens in instances, padding included", block.input_mask.size)
        counts.add("masked tokens", int(np.count_nonzero(block.masked_lm_positions)))
        yield block


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block of sentence text: T tokens in S sentences, none of them empty."""

    ids: Ids
    """[T] ids."""
    sentence_ends: Int64
    """[S] one past the last token of each sentence, ascending."""
    document_ends: Int64
    """Sentences before each empty line, ascending: the documents that end in this block, the empty ones too."""


def encode(text: bytes, tokenizer: Tokenizer) -> Encoded:
    """Return the word pieces of sentence text: "\\n" ends each sentence, an empty line each document.

    Sentences without word pieces are left out. A document may begin in an earlier block and end in a later one.

    Raises:
        UnicodeDecodeError: the text is not UTF-8.
    """
    if not text.isascii():
        text.decode()
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = tokenizer.encode(lines)
    has_pieces = found.lengths > 0
    is_empty = np.fromiter(map(len, lines), np.int64, len(lines)) == 0
    return Encoded(found.values, found.offsets[1:][has_pieces], np.cumsum(has_pieces)[is_empty])


@lru_cache(maxsize=1)
def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer that the shards of a process share, so that each need not learn the same words again."""
    return vocabulary.tokenizer


def tokenize(path: Path, vocabulary: Vocabulary) -> TokenShard:
    """Return the word pieces of a shard of sentence text. Raises InputError if it cannot be read or is not UTF-8."""
    tokenizer = tokenizer_of(vocabulary)
    ids, sentence_ends, document_ends = [np.empty(0, tokenizer.dtype)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tokens = sentences = 0
    for block in _blocks(path):
        try:
            encoded = encode(block, tokenizer)
        except UnicodeDecodeError as error:
            raise InputError("file-encoding", f"{path} is not UTF-8 text: remove it and run again") from error
        ids.append(encoded.ids)
        sentence_ends.append(encoded.sentence_ends + tokens)
        document_ends.append(encoded.document_ends + sentences)
        tokens += len(encoded.ids)
        sentences += len(encoded.sentence_ends)
    documents = np.unique(np.concatenate([*document_ends, [sentences]]))
    return TokenShard(np.concatenate(ids), np.concatenate(sentence_ends), documents[documents > 0])


def _blocks(path: Path) -> Iterator[bytes]:
    with read_errors(path, "remove it and run again"), path.open("rb") as text:
        while block := text.read(_BLOCK):
            yield block + text.readline()
