"""Shards of sentence text in, the ids of their word pieces out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bert.data.rows import Int64
from bert.data.tokenizer import Ids, Tokenizer
from bert.data.vocabulary import Vocabulary
from common.errors import InputError
from common.reading import read_errors

_BLOCK = 4 * 2**20


@dataclass(frozen=True, slots=True)
class TokenShard:
    """The word pieces of one shard: T tokens in S sentences in D documents, none of them empty."""

    ids: Ids
    """[T] ids; 16 bits where the vocabulary fits."""
    sentence_ends: Int64
    """[S] one past the last token of each sentence, ascending; the last is T."""
    document_ends: Int64
    """[D] one past the last sentence of each document, ascending; the last is S."""


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
