"""Paragraphs to windows, the columns of a feature file (bert.tasks.squad.features). Imports no torch.

Source: google-research/bert, run_squad.py (convert_examples_to_features, _check_is_max_context). It cuts a context into
words first and each word into pieces by itself. So does this: the tokenizer gets words, so a token's word is known
without its offsets. The result is that of the whole text, as none of BERT's rules looks across whitespace.

A window begins every `doc_stride` tokens (or every window's length, where that is shorter), which is a step and not an
overlap. A token in several windows belongs to the one that shows most text around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert.data.features import Columns
from bert.data.finished import Counts
from bert.data.rows import Int64, Ragged, offsets_of
from bert.data.vocabulary import Ids, Vocabulary
from bert.tasks.squad.features import Settings
from bert.tasks.squad.reading import Answer, Paragraph, Question

WHITE_SPACE = " \t\r\n\u202f"
"""What separates words; the other whitespace of Unicode does not."""
_CODES = [ord(character) for character in WHITE_SPACE]
NO_ANSWER = "left out: no answer"
NOT_FOUND = "left out: the answer is not found at its place"
SPECIAL_TOKENS = 3
"""[CLS], and [SEP] after the question and at the end."""
NO_PIECES = "left out: the answer has no word pieces"
_LENGTH_WEIGHT = 0.01
"""Of a window's length in the score of a token's context."""


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


class Asked(NamedTuple):
    """A question that is kept."""

    question: Question
    context: int
    """Number of its context."""
    impossible: bool


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

    def only(self, kept: npt.NDArray[np.bool_]) -> "Windows":
        """Return some of the windows: those where `kept` [W] is true."""
        counts = np.bincount(self.question[kept], minlength=len(self.counts))
        return Windows(counts, self.question[kept], self.first[kept], self.tokens[kept])


def make_columns(paragraphs: Sequence[Paragraph], settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    """Return the columns of some paragraphs, and what was counted in them."""
    counts = Counts()
    contexts = encode_words([paragraph.context for paragraph in paragraphs], vocabulary)
    asked = list(_asked(paragraphs, settings, counts))
    spans = np.full((2, len(asked)), -1, np.int64)
    if settings.split == "training":
        asked, spans = _with_answers(asked, contexts, vocabulary, counts)
    golds = [[answer.text for answer in one.question.answers] for one in asked]
    columns = {
        **_texts("contexts", [paragraph.context for paragraph in paragraphs]),
        "tokens.values": contexts.values,
        "tokens.offsets": contexts.offsets,
        "token_words": contexts.token_words,
        **_texts("question_ids", [one.question.id for one in asked]),
        **_texts("questions", [one.question.question for one in asked]),
        **_texts("answers", [text for texts in golds for text in texts]),
        "question_answers": offsets_of([len(texts) for texts in golds]),
        "question_context": np.array([one.context for one in asked], np.int32),
        "impossible": np.array([one.impossible for one in asked], np.bool_),
    }
    columns |= _window_columns(asked, contexts, spans, settings, vocabulary, counts)
    numbers = {
        "contexts": len(paragraphs),
        "questions": len(asked),
        "impossible questions": sum(one.impossible for one in asked),
        "answers": sum(map(len, golds)),
        "windows": len(columns["window_question"]),
        "tokens": len(contexts.values),
        "unknown tokens": int(np.count_nonzero(contexts.values == vocabulary.ids["[UNK]"])),
        "window tokens": len(columns["input_ids.values"]),
    }
    for name, number in numbers.items():
        counts.add(name, number)
    return columns, counts


def _texts(name: str, texts: Sequence[str]) -> Columns:
    rows = Ragged.of_texts(texts)
    return {f"{name}.values": rows.values, f"{name}.offsets": rows.offsets}


def _asked(paragraphs: Sequence[Paragraph], settings: Settings, counts: Counts) -> Iterator[Asked]:
    for number, paragraph in enumerate(paragraphs):
        for question in paragraph.qas:
            flag = question.is_impossible
            impossible = settings.version == "2.0" and (not question.answers if flag is None else flag)
            trained = settings.split == "training" and not impossible
            why = unusable(paragraph.context, question.answers) if trained else None
            if why is None:
                yield Asked(question, number, impossible)
            else:
                counts.add(why, 1, question.id)


def _with_answers(
    asked: list[Asked], contexts: Pieces, vocabulary: Vocabulary, counts: Counts
) -> tuple[list[Asked], Int64]:
    """Return the questions whose answer has pieces, and the first and last token of each one's first answer [2, Q], -1
    where it is impossible."""
    possible = np.array([number for number, one in enumerate(asked) if not one.impossible], np.int64)
    answers = [one.question.answers[0] for one in asked if not one.impossible]
    context = np.array([one.context for one in asked], np.int64)[possible]
    spans = np.full((2, len(asked)), -1, np.int64)
    spans[:, possible] = answer_tokens(contexts, context, answers, vocabulary)
    usable = spans[0] <= spans[1]
    for number in np.flatnonzero(~usable).tolist():
        counts.add(NO_PIECES, 1, asked[number].question.id)
    return [one for one, keep in zip(asked, usable.tolist(), strict=True) if keep], spans[:, usable]


def _window_columns(
    asked: Sequence[Asked], contexts: Pieces, spans: Int64, settings: Settings, vocabulary: Vocabulary, counts: Counts
) -> Columns:
    queries = encode_words([one.question.question for one in asked], vocabulary)
    query_tokens = np.minimum(np.diff(queries.offsets), settings.max_query_length)
    counts.add("questions cut", int(np.count_nonzero(query_tokens < np.diff(queries.offsets))))
    context = np.array([one.context for one in asked], np.int64)
    context_tokens = np.diff(contexts.offsets)[context]
    windows = place_windows(
        context_tokens, settings.max_seq_length - SPECIAL_TOKENS - query_tokens, settings.doc_stride
    )
    greatest = greatest_context(windows, context_tokens)
    targets = window_targets(windows, query_tokens + 2, *spans)
    if settings.split == "training":
        outside = (targets[0] == 0) & (spans[0][windows.question] >= 0)
        counts.add("windows without the answer", int(outside.sum()))
        if settings.drop_unanswerable_windows:
            greatest = greatest[np.repeat(~outside, windows.tokens)]
            windows, targets = windows.only(~outside), targets[:, ~outside]
    heads = [
        queries.values[begin : begin + size]
        for begin, size in zip(queries.offsets.tolist(), query_tokens.tolist(), strict=False)
    ]
    marks = (vocabulary.cls_id, vocabulary.sep_id)
    return {
        "queries.values": np.concatenate([queries.values[:0], *heads]),
        "queries.offsets": offsets_of(query_tokens),
        "question_windows": offsets_of(windows.counts),
        "window_question": windows.question.astype(np.int32),
        "window_first": windows.first.astype(np.int32),
        "window_tokens": windows.tokens.astype(np.int32),
        "input_ids.values": _input_ids(heads, contexts, windows, context, marks),
        "input_ids.offsets": offsets_of(query_tokens[windows.question] + windows.tokens + SPECIAL_TOKENS),
        "max_context.values": greatest,
        "max_context.offsets": offsets_of(windows.tokens),
        "start_positions": targets[0].astype(np.int32),
        "end_positions": targets[1].astype(np.int32),
    }


def place_windows(context_tokens: Int64, most_tokens: Int64, doc_stride: int) -> Windows:
    """Place the windows of each question, from the tokens of its context [Q], the place for them in a window [Q], at
    least 1, and the tokens from the beginning of one window to that of the next."""
    step = np.minimum(most_tokens, doc_stride)
    counts = 1 + np.maximum(0, -(-(context_tokens - most_tokens) // step))
    question = np.repeat(np.arange(len(counts)), counts)
    first = spread(np.zeros_like(counts), counts) * step[question]
    tokens = np.minimum(most_tokens[question], context_tokens[question] - first)
    return Windows(counts, question, first, tokens)


def greatest_context(windows: Windows, context_tokens: Int64) -> npt.NDArray[np.uint8]:
    """Return for each token of each window, window by window, 1 where no other window shows more text around it.

    The score of a token in a window is min(tokens to its left, to its right) + 0.01 * tokens of the window; of equal
    scores the first window's counts.
    """
    found = np.ones(int(windows.tokens.sum()), np.uint8)
    several = windows.counts[windows.question] > 1
    window = np.repeat(np.flatnonzero(several), windows.tokens[several])
    left = spread(np.zeros_like(windows.tokens[several]), windows.tokens[several])
    size = windows.tokens[window]
    score = np.minimum(left, size - 1 - left) + _LENGTH_WEIGHT * size
    # Each token of a context that several windows share has one place in `best` and `winner`.
    starts = offsets_of(np.where(windows.counts > 1, context_tokens, 0))
    place = starts[windows.question[window]] + windows.first[window] + left
    best = np.full(starts[-1], -np.inf)
    np.maximum.at(best, place, score)
    winner = np.zeros(starts[-1], np.int64)
    equal = np.flatnonzero(score == best[place])[::-1]
    winner[place[equal]] = window[equal]  # the last one that is assigned stays: the first window
    found[np.repeat(several, windows.tokens)] = winner[place] == window
    return found


def window_targets(windows: Windows, document_starts: Int64, firsts: Int64, lasts: Int64) -> Int64:
    """Return the positions [2, W] in each window of its question's answer; 0 and 0 if it does not hold all of it.

    Of each question [Q]: the position of the first context token in its windows, and the answer's first and last token
    in the context, -1 where it has none.
    """
    first, last = firsts[windows.question], lasts[windows.question]
    inside = (first >= windows.first) & (last < windows.first + windows.tokens) & (first >= 0)
    shift = document_starts[windows.question] - windows.first
    return np.where(inside, np.stack([first + shift, last + shift]), 0)


def _input_ids(
    heads: Sequence[npt.NDArray[Any]], contexts: Pieces, windows: Windows, context: Int64, marks: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return [CLS] question [SEP] document [SEP] of each window, one row after the other; `heads` are the pieces of the
    questions, cut [Q], `context` the number of each one's context [Q], `marks` the ids of [CLS] and [SEP]."""
    values = contexts.values
    cls, sep = np.array(marks, values.dtype).reshape(2, 1)
    begins = contexts.offsets[context[windows.question]] + windows.first
    ends = begins + windows.tokens
    parts: list[npt.NDArray[Any]] = [values[:0]]
    for question, begin, end in zip(windows.question.tolist(), begins.tolist(), ends.tolist(), strict=True):
        parts += (cls, heads[question], sep, values[begin:end], sep)
    return np.concatenate(parts)


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
    pieces = vocabulary.tokens("\n".join(words).encode().split(b"\n") if words else [])
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
