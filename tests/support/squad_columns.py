"""Holds the columns of SQuAD features against the plain implementation, field by field."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support import plain_squad
from support.plain_squad import Example, Remembering
from support.plain_tokenizer import PlainTokenizer

from bert.tasks.squad.features import SquadFeatures, open_features
from bert.tasks.squad.prepare import SquadConfig, prepare

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,?!-'")
SUFFIXES = tuple(f"##{piece}" for piece in "abcdefghijklmnopqrstuvwxyz0123456789")


def silent(stage: str, done: int, total: int | None) -> None:
    """Take the progress."""


def small_vocabulary(folder: Path, *words: str) -> Path:
    """Write a vocabulary of letters, digits, some signs and `words`."""
    path = folder / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys((*PIECES, *SUFFIXES, *words))) + "\n", encoding="utf-8")
    return path


def paragraph(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"context": context, "qas": list(questions)}


def question(name: str, text: str = "why?", *answers: tuple[str, int | None], **more: Any) -> dict[str, Any]:
    golds = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": name, "question": text, "answers": golds, **more}


def dataset(path: Path, *paragraphs: dict[str, Any], version: str = "1.1") -> Path:
    content = {"version": version, "data": [{"title": "Title", "paragraphs": list(paragraphs)}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def make(source: Path, vocab: Path, output: Path, **options: Any) -> Any:
    """Make features with one worker, where `options` say no other number."""
    config = SquadConfig(input=(source,), vocab=vocab, output=output, **{"workers": 1, **options})
    (summary,) = prepare(config, silent)
    return summary


def made(source: Path, vocab: Path, output: Path, **options: Any) -> SquadFeatures:
    summary = make(source, vocab, output, **options)
    return open_features(summary.features, summary.settings.split)


def plain(
    source: Path, vocab: Path, training: bool, lengths: tuple[int, int, int], lower_case: bool = True, **options: Any
) -> Iterable[Example]:
    """Make the features of a file of questions by the plain implementation, for windows of `lengths`."""
    pieces = vocab.read_text(encoding="utf-8").split("\n")[:-1]
    marks = (pieces.index("[CLS]"), pieces.index("[SEP]"))
    document = plain_squad.load(source)
    is_2_0 = "is_impossible" in str(document["data"])
    tokenize = Remembering(PlainTokenizer(pieces, lower_case=lower_case).encode)
    return plain_squad.features(document, is_2_0, training, tokenize, marks, lengths, **options)


def compare(features: SquadFeatures, examples: Iterable[Example]) -> tuple[int, int]:
    """Return how many questions and windows were compared, all that there are. Raises AssertionError."""
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
