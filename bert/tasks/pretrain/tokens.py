"""The stage `tokens`: shards of sentence text in, the ids of their word pieces out, once for any number of duplicates.

A file of this stage is an uncompressed NumPy archive of three arrays, see `TokenShard`.
"""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.pool import Progress, Workers
from bert.data.rows import Int64
from bert.data.stages import Counts, Finished, Part, StageFolder
from bert.data.tokenizer import Ids, Tokenizer
from bert.data.vocabulary import Vocabulary
from common.atomic import atomic_path
from common.errors import InputError, content_code
from common.reading import read_errors

STAGE = "tokens"
VERSION = 1
"""Raised when the files of this stage change for the same text."""
COUNTED = ("documents", "sentences", "tokens", "unknown tokens")
"""Names of the stage's counts; what has no word pieces is not counted."""
TOKENIZED_BY = "shards tokenized with {}"
"""Name of the count of the files that a package encoded."""
SUFFIX = ".npz"
"""Ending of the files of this stage."""
_BLOCK = 4 * 2**20
_FOREIGN = (ValueError, TypeError, KeyError, EOFError, MemoryError, NotImplementedError, RuntimeError, SyntaxError)
"""What NumPy and zipfile raise for a file that is truncated or not theirs."""
_ARRAYS = ("ids", "sentence_ends", "document_ends")


@dataclass(frozen=True, slots=True)
class TokenShard:
    """The word pieces of one shard: T tokens in S sentences in D documents, none of them empty."""

    ids: Ids
    """[T] ids; 16 bits where the vocabulary fits."""
    sentence_ends: Int64
    """[S] one past the last token of each sentence, ascending; the last is T."""
    document_ends: Int64
    """[D] one past the last sentence of each document, ascending; the last is S."""


def tokenize(
    shards: Sequence[Path],
    folder: StageFolder,
    vocabulary: Vocabulary,
    workers: Workers,
    part: Part,
    progress: Progress,
) -> Finished | None:
    """Write `<name>.npz` for each `<name>.txt` of sentence text; None while other parts are at work."""
    units = [_Work(shard, folder, f"{shard.stem}{SUFFIX}", vocabulary) for shard in shards]
    folder.make(_tokenize_shard, units, lambda unit: folder.is_done(unit.name), workers, part, progress)
    return folder.finish([unit.name for unit in units])


def read_tokens(path: Path) -> TokenShard:
    """Read a file of this stage."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            ids, sentence_ends, document_ends = (archive[name] for name in _ARRAYS)
    except OSError as error:
        raise InputError(
            content_code(error), f"cannot read {path}: {error.strerror or error}; run the stage tokens again"
        ) from error
    except (*_FOREIGN, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error
    if ids.dtype not in (np.uint16, np.int32) or ids.ndim != 1 or (ids.size and int(ids.min()) < 0):
        raise _damaged(path, f"ids of type {ids.dtype} and {ids.ndim} dimension(s)")
    return TokenShard(ids, _ends(path, sentence_ends, len(ids)), _ends(path, document_ends, len(sentence_ends)))


def _ends(path: Path, ends: npt.NDArray[Any], last: int) -> Int64:
    """Return cumulative ends as 64 bit numbers, checked."""
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        raise _damaged(path, f"ends of type {ends.dtype} and {ends.ndim} dimension(s)")
    found = ends.astype(np.int64, copy=False)
    if (int(found[-1]) if found.size else 0) != last or (np.diff(found, prepend=0) <= 0).any():
        raise _damaged(path, "its lengths are inconsistent")
    return found


def _damaged(path: Path, how: str) -> InputError:
    return InputError(
        "file-damaged", f"{path} is not a complete file of token ids ({how}): remove it and run the stage tokens again"
    )


@dataclass(frozen=True, slots=True)
class _Work:
    shard: Path
    folder: StageFolder
    name: str
    vocabulary: Vocabulary


@lru_cache(maxsize=1)
def _tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer that the shards of a process share, so that each need not learn the same words again."""
    return vocabulary.tokenizer


def forget_words() -> None:
    """Forget the vocabulary and the words that this process has met, as if it had just been started."""
    _tokenizer_of.cache_clear()


def _tokenize_shard(work: _Work) -> None:
    tokenizer = _tokenizer_of(work.vocabulary)
    shard = _encode_shard(work.shard, tokenizer)
    unknown = work.vocabulary.ids["[UNK]"]
    numbers = (
        len(shard.document_ends),
        len(shard.sentence_ends),
        sum(map(len, shard.ids)),
        sum(int(np.count_nonzero(ids == unknown)) for ids in shard.ids),
    )
    counts = Counts(dict(zip(COUNTED, numbers, strict=True)))
    counts.add(TOKENIZED_BY.format(tokenizer.package))
    with atomic_path(work.folder.path / work.name) as temporary:
        _write(temporary, shard, tokenizer.dtype)
        work.folder.record(work.name, counts)


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


@dataclass(frozen=True, slots=True)
class _EncodedShard:
    ids: tuple[Ids, ...]
    """The ids, block after block."""
    sentence_ends: Int64
    document_ends: Int64


def _encode_shard(path: Path, tokenizer: Tokenizer) -> _EncodedShard:
    ids: list[Ids] = []
    sentence_ends, document_ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tokens = sentences = 0
    for block in _blocks(path):
        try:
            encoded = encode(block, tokenizer)
        except UnicodeDecodeError as error:
            raise InputError(
                "file-encoding", f"{path} is not UTF-8 text: remove it and run the stage shard again"
            ) from error
        ids.append(encoded.ids)
        sentence_ends.append(encoded.sentence_ends + tokens)
        document_ends.append(encoded.document_ends + sentences)
        tokens += len(encoded.ids)
        sentences += len(encoded.sentence_ends)
    documents = np.unique(np.concatenate([*document_ends, [sentences]]))
    return _EncodedShard(tuple(ids), np.concatenate(sentence_ends), documents[documents > 0])


def _blocks(path: Path) -> Iterator[bytes]:
    with read_errors(path, "run the stage shard again"), path.open("rb") as text:
        while block := text.read(_BLOCK):
            yield block + text.readline()


def _write(path: Path, shard: _EncodedShard, dtype: np.dtype[Any]) -> None:
    """Write what `np.savez` writes, without a second copy of the ids in memory, and the same bytes at any time."""
    columns = zip(_ARRAYS, (shard.ids, (shard.sentence_ends,), (shard.document_ends,)), strict=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, blocks in columns:
            kind = dtype if name == "ids" else np.dtype(np.int64)
            header = {"descr": kind.str, "fortran_order": False, "shape": (sum(map(len, blocks)),)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks:
                    file.write(block.data)
