"""Where in its context an answer stands: characters, words, tokens, windows. Imports no torch.

Source: google-research/bert, run_squad.py (read_squad_examples, _improve_answer_span, convert_examples_to_features).
"""

import numpy as np

from bert.data.rows import Int64
from bert.tasks.squad.reading import Answer
from bert.tasks.squad.windows import Windows
from bert.tasks.squad.words import Pieces, split_words

NO_ANSWER = "left out: no answer"
NO_START = "left out: the answer has no place in its context"
NOT_FOUND = "left out: the answer is not found at its place"
NO_PIECES = "left out: the answer has no word pieces"


def unusable(context: str, answers: list[Answer] | None) -> str | None:
    """Return why a question cannot be trained on with its first answer, None where it can.

    The words of the context from the answer's first to its last character, with one blank between them, have to contain
    the answer's own words, with one blank between them. The published code stops at an answer beyond the end of its
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
    # In white space ahead of the first word the published code counts from the end: Python's index -1.
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
    """Return the positions in each window of its question's answer; 0 and 0 where it does not hold all of it.

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
