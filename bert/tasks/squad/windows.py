"""Windows over a context, and which of them shows a token with the most text around it. Imports no torch.

Source: google-research/bert, run_squad.py (convert_examples_to_features, _check_is_max_context). A window begins every
`doc_stride` tokens (or every window's length, where that is shorter), which is a step and not an overlap.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64, Ragged
from bert.tasks.squad.reading import Answer
from bert.tasks.squad.words import Pieces, split_words, spread

SPECIAL_TOKENS = 3
"""[CLS], and [SEP] after the question and at the end."""
_LENGTH_WEIGHT = 0.01
"""Of a window's length in the score of a token's context."""


@dataclass(frozen=True, slots=True)
class Windows:
    """W windows of Q questions, question by question."""

    counts: Int64
    """Windows of each question [Q], at least one: a context without tokens has one empty window."""
    question: Int64
    """Number of each window's question [W]."""
    first: Int64
    """Number of each window's first token in its context [W]."""
    tokens: Int64
    """Context tokens of each window [W]."""
    sharing: int
    """Windows that show the same token at most."""

    def only(self, kept: npt.NDArray[np.bool_]) -> "Windows":
        """Return some of the windows: those where `kept` [W] is true."""
        counts = np.bincount(self.question[kept], minlength=len(self.counts))
        return Windows(counts, self.question[kept], self.first[kept], self.tokens[kept], self.sharing)


