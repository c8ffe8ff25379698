"""Text to words, split on whitespace as in SQuAD's published code, and words to word pieces. Imports no torch.

The published code cuts a context into words first and each word into pieces by itself. So does this: each different
word is cut once and looked up from then on, and a token's word is known without the tokenizer's offsets. What comes out
is what the tokenizer gives for the whole text, as none of BERT's rules looks across whitespace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.encoder import ChunkEncoder
from bert.data.rows import Int64
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import Ids

WHITE_SPACE = " \t\r\n\u202f"
"""What separates words; the other whitespace of Unicode does not (google-research/bert, run_squad.py)."""
MOST_WORDS = 2**19
"""Words that are remembered; with more, all are forgotten and learned again, so that memory does not grow."""
_END = " .\n"
"""Follows each word that is learned: makes it a sentence that is never empty, and whose last piece is not its own."""
_CODES = [ord(character) for character in WHITE_SPACE]


def split_words(text: str) -> list[str]:
    """Return the words of a text."""
    for character in WHITE_SPACE[1:]:
        if character in text:
            text = text.replace(character, " ")
    return list(filter(None, text.split(" ")))


def word_numbers(texts: Sequence[str]) -> tuple[Int64, Int64]:
    """Return the words begun in all texts up to each character, it included, and where the texts begin.

    Returns:
        [characters of all texts] how many words have begun; and [texts + 1] number of each text's first character.
    """
    # "surrogatepass": none can come from JSON, and no caller's text shall end in a traceback.
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))])
    is_space = np.zeros(len(codes), np.bool_)
    for code in _CODES:
        is_space |= codes == code
    begins = ~is_space
    begins[1:] &= is_space[:-1]
    firsts = starts[:-1][starts[:-1] < starts[1:]]
    begins[firsts] = ~is_space[firsts]
    return np.cumsum(begins, dtype=np.int64), starts


@dataclass(frozen=True, slots=True)
class Pieces:
    """The word pieces of T texts, text after text."""

    values: Ids
    """Ids of all pieces."""
    offsets: Int64
    """Where each text's pieces begin [T + 1]."""
    word_offsets: Int64
    """Where each text's words begin [T + 1]."""
    piece_offsets: Int64
    """Where each word's pieces begin [words + 1]."""
    begun: Int64
    """Words begun in all texts up to each character, it included."""
    character_offsets: Int64
    """Where each text's characters begin [T + 1]."""

    @property
    def token_words(self) -> npt.NDArray[np.int32]:
        """Number of each piece's word in its text."""
        words = np.arange(self.word_offsets[-1]) - np.repeat(self.word_offsets[:-1], np.diff(self.word_offsets))
        return np.repeat(words, np.diff(self.piece_offsets)).astype(np.int32)


class _Numbers(dict[str, int]):
    """Numbers words in the order they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        self.new.append(word)
        self[word] = number = len(self)
        return number


class WordEncoder:
    """Cuts texts into words and these into pieces, with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, most_words: int = MOST_WORDS) -> None:
        """Remember at most `most_words` words from one call to the next."""
        self._encoder = ChunkEncoder(vocabulary)
        self._most_words = most_words
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._values: Ids = np.empty(0, self._encoder.dtype)
        self._offsets: Int64 = np.zeros(1, np.int64)

    def encode(self, texts: Sequence[str]) -> Pieces:
        """Return the pieces of each text, without special ones."""
        words = split_words(" ".join(texts))
        begun, characters = word_numbers(texts)
        word_offsets = np.concatenate([[0], begun])[characters]
        assert word_offsets[-1] == len(words), "both ways of telling words give as many"
        numbers = self._numbers_of(words)
        lengths = np.diff(self._offsets)[numbers]
        piece_offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = self._values[spread(self._offsets[numbers], lengths)]
        return Pieces(values, piece_offsets[word_offsets], word_offsets, piece_offsets, begun, characters)

    def _numbers_of(self, words: Sequence[str]) -> Int64:
        if len(self._numbers) > self._most_words:
            self._forget()
        found = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if self._numbers.new:
            self._learn(self._numbers.new)
            self._numbers.new = []
        return found

    def _learn(self, words: Sequence[str]) -> None:
        encoded = self._encoder.encode((_END.join(words) + _END).encode("utf-8", "replace"))
        ends = encoded.sentence_ends
        assert len(ends) == len(words), "each word is one sentence"
        is_own = np.ones(len(encoded.ids), np.bool_)
        is_own[ends - 1] = False
        self._values = np.concatenate([self._values, encoded.ids[is_own]])
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + ends - np.arange(1, len(ends) + 1)])


def spread(starts: Int64, lengths: Int64) -> Int64:
    """Return starts[i], starts[i] + 1, ... for lengths[i] numbers, for each i."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + lengths, lengths)
