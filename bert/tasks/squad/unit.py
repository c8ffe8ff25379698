"""The columns of one unit of work, some paragraphs of a file. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.finished import Counts
from bert.data.rows import Int64
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.features import Settings
from bert.tasks.squad.reading import Paragraph, Place, Question, parse
from bert.tasks.squad.windows import (
    NO_PIECES,
    SPECIAL_TOKENS,
    greatest_context,
    improve,
    input_rows,
    place_windows,
    token_spans,
    unusable,
    window_targets,
)
from bert.tasks.squad.words import Pieces, WordEncoder
from common.errors import InputError

Columns = dict[str, npt.NDArray[Any]]
"""Columns of a part of a file, see bert.tasks.squad.features."""
DUPLICATES = "left out: duplicate ids"


@dataclass(frozen=True, slots=True)
class Unit:
    """Paragraphs to make windows of."""

    number: int
    """Place of the unit in the file."""
    path: Path
    places: tuple[Place, ...]
    """Positions of its paragraphs in the file, in order."""
    paragraphs: bytes
    """The paragraphs, a JSON array."""
    settings: Settings
    vocabulary: Path
    """The vocab.txt."""
    known_ids: frozenset[str] = frozenset()
    """Ids that earlier units have: their questions are left out."""


@dataclass(slots=True)
class Part:
    """What a unit became."""

    number: int
    columns: Columns | Path
    """Themselves, or the file that they were written to."""
    ids: tuple[str, ...]
    counts: Counts
    note: str | None = None
    """Where another tokenizer than the fastest was used, why."""


def forget_words() -> None:
    """Forget the vocabulary and the words that this process has met, as if it had just been started."""
    _encoder.cache_clear()


def warm_up(path: Path, lower_case: bool, fingerprint: str) -> None:
    """Make a worker ready: its modules and its vocabulary. Raises InputError: that has changed."""
    _encoder(path, lower_case, fingerprint)[1].encode(["once"])


@lru_cache(maxsize=1)
def _encoder(path: Path, lower_case: bool, fingerprint: str) -> tuple[Vocabulary, WordEncoder]:
    vocabulary = load_vocabulary(path, lower_case)
    if vocabulary.fingerprint != fingerprint:
        raise InputError("file-changed", f"the vocabulary {path} changed during the run: run the same command again")
    return vocabulary, WordEncoder(vocabulary)


@dataclass(slots=True)
class _Chosen:
    """The questions that are kept."""

    contexts: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    impossible: list[bool] = field(default_factory=list)
    ids: dict[str, None] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    def drop(self, why: str, question: Question) -> None:
        self.counts.add(why, 1, question.id)


def make_part(unit: Unit) -> Part:
    """Return the columns of a unit."""
    chosen = _Chosen()
    for place, paragraph in zip(unit.places, parse(unit.path, unit.places, unit.paragraphs), strict=True):
        _choose(chosen, paragraph, unit, place)
    vocabulary, encoder = _encoder(unit.vocabulary, unit.settings.lower_case, unit.settings.vocabulary)
    contexts = encoder.encode(chosen.contexts)
    queries = encoder.encode([question.question for question in chosen.questions])
    spans = None
    if unit.settings.split == "training":
        chosen, queries, spans = _answer_spans(chosen, contexts, queries, encoder)
    columns = _text_columns(chosen)
    columns |= _window_columns(chosen, contexts, queries, spans, unit.settings, vocabulary)
    _count(chosen, columns, contexts, queries, vocabulary)
    return Part(unit.number, columns, tuple(chosen.ids), chosen.counts, encoder.tokenizer.note)


def _choose(chosen: _Chosen, paragraph: Paragraph, unit: Unit, place: Place) -> None:
    number = len(chosen.contexts)
    chosen.contexts.append(paragraph.context)
    training, is_2_0 = unit.settings.split == "training", unit.settings.version == "2.0"
    if not paragraph.context.strip():
        chosen.counts.add("empty contexts", 1, str(place))
    for question in paragraph.qas:
        if question.id in chosen.ids or question.id in unit.known_ids:
            chosen.drop(DUPLICATES, question)
            continue
        answers = question.answers or []
        impossible = is_2_0 and (not answers if question.is_impossible is None else question.is_impossible)
        _count_question(chosen.counts, paragraph.context, question, impossible, is_2_0)
        why = unusable(paragraph.context, answers) if training and not impossible else None
        # The id counts as taken all the same: the first question of an id stays, and be it left out.
        chosen.ids[question.id] = None
        if why is not None:
            chosen.drop(why, question)
            continue
        chosen.questions.append(question)
        chosen.context.append(number)
        chosen.impossible.append(impossible)


def _count_question(counts: Counts, context: str, question: Question, impossible: bool, is_2_0: bool) -> None:
    answers = question.answers or []
    if impossible and answers:
        counts.add("impossible questions with answers", 1, question.id)
    if not impossible and not any(answer.text for answer in answers):
        counts.add("questions without answers", 1, question.id)
    if is_2_0 and question.is_impossible is None:
        counts.add("questions without is_impossible", 1, question.id)
    for answer in answers:
        if answer.answer_start is None or answer.answer_start < 0:
            counts.add("answers without a start", 1, question.id)
        elif not context.startswith(answer.text, answer.answer_start):
            counts.add("misaligned answers", 1, question.id)


def _answer_spans(
    chosen: _Chosen, contexts: Pieces, queries: Pieces, encoder: WordEncoder
) -> tuple[_Chosen, Pieces, tuple[Int64, Int64]]:
    """Return the first and last token of each question's first answer, -1 where it is impossible.

    Questions whose answer has no pieces are left out of what is returned.
    """
    possible = np.flatnonzero(~np.array(chosen.impossible, np.bool_))
    answers = [(chosen.questions[number].answers or [])[0] for number in possible.tolist()]
    context = np.array(chosen.context, np.int64)[possible]
    starts = np.array([answer.answer_start for answer in answers], np.int64)
    lengths = np.array([len(answer.text) for answer in answers], np.int64)
    first, last = token_spans(contexts, context, starts, lengths)
    usable = first <= last
    first, last = improve(contexts, encoder.encode([answer.text for answer in answers]), context, first, last)
    firsts, lasts = np.full((2, len(chosen.questions)), -1, np.int64)
    firsts[possible], lasts[possible] = first, last
    if usable.all():
        return chosen, queries, (firsts, lasts)
    kept = np.ones(len(chosen.questions), np.bool_)
    kept[possible[~usable]] = False
    numbers = np.flatnonzero(kept).tolist()
    for number in np.flatnonzero(~kept).tolist():
        chosen.drop(NO_PIECES, chosen.questions[number])
    rest = _Chosen(
        chosen.contexts,
        [chosen.questions[number] for number in numbers],
        [chosen.context[number] for number in numbers],
        [chosen.impossible[number] for number in numbers],
        chosen.ids,
        chosen.counts,
    )
    return rest, encoder.encode([question.question for question in rest.questions]), (firsts[kept], lasts[kept])


def _text_columns(chosen: _Chosen) -> Columns:
    golds = [[answer.text for answer in question.answers or ()] for question in chosen.questions]
    return {
        **_texts("contexts", chosen.contexts),
        **_texts("question_ids", [question.id for question in chosen.questions]),
        **_texts("questions", [question.question for question in chosen.questions]),
        **_texts("answers", [text for texts in golds for text in texts]),
        "question_answers": np.fromiter(map(len, golds), np.int64, len(golds)),
        "question_context": np.array(chosen.context, np.int32),
        "impossible": np.array(chosen.impossible, np.bool_),
    }


def _texts(name: str, texts: Sequence[str]) -> Columns:
    """Return texts as UTF-8 bytes and the length of each."""
    together = "".join(texts)
    values = together.encode("utf-8")
    found = np.frombuffer(values, np.uint8)
    rows = np.fromiter(map(len, texts), np.int64, len(texts))
    if len(values) > len(together):  # every byte but those of the form 10xxxxxx begins a character
        begins = np.append(np.flatnonzero((found & 0xC0) != 0x80), len(values))
        rows = np.diff(begins[np.cumsum(np.concatenate([[0], rows]))])
    return {f"{name}.values": found, f"{name}.rows": rows}


def _window_columns(
    chosen: _Chosen,
    contexts: Pieces,
    queries: Pieces,
    spans: tuple[Int64, Int64] | None,
    settings: Settings,
    vocabulary: Vocabulary,
) -> Columns:
    context = np.array(chosen.context, np.int64)
    context_tokens = np.diff(contexts.offsets)
    query_tokens = np.minimum(np.diff(queries.offsets), settings.max_query_length)
    most = settings.max_seq_length - SPECIAL_TOKENS - query_tokens
    windows = place_windows(context_tokens[context], most, settings.doc_stride)
    greatest = greatest_context(windows, context_tokens[context])
    document_starts = query_tokens[windows.question] + 2
    starts, ends = np.zeros((2, len(windows.question)), np.int64)
    if spans is not None:
        starts, ends = window_targets(windows, document_starts, *spans)
        impossible = np.array(chosen.impossible, np.bool_)[windows.question]
        outside = (starts == 0) & ~impossible
        chosen.counts.add("windows without the answer", int(outside.sum()))
        if settings.drop_unanswerable_windows:
            greatest = greatest[np.repeat(~outside, windows.tokens)]
            starts, ends = starts[~outside], ends[~outside]
            windows = windows.only(~outside)
    cut = np.concatenate([[0], np.cumsum(query_tokens)])
    kept = _heads_of_rows(queries, query_tokens)
    size = contexts.values.itemsize
    marks = np.array([vocabulary.cls_id, vocabulary.sep_id], contexts.values.dtype).tobytes()
    rows = input_rows(
        (kept.tobytes(), cut * size), (contexts.values.tobytes(), contexts.offsets * size), windows, context, marks
    )
    return {
        "tokens.values": contexts.values,
        "tokens.rows": context_tokens,
        "token_words": contexts.token_words,
        "queries.values": kept,
        "queries.rows": query_tokens,
        "question_windows": windows.counts,
        "window_question": windows.question.astype(np.int32),
        "window_first": windows.first.astype(np.int32),
        "window_tokens": windows.tokens.astype(np.int32),
        "input_ids.values": np.frombuffer(rows, contexts.values.dtype),
        "input_ids.rows": query_tokens[windows.question] + windows.tokens + SPECIAL_TOKENS,
        "max_context.values": greatest,
        "max_context.rows": windows.tokens,
        "start_positions": starts.astype(np.int32),
        "end_positions": ends.astype(np.int32),
    }


def _heads_of_rows(pieces: Pieces, lengths: Int64) -> npt.NDArray[Any]:
    rest = np.diff(pieces.offsets) - lengths
    if not rest.any():
        return pieces.values
    pattern = np.stack([lengths, rest], axis=1).ravel()
    kept: npt.NDArray[Any] = pieces.values[np.repeat(np.tile([True, False], len(lengths)), pattern)]
    return kept


def _count(chosen: _Chosen, columns: Columns, contexts: Pieces, queries: Pieces, vocabulary: Vocabulary) -> None:
    unknown = vocabulary.ids["[UNK]"]
    cut = int(np.count_nonzero(columns["queries.rows"] < np.diff(queries.offsets)))
    numbers = {
        "contexts": len(chosen.contexts),
        "questions": len(chosen.questions),
        "impossible questions": sum(chosen.impossible),
        "answers": len(columns["answers.rows"]),
        "questions cut": cut,
        "windows": len(columns["window_question"]),
        "questions of several windows": int(np.count_nonzero(columns["question_windows"] > 1)),
        "context tokens": len(contexts.values),
        "unknown context tokens": int(np.count_nonzero(contexts.values == unknown)),
        "window tokens": len(columns["input_ids.values"]),
    }
    for name, number in numbers.items():
        chosen.counts.add(name, number)
