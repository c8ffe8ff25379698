"""Small SQuAD files as features, made one token at a time: what decoding is tested on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.plain_squad import place_windows

from bert.data.rows import Ragged
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad.features import Settings, SquadFeatures

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”’–—…。、「」"  # noqa: RUF001
OTHERS = "éèüñçøåßıﬁλογσςабвиюяñ漢字東京語가각あア"
WORDS = ("the", "norman", "france", "steve", "smith", "##an", "##ce", "##mi", "##th", "new", "york", "##or")


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    name: str
    text: str = "who"
    answers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """One context and its questions."""

    text: str
    questions: Sequence[Question] = field(default_factory=list)


def small_vocabulary(lower_case: bool = True) -> Vocabulary:
    """Every letter as a word and as a continuation, every sign, a few words."""
    letters = list(dict.fromkeys(LETTERS + OTHERS + ("" if lower_case else LETTERS.upper() + "ÉÜÅÑÇ")))
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), *SIGNS, *WORDS]
    return Vocabulary(tuple(dict.fromkeys(pieces)), lower_case)


def ragged(rows: Sequence[Sequence[int] | bytes], dtype: type = np.int32) -> Ragged:
    """Rows of different lengths behind one another."""
    values = np.array([value for row in rows for value in row], dtype)
    return Ragged(values, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64))


def features_of(
    contexts: Sequence[Context],
    vocabulary: Vocabulary,
    *,
    version: str = "1.1",
    max_seq_length: int = 24,
    doc_stride: int = 7,
    max_query_length: int = 6,
) -> SquadFeatures:
    """The windows of some contexts by the published rules, in plain loops (evaluation: no targets)."""
    tokens, token_words = [], []
    for context in contexts:
        words = re.findall("[^ \t\r\n\u202f]+", context.text)
        encoded = vocabulary.encode(words)
        tokens.append([piece for ids in encoded for piece in ids])
        token_words.append([number for number, ids in enumerate(encoded) for _ in ids])
    questions = [(number, question) for number, context in enumerate(contexts) for question in context.questions]
    queries = [ids[:max_query_length] for ids in vocabulary.encode([question.text for _, question in questions])]
    inputs, greatest, window_question, first, counts, question_windows = [], [], [], [], [], [0]
    for number, (context_number, _) in enumerate(questions):
        document, query = tokens[context_number], queries[number]
        spans = place_windows(len(document), max_seq_length - len(query) - 3, doc_stride) if document else []
        for index, (begin, length) in enumerate(spans):
            piece_ids = document[begin : begin + length]
            inputs.append([vocabulary.cls_id, *query, vocabulary.sep_id, *piece_ids, vocabulary.sep_id])
            greatest.append([_best_window(spans, place) == index for place in range(begin, begin + length)])
            window_question.append(number)
            first.append(begin)
            counts.append(length)
        question_windows.append(len(inputs))
    answers = [list(question.answers) for _, question in questions]
    settings = Settings(
        pad_id=vocabulary.pad_id,
        split="evaluation",
        version=version,
        lower_case=vocabulary.lower_case,
        vocabulary=vocabulary.fingerprint,
        vocab_size=len(vocabulary.pieces),
        max_seq_length=max_seq_length,
        doc_stride=doc_stride,
        max_query_length=max_query_length,
    )
    return SquadFeatures(
        settings=settings,
        fingerprint="test",
        contexts=ragged([context.text.encode() for context in contexts], np.uint8),
        tokens=ragged(tokens),
        token_words=np.array([word for words in token_words for word in words], np.int32),
        question_ids=ragged([question.name.encode() for _, question in questions], np.uint8),
        questions=ragged([question.text.encode() for _, question in questions], np.uint8),
        queries=ragged(queries),
        question_context=np.array([number for number, _ in questions], np.int32),
        impossible=np.array([not found for found in answers], bool),
        answers=ragged([answer.encode() for found in answers for answer in found], np.uint8),
        question_answers=np.cumsum([0, *map(len, answers)], dtype=np.int64),
        question_windows=np.array(question_windows, np.int64),
        window_question=np.array(window_question, np.int32),
        window_first=np.array(first, np.int32),
        window_tokens=np.array(counts, np.int32),
        input_ids=ragged(inputs),
        max_context=ragged(greatest, np.uint8),
        start_positions=np.zeros(len(inputs), np.int32),
        end_positions=np.zeros(len(inputs), np.int32),
    )


def random_logits(features: SquadFeatures, seed: int, *, steps: int = 0) -> Any:
    """Normally distributed logits; with `steps` rounded to so many per unit, which makes ties."""
    generator = np.random.default_rng(seed)
    drawn = 3 * generator.standard_normal((2, int(features.lengths.sum())), dtype=np.float32)
    if steps:
        drawn = np.round(drawn * steps) / np.float32(steps)
    return drawn


def _best_window(spans: list[tuple[int, int]], place: int) -> int:
    scores = [
        min(place - begin, begin + count - 1 - place) + 0.01 * count if begin <= place < begin + count else -1.0
        for begin, count in spans
    ]
    return scores.index(max(scores))
