"""From logits to answers: spans, n-best lists, no-answer scores, files."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from support import plain_squad_decoding as plain
from support.refusals import refused
from support.shared_files import samples, unpacked, vocabulary_beside
from support.squad_cases import Context, Question, features_of, random_logits, small_vocabulary

from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.predictions import (
    NO_WINDOW_SCORE,
    Answers,
    NBestEntry,
    NBestOptions,
    WindowLogits,
    decode,
    find_spans,
)
from bert.tasks.squad.reading import golds_of
from bert.tasks.squad.scores import score
from common.errors import StorageError

VOCABULARY = small_vocabulary()
TEXTS = (
    "The Norman's people, “Steve Smith’s”\u202f in New York (émigré) 東京語 a\u00a0b ﬁne İstanbul x-y the-the U.S.A.",  # noqa: RUF001
    "",
    "short.",
    "Straße\tÅngström\nNEW  york \u202fFRANCE " * 3,
)
LONG_QUESTION = "who was the norman of new york in france " * 12


def small_case(version: str = "1.1", questions: int = 3) -> SquadFeatures:
    contexts = [
        Context(text, [Question(f"{n}-{k}", LONG_QUESTION[: 5 * k + 1], ["york"] * k) for k in range(questions)])
        for n, text in enumerate(TEXTS)
    ]
    return features_of(contexts, VOCABULARY, version=version)


def as_dicts(answers: Answers) -> dict[str, list[dict[str, object]]]:
    fields = ("text", "probability", "start_logit", "end_logit")
    return {name: [{f: getattr(e, f) for f in fields} for e in entries] for name, entries in answers.n_best.items()}


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize(("seed", "most", "steps"), [*itertools.product(range(4), (20, 3, 2), (0, 1, 3))])
def test_answers_lists_and_scores_equal_the_plain_reference(version: str, seed: int, most: int, steps: int) -> None:
    features = small_case(version)
    logits = random_logits(features, seed, steps=steps)
    options = NBestOptions(n_best_size=most, max_answer_length=6, null_threshold=float(seed - 2))
    found = decode(features, logits, VOCABULARY, options)
    predictions, lists, odds = plain.predict(features, logits, VOCABULARY.pieces, most, 6, options.null_threshold)
    assert found.predictions == predictions
    assert as_dicts(found) == lists
    assert found.null_odds == (odds if version == "2.0" else {})
    quick = decode(features, logits, VOCABULARY, options, n_best=False)
    assert (quick.predictions, quick.null_odds, quick.n_best) == (predictions, found.null_odds, {})


def every_span(features: SquadFeatures, logits: WindowLogits, question: int) -> dict[tuple[int, int], float]:
    """Each span of a question's context with its sum, in the window that has the start's greatest context."""
    found = {}
    for window in range(int(features.question_windows[question]), int(features.question_windows[question + 1])):
        low = int(logits.offsets[window] + features.document_starts[window])
        count, first = int(features.window_tokens[window]), int(features.window_first[window])
        for start in range(count):
            if features.max_context[window][start]:
                for end in range(start, count):
                    total = float(logits.start[low + start]) + float(logits.end[low + end])
                    found[first + start, first + end] = total
    return found


@pytest.mark.parametrize("seed", range(8))
def test_without_limits_the_spans_are_all_spans_best_first(seed: int) -> None:
    features = small_case()
    logits = random_logits(features, seed)
    found = list(find_spans(features, logits, 1000, 1000))
    assert len(found) == len(features.question_ids)
    for question, spans in enumerate(found):
        sums = {(first, last): start + end for first, last, start, end in spans}
        assert sums == every_span(features, logits, question) and len(sums) == len(spans)
        assert list(sums.values()) == sorted(sums.values(), reverse=True)


@pytest.mark.parametrize("longest", [1, 2, 5, 1000])
def test_the_best_span_is_the_best_of_all_that_are_short_enough(longest: int) -> None:
    features = small_case()
    logits = random_logits(features, 11)
    for question, spans in enumerate(find_spans(features, logits, 1000, longest)):
        every = every_span(features, logits, question)
        allowed = {pair: total for pair, total in every.items() if pair[1] - pair[0] < longest}
        assert len(spans) == len(allowed)
        if allowed:
            assert spans[0][:2] == max(allowed, key=lambda pair: allowed[pair])


def test_blocks_of_questions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features = small_case("2.0", questions=5)
    logits = random_logits(features, 3, steps=2)
    whole = decode(features, logits, VOCABULARY)
    for pairs in (1, 1200, 2800):
        monkeypatch.setattr("bert.tasks.squad.predictions._PAIRS_AT_ONCE", pairs)
        assert decode(features, logits, VOCABULARY) == whole


def test_zeros_of_either_sign_are_equal_and_the_earlier_token_comes_first() -> None:
    features = features_of([Context("one two six", [Question("q")])], VOCABULARY, max_seq_length=100)
    values = np.zeros(int(features.lengths.sum()), np.float32)
    values[::2] = -0.0
    (spans,) = find_spans(features, WindowLogits(values, values.copy(), features.input_ids.offsets), 20, 30)
    pairs = [span[:2] for span in spans]
    assert pairs == sorted(pairs) and pairs[0] == (0, 0)


def test_the_threshold_decides_between_answer_and_none_and_equal_is_an_answer() -> None:
    features = small_case("2.0")
    logits = random_logits(features, 6, steps=2)
    odds = decode(features, logits, VOCABULARY).null_odds
    name = "0-1"
    for threshold, answered in ((odds[name], True), (odds[name] - 0.25, False), (odds[name] + 0.25, True)):
        found = decode(features, logits, VOCABULARY, NBestOptions(null_threshold=threshold))
        assert bool(found.predictions[name]) is answered
        assert found.null_odds == odds
        assert any(entry.text == "" for entry in found.n_best[name])


def test_the_best_answer_counts_where_no_answer_is_likelier_than_all() -> None:
    features = small_case("2.0")
    logits = random_logits(features, 8)
    logits.start[logits.offsets[:-1]] = 50
    whole = decode(features, logits, VOCABULARY, NBestOptions(null_threshold=1000))
    named = [name for name, text in whole.predictions.items() if text]
    assert len(named) == 9 and all(whole.n_best[name][0].text == "" for name in named)
    assert all(whole.n_best[name][1].text == whole.predictions[name] for name in named)
    quick = decode(features, logits, VOCABULARY, NBestOptions(null_threshold=1000), n_best=False)
    assert (quick.predictions, quick.null_odds) == (whole.predictions, whole.null_odds)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_questions_without_windows_or_spans_are_answered_with_nothing_and_named(version: str) -> None:
    features = small_case(version)
    logits = random_logits(features, 0)
    hopeless = int(features.question_windows[6])  # "2-0": one window; nothing but [CLS] and the question is likely
    low, high = int(logits.offsets[hopeless]), int(logits.offsets[hopeless] + features.document_starts[hopeless])
    logits.start[low:high] = 100
    found = decode(features, logits, VOCABULARY, NBestOptions(n_best_size=high - low))
    assert found.without_windows == ["1-0", "1-1", "1-2"] and found.without_spans == ["2-0"]
    assert list(found.predictions) == [features.question_ids.text(n) for n in range(12)]
    for name in (*found.without_windows, *found.without_spans):
        assert found.predictions[name] == ""
        assert [entry.text for entry in found.n_best[name]] == (["empty"] if version == "1.1" else ["empty", ""])
        assert sum(entry.probability for entry in found.n_best[name]) == pytest.approx(1)
    if version == "2.0":
        assert found.null_odds["1-0"] == NO_WINDOW_SCORE
        assert found.null_odds["2-0"] == float(logits.start[low]) + float(logits.end[low])
        assert score(golds_of(features), found.predictions, found.null_odds).missing == ()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["start", "end"])
def test_a_logit_that_is_no_number_names_the_question(value: float, side: str) -> None:
    features = small_case()
    logits = random_logits(features, 0)
    window = int(features.question_windows[4])
    getattr(logits, side)[logits.offsets[window + 1] - 1] = value
    question = features.question_ids.text(int(features.window_question[window]))
    with refused("logits-not-finite", side, question, value):
        decode(features, logits, VOCABULARY)


def test_the_last_question_of_an_id_that_comes_twice_is_kept() -> None:
    contexts = [Context("one two", [Question("q"), Question("q"), Question("r")])]
    features = features_of(contexts, VOCABULARY)
    logits = random_logits(features, 0)
    first = features.document_starts + logits.offsets[:-1] + [0, 3, 0]  # "one", "two", "one": three pieces each
    logits.start[first] = logits.end[first + 2] = 99
    found = decode(features, logits, VOCABULARY)
    assert list(found.predictions) == ["q", "r"]
    assert found.predictions == {"q": "two", "r": "one"}


@pytest.mark.parametrize(
    "wrong", [{"n_best_size": 0}, {"max_answer_length": 0}, {"null_threshold": float("nan")}], ids=str
)
def test_limits_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with refused("option-value", *(f"--{name.replace('_', '-')} {value}" for name, value in wrong.items())):
        NBestOptions(**wrong)  # type: ignore[arg-type]


def test_no_question_at_all_gives_no_answer() -> None:
    features = features_of([], VOCABULARY, version="2.0")
    found = decode(features, random_logits(features, 0), VOCABULARY)
    assert (found.predictions, found.null_odds) == ({}, {})


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_files_hold_what_was_decoded_and_are_whole(version: str, tmp_path: Path) -> None:
    features = small_case(version)
    found = decode(features, random_logits(features, 1), VOCABULARY)
    names = ["nbest_predictions.json", *(["null_odds.json"] if version == "2.0" else []), "predictions.json"]
    assert [path.name for path in found.write(tmp_path / "out")] == names
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    contents = {name: json.loads((tmp_path / "out" / name).read_text(encoding="utf-8")) for name in names}
    assert contents["predictions.json"] == found.predictions
    assert contents["nbest_predictions.json"] == as_dicts(found)
    assert contents.get("null_odds.json", {}) == found.null_odds


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = Answers({"q": "a"}, {"q": [NBestEntry("a", 1.0, 0.0, 0.0)]}, {}, [], [])
    with pytest.raises(StorageError):
        answers.write(tmp_path / "file" / "out")


def case_of(path: Path, contexts: int) -> tuple[SquadFeatures, Vocabulary]:
    content = json.loads(unpacked(path))
    paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    cases = [
        Context(
            paragraph["context"],
            [Question(q["id"], q["question"], [answer["text"] for answer in q["answers"]]) for q in paragraph["qas"]],
        )
        for paragraph in paragraphs[:: max(1, len(paragraphs) // contexts)]
    ]
    vocabulary = load_vocabulary(vocabulary_beside(path), lower_case=True)
    lengths = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    return features_of(cases, vocabulary, version="2.0" if "v2.0" in path.name else "1.1", **lengths), vocabulary


@pytest.mark.parametrize("path", samples("squad/dev-v*.json*"))
def test_questions_are_decoded_like_the_plain_reference(path: Path) -> None:
    features, vocabulary = case_of(path, contexts=12)
    logits = random_logits(features, 2, steps=50)
    found = decode(features, logits, vocabulary)
    predictions, lists, odds = plain.predict(features, logits, vocabulary.pieces)
    assert len(predictions) >= 20
    assert found.predictions == predictions and as_dicts(found) == lists
    assert found.null_odds == (odds if "v2.0" in path.name else {})


@pytest.mark.parametrize("path", samples("squad/dev-v1.1.json*"))
def test_logits_that_know_the_answers_score_almost_everything(path: Path) -> None:
    features, vocabulary = case_of(path, contexts=60)
    offsets = features.input_ids.offsets
    start, end = (np.full(int(offsets[-1]), -5, np.float32) for _ in range(2))
    for window in range(len(features)):
        question = int(features.window_question[window])
        answer = features.answers.text(int(features.question_answers[question]))
        (pieces,) = vocabulary.encode([answer])
        ids = features.input_ids[window].tolist()
        first = int(features.document_starts[window])
        for place in range(first, len(ids) - len(pieces)):
            if ids[place : place + len(pieces)] == pieces:
                start[offsets[window] + place] = end[offsets[window] + place + len(pieces) - 1] = 5 - place / 1000
    found = decode(features, WindowLogits(start, end, offsets), vocabulary, n_best=False)
    values = score(golds_of(features), found.predictions).values
    assert values["exact_match"] > 98 and values["f1"] > 99
