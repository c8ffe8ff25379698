"""Text to words, split on whitespace as in SQuAD's published code, and words to word pieces. Imports no torch.

The published code cuts a context into words first and each word into pieces by itself. So does this: the tokenizer gets
words, so a token's word is known without its offsets. The result is that of the whole text, as none of BERT's rules
looks across whitespace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64
from bert.data.tokenizer import Ids
from bert.data.vocabulary import Vocabulary

WHITE_SPACE = " \t\r\n\u202f"
"""What separates words; the other whitespace of Unicode does not (google-research/bert, run_squad.py)."""
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
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
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


def encode_words(texts: Sequence[str], vocabulary: Vocabulary) -> Pieces:
    """Cut texts into words, and these into pieces, without special ones."""
    words = split_words(" ".join(texts))
    begun, characters = word_numbers(texts)
    word_offsets = np.concatenate([[0], begun])[characters]
    assert word_offsets[-1] == len(words), "both ways of telling words give as many"
    pieces = vocabulary.tokenizer.encode("\n".join(words).encode().split(b"\n") if words else [])
    return Pieces(pieces.values, pieces.offsets[word_offsets], word_offsets, pieces.offsets, begun, characters)


def spread(starts: Int64, lengths: Int64) -> Int64:
    """Return starts[i], starts[i] + 1, ... for lengths[i] numbers, for each i."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + lengths, lengths)
