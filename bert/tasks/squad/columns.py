"""The columns of some paragraphs of a file (bert.tasks.squad.features). Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert.data.features import Columns
from bert.data.finished import Counts
from bert.data.rows import Int64, Ragged, offsets_of
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import Settings
from bert.tasks.squad.reading import Paragraph, Question
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
from bert.tasks.squad.words import Pieces, encode_words


class Asked(NamedTuple):
    """A question that is kept."""

    question: Question
    context: int
    """Number of its context."""
    impossible: bool


def make_columns(paragraphs: Sequence[Paragraph], settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    """Return the columns of some paragraphs, and what was counted in them."""
    counts = Counts()
    contexts = encode_words([paragraph.context for paragraph in paragraphs], vocabulary)
    asked = list(_asked(paragraphs, settings, counts))
    spans = None
    if settings.split == "training":
        asked, spans = _with_spans(asked, contexts, vocabulary, counts)
    queries = encode_words([one.question.question for one in asked], vocabulary)
    golds = [[answer.text for answer in one.question.answers] for one in asked]
    columns = {
        **_ragged("contexts", Ragged.of_texts([paragraph.context for paragraph in paragraphs])),
        **_ragged("question_ids", Ragged.of_texts([one.question.id for one in asked])),
        **_ragged("questions", Ragged.of_texts([one.question.question for one in asked])),
        **_ragged("answers", Ragged.of_texts([text for texts in golds for text in texts])),
        "question_answers": offsets_of([len(texts) for texts in golds]),
        "question_context": np.array([one.context for one in asked], np.int32),
        "impossible": np.array([one.impossible for one in asked], np.bool_),
    }
    columns |= _window_columns(asked, contexts, queries, spans, settings, vocabulary, counts)
    numbers = {
        "contexts": len(paragraphs),
        "questions": len(asked),
        "impossible questions": sum(one.impossible for one in asked),
        "answers": len(columns["answers.offsets"]) - 1,
        "windows": len(columns["window_question"]),
        "tokens": len(contexts.values),
        "unknown tokens": int(np.count_nonzero(contexts.values == vocabulary.ids["[UNK]"])),
        "window tokens": len(columns["input_ids.values"]),
    }
    for name, number in numbers.items():
        counts.add(name, number)
    return columns, counts


def _ragged(name: str, rows: Ragged) -> Columns:
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


def _with_spans(
    asked: list[Asked], contexts: Pieces, vocabulary: Vocabulary, counts: Counts
) -> tuple[list[Asked], tuple[Int64, Int64]]:
    """Return the questions whose answer has pieces, and the first and last token of each one's first answer, -1 where
    it is impossible."""
    possible = np.array([number for number, one in enumerate(asked) if not one.impossible], np.int64)
    answers = [one.question.answers[0] for one in asked if not one.impossible]
    context = np.array([one.context for one in asked], np.int64)[possible]
    starts = np.array([answer.answer_start for answer in answers], np.int64)
    lengths = np.array([len(answer.text) for answer in answers], np.int64)
    first, last = token_spans(contexts, context, starts, lengths)
    usable = first <= last
    texts = encode_words([answer.text for answer in answers], vocabulary)
    first, last = improve(contexts, texts, context, first, last)
    firsts, lasts = np.full((2, len(asked)), -1, np.int64)
    firsts[possible], lasts[possible] = first, last
    kept = np.ones(len(asked), np.bool_)
    kept[possible[~usable]] = False
    for number in np.flatnonzero(~kept).tolist():
        counts.add(NO_PIECES, 1, asked[number].question.id)
    return [one for one, keep in zip(asked, kept.tolist(), strict=True) if keep], (firsts[kept], lasts[kept])


def _window_columns(
    asked: Sequence[Asked],
    contexts: Pieces,
    queries: Pieces,
    spans: tuple[Int64, Int64] | None,
    settings: Settings,
    vocabulary: Vocabulary,
    counts: Counts,
) -> Columns:
    context = np.array([one.context for one in asked], np.int64)
    context_tokens = np.diff(contexts.offsets)
    query_tokens = np.minimum(np.diff(queries.offsets), settings.max_query_length)
    most = settings.max_seq_length - SPECIAL_TOKENS - query_tokens
    windows = place_windows(context_tokens[context], most, settings.doc_stride)
    greatest = greatest_context(windows, context_tokens[context])
    starts, ends = np.zeros((2, len(windows.question)), np.int64)
    if spans is not None:
        starts, ends = window_targets(windows, query_tokens[windows.question] + 2, *spans)
        impossible = np.array([one.impossible for one in asked], np.bool_)[windows.question]
        outside = (starts == 0) & ~impossible
        counts.add("windows without the answer", int(outside.sum()))
        if settings.drop_unanswerable_windows:
            greatest = greatest[np.repeat(~outside, windows.tokens)]
            starts, ends = starts[~outside], ends[~outside]
            windows = windows.only(~outside)
    counts.add("questions cut", int(np.count_nonzero(query_tokens < np.diff(queries.offsets))))
    cut = Ragged(_heads_of_rows(queries, query_tokens), offsets_of(query_tokens))
    rows = input_rows(cut, contexts, windows, context, (vocabulary.cls_id, vocabulary.sep_id))
    return {
        "tokens.values": contexts.values,
        "tokens.offsets": contexts.offsets,
        "token_words": contexts.token_words,
        **_ragged("queries", cut),
        "question_windows": offsets_of(windows.counts),
        "window_question": windows.question.astype(np.int32),
        "window_first": windows.first.astype(np.int32),
        "window_tokens": windows.tokens.astype(np.int32),
        "input_ids.values": rows,
        "input_ids.offsets": offsets_of(query_tokens[windows.question] + windows.tokens + SPECIAL_TOKENS),
        "max_context.values": greatest,
        "max_context.offsets": offsets_of(windows.tokens),
        "start_positions": starts.astype(np.int32),
        "end_positions": ends.astype(np.int32),
    }


def _heads_of_rows(pieces: Pieces, lengths: Int64) -> npt.NDArray[Any]:
    """Return the first `lengths` pieces of each text."""
    rest = np.diff(pieces.offsets) - lengths
    pattern = np.stack([lengths, rest], axis=1).ravel()
    heads: npt.NDArray[Any] = pieces.values[np.repeat(np.tile([True, False], len(lengths)), pattern)]
    return heads
