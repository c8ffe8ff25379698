"""Text to words and word pieces, and answers to the tokens that hold them. Imports no torch.

SQuAD's published code (google-research/bert, run_squad.py) cuts a context into words first and each word into pieces by
itself. So does this: the tokenizer gets words, so a token's word is known without its offsets. The result is that of
the whole text, as none of BERT's rules looks across whitespace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64, offsets_of
from bert.data.vocabulary import Ids, Vocabulary
from bert.tasks.squad.reading import Answer

WHITE_SPACE = " \t\r\n\u202f"
"""What separates words; the other whitespace of Unicode does not."""
_CODES = [ord(character) for character in WHITE_SPACE]
NO_ANSWER = "left out: no answer"
NOT_FOUND = "left out: the answer is not found at its place"


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
    """Words begun in all texts up to each character, it included; a text has one character more, its end."""
    character_offsets: Int64
    """Where each text's characters begin [T + 1]."""

    @property
    def token_words(self) -> npt.NDArray[np.int32]:
        """Number of each piece's word in its text."""
        words = spread(np.zeros_like(self.word_offsets[1:]), np.diff(self.word_offsets))
        return np.repeat(words, np.diff(self.piece_offsets)).astype(np.int32)


def split_words(text: str) -> list[str]:
    """Return the words of a text."""
    for character in WHITE_SPACE[1:]:
        if character in text:
            text = text.replace(character, " ")
    return list(filter(None, text.split(" ")))


def encode_words(texts: Sequence[str], vocabulary: Vocabulary) -> Pieces:
    """Cut texts into words, and these into pieces, without special ones."""
    joined = "\n".join(["", *texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le"), "<u4")
    is_space = codes == _CODES[0]
    for code in _CODES[1:]:
        is_space |= codes == code
    begun = np.cumsum(is_space[:-1] & ~is_space[1:], dtype=np.int64)
    characters = offsets_of([len(text) + 1 for text in texts])
    word_offsets = np.concatenate([[0], begun])[characters]
    words = split_words(joined)
    assert word_offsets[-1] == len(words), "both ways of telling words give as many"
    pieces = vocabulary.tokenizer.encode("\n".join(words).encode().split(b"\n") if words else [])
    return Pieces(pieces.values, pieces.offsets[word_offsets], word_offsets, pieces.offsets, begun, characters)


def spread(starts: Int64, lengths: Int64) -> Int64:
    """Return starts[i], starts[i] + 1, ... for lengths[i] numbers, for each i."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


def unusable(context: str, answers: list[Answer]) -> str | None:
    """Return why a question cannot be trained on with its first answer, None if it can.

    The words of the context from the answer's first to its last character, with one space between them, have to contain
    the answer's own words, with one space between them. The published code stops at an answer beyond the end of its
    context and takes an empty one; here the question is left out.
    """
    if not answers or not answers[0].text:
        return NO_ANSWER
    text, start = answers[0].text, answers[0].answer_start
    if start is None or start < 0 or start + len(text) > len(context):
        return NOT_FOUND
    cleaned = " ".join(text.split())
    # Then the words contain the text as it stands: most answers need no more than this.
    if cleaned == text and context.startswith(text, start):
        return None
    words = split_words(context)
    first, last = (len(split_words(context[: place + 1])) - 1 for place in (start, start + len(text) - 1))
    return None if words and cleaned in " ".join(words[first : last + 1]) else NOT_FOUND


def answer_tokens(
    contexts: Pieces, context: Int64, answers: Sequence[Answer], vocabulary: Vocabulary
) -> tuple[Int64, Int64]:
    """Return the first and the last token of each answer in its context.

    They are those of the words that hold the answer, narrowed to the first run of tokens that equals the answer's own,
    where there is one. The last stands before the first where the words have no pieces. `context` has the number of
    each answer's context [A].
    """
    begin = contexts.character_offsets[context] + np.array([answer.answer_start for answer in answers], np.int64)
    end = begin + np.array([len(answer.text) for answer in answers], np.int64) - 1
    # In whitespace ahead of the first word the published code counts from the end: Python's index -1.
    first = contexts.begun[begin] - 1
    first = np.where(first < contexts.word_offsets[context], contexts.word_offsets[context + 1] - 1, first)
    begins, ends = contexts.piece_offsets[first], contexts.piece_offsets[contexts.begun[end]]
    wanted = encode_words([answer.text for answer in answers], vocabulary)
    text, answer_text, size = contexts.values.tobytes(), wanted.values.tobytes(), contexts.values.itemsize
    bounds = pairwise((wanted.offsets * size).tolist())
    spans = zip((begins * size).tolist(), (ends * size).tolist(), bounds, strict=True)
    for number, (low, high, (first_byte, end_byte)) in enumerate(spans):
        if first_byte == end_byte or end_byte - first_byte == high - low:
            continue
        answer = answer_text[first_byte:end_byte]
        place = text.find(answer, low, high)
        while place >= 0 and place % size:
            place = text.find(answer, place + 1, high)
        if place >= 0:
            begins[number], ends[number] = place // size, (place + len(answer)) // size
    return begins - contexts.offsets[context], ends - 1 - contexts.offsets[context]
