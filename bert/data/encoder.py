"""Encode sentence text to word-piece ids at about the speed of a dictionary lookup.

The ids of a sentence are those of its chunks, the texts between spaces, one after the other: no rule of BERT's
normalizer or pre-tokenizer looks across a space. A chunk is therefore encoded once and looked up from then on, and the
tokenizer sees only what is not in the vocabulary, cut into words beforehand where that is certain: in plain ASCII.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, count, filterfalse, pairwise, repeat
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.vocabulary import LONGEST_WORD, Vocabulary

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

MOST_SHORT_IDS = 0xFF00
"""Pieces of the largest vocabulary whose ids take 16 bits."""
MOST_CHUNKS = 2**19
"""Cached chunks; beyond this number the cache is cleared, so that memory stays bounded."""
MOST_BYTES = 32 * 2**20
"""Maximum bytes of the cached chunks and their ids."""
_SPAN = 2**16
"""Bytes that are looked up at once: small enough for the processor's cache."""
_BLANK = re.compile(rb"[ \n]")
_SEPARATE = re.compile(
    rb"[!-/:-@\[-`{-~]|\xc2\xa0|\xe2\x80[\x90-\xa7]|\xe3\x80[\x80-\x82]|\xe4[\xb8-\xbf]|[\xe5-\xe9][\x80-\xbf]"
)
"""Characters before which every rule ends a word: ASCII signs, and some whitespace, signs and ideographs in UTF-8."""
_WORD_OR_SIGN = re.compile(rb"[0-9A-Za-z]+|[^0-9A-Za-z]")
"""Cuts ASCII text without control characters and spaces as BERT's pre-tokenizer does."""
_CONTROL_CHARACTERS = bytes({*range(32), 127} - {ord("\n")})


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block of sentence text: T tokens in S sentences, none of them empty."""

    ids: Ids
    """[T] ids."""
    sentence_ends: Int64
    """[S] one past the last token of each sentence, ascending."""
    document_ends: Int64
    """Sentences before each empty line, ascending: the documents that end in this block, the empty ones too."""


class ChunkEncoder:
    """Encodes blocks of sentence text with one vocabulary; the ids are those of the `tokenizers` library."""

    def __init__(self, vocabulary: Vocabulary, most_chunks: int = MOST_CHUNKS, most_bytes: int = MOST_BYTES) -> None:
        """Keep at most `most_chunks` chunks of `most_bytes` in all from one block to the next."""
        self.dtype = np.dtype("<u2" if len(vocabulary.pieces) <= MOST_SHORT_IDS else "<i4")
        self._vocabulary = vocabulary
        self._most_chunks, self._most_bytes = most_chunks, most_bytes
        # Ends a sentence. As no id has 0xFF in its last byte, these bytes stand nowhere else in a row of ids, not even
        # across two of them: what was looked up for many chunks at once can be cut apart again.
        self._mark = b"\xff" * self.dtype.itemsize
        self._fixed = {b"\n": self._mark, **self._plain_pieces()}
        self._cache = self._fixed.copy()
        self._cached_bytes = 0

    def encode(self, text: bytes) -> Encoded:
        """Return the word pieces of sentence text: "\\n" ends each sentence, an empty line each document.

        Sentences without word pieces are left out. A document may begin in an earlier block and end in a later one.

        Raises:
            UnicodeDecodeError: the text is not UTF-8.
        """
        if not text.endswith(b"\n"):
            text += b"\n"
        ids = b"".join(map(self._ids_of, _spans(text, _BLANK)))
        return self._cut(np.frombuffer(ids, self.dtype), text)

    def _ids_of(self, span: bytes) -> bytes:
        """Return the ids of whole chunks, the mark where a sentence ends."""
        if len(self._cache) > self._most_chunks or self._cached_bytes > self._most_bytes:
            self._cache = self._fixed.copy()
            self._cached_bytes = 0
        chunks = span.replace(b"\n", b" \n ").split(b" ")
        found: list[Any] = list(map(self._cache.get, chunks))
        holes = list(compress(count(), map(is_, found, repeat(None))))
        if holes:
            self._learn_all(dict.fromkeys(map(chunks.__getitem__, holes)))
            for hole in holes:
                found[hole] = self._cache[chunks[hole]]
        return b"".join(found)

    def _cut(self, ids: Ids, text: bytes) -> Encoded:
        """Remove the marks from `ids`; they are in the order of the line endings of the text."""
        is_mark = ids == np.frombuffer(self._mark, self.dtype)
        marks = np.flatnonzero(is_mark)
        ends = marks - np.arange(len(marks))
        has_pieces = np.diff(ends, prepend=0) > 0
        lines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        is_empty = np.diff(lines, prepend=-1) == 1
        return Encoded(ids[~is_mark], ends[has_pieces], np.cumsum(has_pieces)[is_empty])

    def _plain_pieces(self) -> dict[bytes, bytes]:
        """Return the pieces that are ASCII words or signs as written in the text, with their ids."""
        found = {}
        for piece, number in self._vocabulary.ids.items():
            is_word = piece.isalnum() and len(piece) <= LONGEST_WORD
            is_sign = len(piece) == 1 and piece.isprintable() and not piece.isspace()
            is_reached = not self._vocabulary.lower_case or piece == piece.lower()
            if piece.isascii() and (is_word or is_sign) and is_reached:
                found[piece.encode()] = number.to_bytes(self.dtype.itemsize, "little")
        return found

    def _learn_all(self, chunks: Iterable[bytes]) -> None:
        """Put chunks into the cache; long ones in parts, as the tokenizer takes many times the memory of its text."""
        short = []
        for chunk in chunks:
            if len(chunk) <= 2 * _SPAN:
                short.append(chunk)
                continue
            parts = list(_spans(chunk, _SEPARATE))
            for part in parts:
                self._learn([part])
            self._remember([chunk], [b"".join(map(self._cache.__getitem__, parts))])
        self._learn(short)

    def _learn(self, chunks: Sequence[bytes]) -> None:
        plain = [chunk for chunk in chunks if chunk.isascii()]
        text = b"\n".join(plain)
        if len(text.translate(None, _CONTROL_CHARACTERS)) != len(text):
            plain = [chunk for chunk in plain if len(chunk.translate(None, _CONTROL_CHARACTERS)) == len(chunk)]
            text = b"\n".join(plain)
        parts = _WORD_OR_SIGN.findall(text.lower() if self._vocabulary.lower_case else text)
        words = list(dict.fromkeys(filterfalse(self._cache.__contains__, parts)))
        self._remember(words, self._rows(self._vocabulary.encode_words([word.decode() for word in words])))
        # The chunks are cut out of the text again: copies that lie close together are found faster than the old.
        self._remember(text.split(b"\n"), b"".join(map(self._cache.__getitem__, parts)).split(self._mark))
        known = set(plain)
        others = [chunk for chunk in chunks if chunk not in known]
        self._remember(others, self._rows(self._vocabulary.encode([chunk.decode() for chunk in others])))

    def _rows(self, pieces: Sequence[Sequence[int]]) -> list[bytes]:
        """Return each list of ids as bytes."""
        row = np.fromiter(chain.from_iterable(pieces), self.dtype).tobytes()
        ends = [end * self.dtype.itemsize for end in accumulate(map(len, pieces), initial=0)]
        return [row[begin:end] for begin, end in pairwise(ends)]

    def _remember(self, chunks: Collection[bytes], ids: Collection[bytes]) -> None:
        self._cache.update(zip(chunks, ids, strict=True))
        self._cached_bytes += sum(map(len, chunks)) + sum(map(len, ids))


def _spans(text: bytes, cut: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield `text` in parts of about _SPAN bytes, each up to a place where `cut` matches."""
    begin = 0
    while begin < len(text):
        place = cut.search(text, begin + _SPAN)
        end = place.start() if place else len(text)
        yield text[begin:end]
        begin = end
