"""SQuAD's features in plain Python, question by question: what the columns are held against.

Written from the description of google-research/bert's run_squad.py. Nothing is shared with the project: contexts are
cut into words character by character, every word is tokenised by itself, windows and their greatest context are found
by loops. Three things the published code stops at, or leaves undefined, are decided as the project does: a training
question whose answer has no place in its context, no text, or no word pieces is left out; a context without word pieces
has one empty window; of several training answers the first one counts.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.plain_tokenizer import PlainTokenizer

Tokenize = Callable[[str], list[int]]


@dataclass
class Window:
    """One window of a question."""

    input_ids: list[int]
    segment_ids: list[int]
    token_to_word: dict[int, int]
    max_context: dict[int, bool]
    start_position: int
    end_position: int
    holds_answer: bool
    unique_id: int = 0


@dataclass
class Example:
    """One question."""

    number: int
    id: str
    question: str
    context: str
    words: list[str]
    impossible: bool
    answers: list[str]
    first_word: int | None = None
    last_word: int | None = None
    answer: str = ""
    windows: list[Window] = field(default_factory=list)


def load(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return document


def is_white(character: str) -> bool:
    return character in (" ", "\t", "\r", "\n") or ord(character) == 0x202F


def words_of(context: str) -> tuple[list[str], list[int]]:
    """Return the words, and for each character the number of the last word begun."""
    words: list[str] = []
    word_of: list[int] = []
    apart = True
    for character in context:
        if is_white(character):
            apart = True
        else:
            if apart:
                words.append(character)
            else:
                words[-1] += character
            apart = False
        word_of.append(len(words) - 1)
    return words, word_of


def read_examples(document: dict[str, Any], version_2: bool, training: bool) -> Iterator[Example]:
    seen = set()
    number = 0
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            words, word_of = words_of(context)
            for question in paragraph["qas"]:
                if question["id"] in seen:
                    continue
                seen.add(question["id"])
                golds = question.get("answers") or []
                impossible = version_2 and question.get("is_impossible", not golds)
                example = Example(
                    number=number,
                    id=question["id"],
                    question=question["question"],
                    context=context,
                    words=words,
                    impossible=impossible,
                    answers=[gold["text"] for gold in golds],
                )
                if training and not impossible and not locate(example, golds, word_of):
                    continue
                number += 1
                yield example


def locate(example: Example, golds: list[dict[str, Any]], word_of: list[int]) -> bool:
    """Find the words of the first answer; False where the question is left out."""
    if not golds or not golds[0]["text"]:
        return False
    text, start = golds[0]["text"], golds[0].get("answer_start")
    if start is None or start < 0 or start + len(text) > len(word_of):
        return False
    first, last = word_of[start], word_of[start + len(text) - 1]
    found = " ".join(example.words[first : last + 1])
    if found.find(" ".join(text.split())) == -1 or not example.words:
        return False
    example.first_word, example.last_word, example.answer = first, last, text
    return True


def convert(
    example: Example,
    tokenize: Tokenize,
    marks: tuple[int, int],
    training: bool,
    lengths: tuple[int, int, int] = (384, 128, 64),
) -> bool:
    """Give an example its windows; False where its answer has no word pieces."""
    max_seq_length, doc_stride, max_query_length = lengths
    query = tokenize(example.question)[:max_query_length]
    token_word: list[int] = []
    word_token: list[int] = []
    tokens: list[int] = []
    for number, word in enumerate(example.words):
        word_token.append(len(tokens))
        for token in tokenize(word):
            token_word.append(number)
            tokens.append(token)
    answer_first = answer_last = -1
    has_answer = training and not example.impossible
    if has_answer:
        assert example.first_word is not None and example.last_word is not None
        answer_first = word_token[example.first_word]
        if example.last_word < len(example.words) - 1:
            answer_last = word_token[example.last_word + 1] - 1
        else:
            answer_last = len(tokens) - 1
        if answer_last < answer_first:
            return False
        answer_first, answer_last = improved(tokens, answer_first, answer_last, tokenize(example.answer))
    spans = place_windows(len(tokens), max_seq_length - len(query) - 3, doc_stride)
    for index, (start, length) in enumerate(spans):
        ids = [marks[0], *query, marks[1]]
        segments = [0] * len(ids)
        token_to_word, max_context = {}, {}
        for step in range(length):
            token_to_word[len(ids)] = token_word[start + step]
            max_context[len(ids)] = is_max_context(spans, index, start + step)
            ids.append(tokens[start + step])
            segments.append(1)
        ids.append(marks[1])
        segments.append(1)
        holds = has_answer and answer_first >= start and answer_last <= start + length - 1
        shift = len(query) + 2 - start
        position = (answer_first + shift, answer_last + shift) if holds else (0, 0)
        example.windows.append(Window(ids, segments, token_to_word, max_context, *position, holds))
    return True


def place_windows(tokens: int, most: int, doc_stride: int) -> list[tuple[int, int]]:
    spans = []
    start = 0
    while start < tokens:
        length = min(tokens - start, most)
        spans.append((start, length))
        if start + length == tokens:
            break
        start += min(length, doc_stride)
    return spans or [(0, 0)]


def improved(tokens: list[int], first: int, last: int, answer: list[int]) -> tuple[int, int]:
    for new_first in range(first, last + 1):
        for new_last in range(last, new_first - 1, -1):
            if tokens[new_first : new_last + 1] == answer:
                return new_first, new_last
    return first, last


def is_max_context(spans: list[tuple[int, int]], index: int, position: int) -> bool:
    best_score = best_index = None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_index = score, number
    return index == best_index


def features(
    document: dict[str, Any],
    version_2: bool,
    training: bool,
    tokenize: Tokenize,
    marks: tuple[int, int],
    lengths: tuple[int, int, int] = (384, 128, 64),
    drop_unanswerable: bool = False,
) -> Iterator[Example]:
    """Yield all questions with their windows; `marks` are the ids of [CLS] and [SEP]."""
    unique_id = 1_000_000_000
    for example in read_examples(document, version_2, training):
        if not convert(example, tokenize, marks, training, lengths):
            continue
        if drop_unanswerable and training and not example.impossible:
            example.windows = [window for window in example.windows if window.holds_answer]
        for window in example.windows:
            window.unique_id = unique_id
            unique_id += 1
        yield example


class Remembering:
    """A tokenizer that is asked once for each word: the same ids, in a time that tests can wait for."""

    def __init__(self, tokenize: Tokenize) -> None:
        self.tokenize = tokenize
        self.known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        if text not in self.known:
            self.known[text] = self.tokenize(text)
        return self.known[text]


def plain(
    source: Path, vocab: Path, training: bool, lengths: tuple[int, int, int], lower_case: bool = True, **options: Any
) -> Iterable[Example]:
    """Make the features of a file of questions for windows of `lengths`."""
    pieces = vocab.read_text(encoding="utf-8").split("\n")[:-1]
    marks = (pieces.index("[CLS]"), pieces.index("[SEP]"))
    document = load(source)
    is_2_0 = "is_impossible" in str(document["data"])
    tokenize = Remembering(PlainTokenizer(pieces, lower_case=lower_case).encode)
    return features(document, is_2_0, training, tokenize, marks, lengths, **options)


def compare(features: Any, examples: Iterable[Example]) -> tuple[int, int]:
    """Hold the project's features to be these; return how many questions and windows there are."""
    questions = windows = 0
    for number, example in enumerate(examples):
        context = int(features.question_context[number])
        assert example.number == number or example.number > number
        assert features.question_ids.text(number) == example.id
        assert features.contexts.text(context) == example.context, example.id
        first, last = features.question_answers[number : number + 2].tolist()
        assert [features.answers.text(row) for row in range(first, last)] == example.answers, example.id
        first, last = features.question_windows[number : number + 2].tolist()
        assert last - first == len(example.windows), example.id
        token_words = features.token_words[features.tokens.offsets[context] : features.tokens.offsets[context + 1]]
        for row, window in zip(range(first, last), example.windows, strict=True):
            place = f"{example.id}, window {row - first}"
            assert 1_000_000_000 + row == window.unique_id, place
            assert int(features.window_question[row]) == number, place
            ids = features.input_ids[row]
            assert ids.tolist() == window.input_ids, place
            begin, length = int(features.document_starts[row]), int(features.window_tokens[row])
            assert [0] * begin + [1] * (len(ids) - begin) == window.segment_ids, place
            start = int(features.window_first[row])
            places = range(begin, begin + length)
            words = token_words[start : start + length].tolist()
            assert dict(zip(places, words, strict=True)) == window.token_to_word, place
            greatest = features.max_context[row].astype(bool).tolist()
            assert dict(zip(places, greatest, strict=True)) == window.max_context, place
            targets = (int(features.start_positions[row]), int(features.end_positions[row]))
            assert targets == (window.start_position, window.end_position), place
        questions += 1
        windows += len(example.windows)
    assert (questions, windows) == (len(features.question_ids), len(features))
    return questions, windows