def place_windows(context_tokens: Int64, most_tokens: Int64, doc_stride: int) -> Windows:
    """Place the windows of each question.

    Args:
        context_tokens: tokens of each question's context [Q].
        most_tokens: place for them in a window [Q], at least 1.
        doc_stride: tokens from the beginning of one window to that of the next.
    """
    step = np.minimum(most_tokens, doc_stride)
    counts = 1 + np.maximum(0, -(-(context_tokens - most_tokens) // step))
    question = np.repeat(np.arange(len(counts)), counts)
    first = spread(np.zeros_like(counts), counts) * step[question]
    tokens = np.minimum(most_tokens[question], context_tokens[question] - first)
    return Windows(counts, question, first, tokens, int((-(-most_tokens // step)).max(initial=1)))


def greatest_context(windows: Windows, context_tokens: Int64) -> npt.NDArray[np.uint8]:
    """Return for each token of each window, window by window, 1 where no other window shows more text around it.

    The score of a token in a window is min(tokens to its left, to its right) + 0.01 * tokens of the window; of equal
    scores the first window's counts.
    """
    found = np.ones(int(windows.tokens.sum()), np.uint8)
    several = windows.counts[windows.question] > 1
    if not several.any():
        return found
    # Each token of a context that several windows share has one place in `best` and `winner`.
    places = np.where(windows.counts > 1, context_tokens, 0)
    starts = np.cumsum(places) - places
    best = np.full(int(places.sum()), -np.inf)
    winner = np.full(int(places.sum()), -1, np.int64)
    rank = spread(np.zeros_like(windows.counts), windows.counts)
    # Windows so many ranks apart show no token together: each place is met at most once per pass.
    rank %= windows.sharing
    for number in range(min(windows.sharing, int(windows.counts.max()))):
        chosen = np.flatnonzero(several & (rank == number))
        lengths = windows.tokens[chosen]
        left = spread(np.zeros_like(lengths), lengths)
        size = np.repeat(lengths, lengths)
        score = np.minimum(left, size - 1 - left) + _LENGTH_WEIGHT * size
        place = np.repeat(starts[windows.question[chosen]] + windows.first[chosen], lengths) + left
        window = np.repeat(chosen, lengths)
        better = (score > best[place]) | ((score == best[place]) & (window < winner[place]))
        best[place[better]] = score[better]
        winner[place[better]] = window[better]
    all_starts = np.cumsum(windows.tokens) - windows.tokens
    chosen = np.flatnonzero(several)
    lengths = windows.tokens[chosen]
    place = spread(starts[windows.question[chosen]] + windows.first[chosen], lengths)
    found[spread(all_starts[chosen], lengths)] = winner[place] == np.repeat(chosen, lengths)
    return found


def input_rows(
    queries: Ragged, contexts: Pieces, windows: Windows, context: Int64, marks: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return [CLS] question [SEP] document [SEP] of each window, one row after the other.

    Args:
        queries: pieces of the questions [Q].
        contexts: pieces of the contexts.
        windows: of the questions.
        context: number of each question's context [Q].
        marks: the ids of [CLS] and [SEP].
    """
    values = contexts.values
    cls, sep = np.array(marks, values.dtype).reshape(2, 1)
    heads = [queries.values[begin:end] for begin, end in pairwise(queries.offsets.tolist())]
    begins = contexts.offsets[context[windows.question]] + windows.first
    ends = begins + windows.tokens
    parts: list[npt.NDArray[Any]] = [values[:0]]
    for question, begin, end in zip(windows.question.tolist(), begins.tolist(), ends.tolist(), strict=True):
        parts += (cls, heads[question], sep, values[begin:end], sep)
    return np.concatenate(parts)


NO_ANSWER = "left out: no answer"
NO_START = "left out: the answer has no place in its context"
NOT_FOUND = "left out: the answer is not found at its place"
NO_PIECES = "left out: the answer has no word pieces"


def unusable(context: str, answers: list[Answer] | None) -> str | None:
    """Return why a question cannot be trained on with its first answer, None if it can.

    The words of the context from the answer's first to its last character, with one space between them, have to contain
    the answer's own words, with one space between them. The published code stops at an answer beyond the end of its
    context and takes an empty one; here the question is left out.
    """
    if not answers or not answers[0].text:
        return NO_ANSWER
    text, start = answers[0].text, answers[0].answer_start
    if start is None or start < 0:
        return NO_START
    cleaned = " ".join(text.split())
    # Then the words contain the text as it stands: most answers need no more than this.
    if cleaned == text and context.startswith(text, start):
        return None
    if start + len(text) > len(context):
        return NOT_FOUND
    words = split_words(context)
    first, last = (len(split_words(context[: place + 1])) - 1 for place in (start, start + len(text) - 1))
    return None if words and cleaned in " ".join(words[first : last + 1]) else NOT_FOUND


def token_spans(pieces: Pieces, context: Int64, starts: Int64, lengths: Int64) -> tuple[Int64, Int64]:
    """Return the first and the last token, in its context, of the words that hold each answer.

    The last stands before the first where the words have no pieces.

    Args:
        pieces: of the contexts.
        context: number of each answer's context [A].
        starts: first character of each answer [A].
        lengths: characters of each answer, at least 1 [A].
    """
    begin = pieces.character_offsets[context] + starts
    first, last = pieces.begun[begin] - 1, pieces.begun[begin + lengths - 1] - 1
    # In whitespace ahead of the first word the published code counts from the end: Python's index -1.
    ahead = first < pieces.word_offsets[context]
    first = np.where(ahead, pieces.word_offsets[context + 1] - 1, first)
    shift = pieces.offsets[context]
    return pieces.piece_offsets[first] - shift, pieces.piece_offsets[last + 1] - 1 - shift


def improve(contexts: Pieces, answers: Pieces, context: Int64, firsts: Int64, lasts: Int64) -> tuple[Int64, Int64]:
    """Return the spans narrowed to the first run of tokens that equals the answer's own, where there is one.

    Args:
        contexts: pieces of the contexts.
        answers: pieces of each answer [A].
        context: number of each answer's context [A].
        firsts: first token of each span [A].
        lasts: last token of each span [A].
    """
    size = contexts.values.itemsize
    text, wanted = contexts.values.tobytes(), answers.values.tobytes()
    begins = (contexts.offsets[context] + firsts) * size
    ends = (contexts.offsets[context] + lasts + 1) * size
    bounds = (answers.offsets * size).tolist()
    starts = begins.copy()
    stops = ends.copy()
    spans = zip(begins.tolist(), ends.tolist(), bounds, bounds[1:], strict=False)
    for number, (begin, end, low, high) in enumerate(spans):
        if low == high or end - begin == high - low:
            continue
        answer = wanted[low:high]
        place = text.find(answer, begin, end)
        while place >= 0 and (place - begin) % size:
            place = text.find(answer, place + 1, end)
        if place >= 0:
            starts[number], stops[number] = place, place + high - low
    return firsts + (starts - begins) // size, lasts + (stops - ends) // size


def window_targets(windows: Windows, document_starts: Int64, firsts: Int64, lasts: Int64) -> tuple[Int64, Int64]:
    """Return the positions in each window of its question's answer; 0 and 0 if it does not hold all of it.

    Args:
        windows: the windows.
        document_starts: position of each window's first context token [W].
        firsts: first token, in the context, of each question's answer; -1 where it has none [Q].
        lasts: its last token [Q].
    """
    first, last = firsts[windows.question], lasts[windows.question]
    inside = (first >= windows.first) & (last < windows.first + windows.tokens) & (first >= 0)
    shift = document_starts - windows.first
    return np.where(inside, first + shift, 0), np.where(inside, last + shift, 0)
