"""SQuAD from logits to answers: spans, n-best lists, the original text, files, and the official scores."""

import gzip
import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_squad_decoding as plain
from support.examples import examples
from support.refusals import refused
from support.shared_files import samples, vocabulary_beside

from bert.data.features import vocabulary_settings
from bert.data.finished import fingerprint_of
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary, load_vocabulary
from bert.tasks.squad.features import Settings, SquadFeatures, golds_of
from bert.tasks.squad.predictions import (
    Answers,
    Context,
    NBestOptions,
    NormalWords,
    decode,
)
from bert.tasks.squad.reading import Answer, Golds, Paragraph, Question, read_answers, read_dataset, read_golds
from bert.tasks.squad.scores import normalize, score
from bert.tasks.squad.windows import make_columns
from common.errors import Code, StorageError

WORDS = ("the", "a", "Normans", "normans,", "10th", "century", "U.S.", "us", "An", "…", "-", "Straße", "x")


def dataset_of(questions: list[dict[str, Any]], version: str) -> dict[str, Any]:
    return {"version": version, "data": [{"title": "T", "paragraphs": [{"context": "c", "qas": questions}]}]}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def random_case(seed: int, version: str) -> tuple[dict[str, Any], dict[str, str], dict[str, float]]:
    """A dataset, predictions and no-answer scores with many ties; answers are often empty or punctuation only."""
    generator = random.Random(seed)

    def answer() -> str:
        return " ".join(generator.choice(WORDS) for _ in range(generator.randrange(4)))

    questions = []
    for number in range(generator.randrange(1, 60)):
        fewest = 0 if version == "2.0" else 1
        golds = [{"text": answer(), "answer_start": 0} for _ in range(generator.randrange(fewest, 5))]
        questions.append({"id": f"q{number}", "question": "?", "answers": golds})
    predictions = {question["id"]: answer() for question in questions}
    odds = {question["id"]: generator.choice([-3.5, -1, 0, 0.5, 2, 7.25]) for question in questions}
    order = list(odds)
    generator.shuffle(order)
    return dataset_of(questions, f"v{version}"), predictions, {name: odds[name] for name in order}


@pytest.mark.parametrize("seed", range(40))
def test_scores_of_1_1_equal_the_plain_reference(seed: int, tmp_path: Path) -> None:
    dataset, predictions, _ = random_case(seed, "1.1")
    dropped = dict(list(predictions.items())[: max(1, len(predictions) - seed % 3)])
    found = score(read_golds(write(tmp_path / "d.json", dataset)), dropped)
    assert found.version == "1.1"
    assert found.values == plain.scores_1(dataset, dropped)
    assert list(found.missing) == [name for name in predictions if name not in dropped]


@pytest.mark.parametrize("seed", range(120))
def test_scores_thresholds_and_curves_of_2_0_equal_the_plain_reference(seed: int, tmp_path: Path) -> None:
    dataset, predictions, odds = random_case(seed, "2.0")
    golds = read_golds(write(tmp_path / "d.json", dataset))
    assert golds.version == "2.0"
    assert score(golds, predictions).values == plain.scores_2(dataset, predictions)
    threshold = (None, 0.0, -2.0, 0.5)[seed % 4]
    found = score(golds, predictions, odds, threshold)
    wanted = plain.scores_2(dataset, predictions, odds, 1.0 if threshold is None else threshold)
    assert found.values == wanted
    assert list(found.values) == list(wanted)


def test_missing_predictions_of_2_0_count_as_0_and_are_named() -> None:
    golds = Golds("2.0", ("a", "b", "c", "d"), (("x",), (), ("y",), ()))
    found = score(golds, {"a": "x", "b": "", "z": "1"})
    assert (found.missing, found.extra) == (("c", "d"), ("z",))
    names = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
    totals = {"total": 4, "HasAns_total": 2, "NoAns_total": 2}
    assert found.values == dict.fromkeys(names, 50.0) | totals
    with_odds = score(golds, {"a": "x", "b": "", "z": "1"}, {"a": -1.0, "b": 2.0, "w": 3.0})
    assert with_odds.values["best_exact"] == 50.0


def test_an_id_that_comes_twice_is_scored_as_in_the_official_scripts() -> None:
    first = score(Golds("1.1", ("a", "a"), (("x",), ("y",))), {"a": "y"})
    assert first.values == {"exact_match": 50.0, "f1": 50.0} and first.questions == 2
    second = score(Golds("2.0", ("a", "a"), (("x",), ("y",))), {"a": "y"})
    assert second.values["exact"] == 100.0 and second.questions == 1


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Normans'\u00a0\u202fland!", "normans land"),
        ("a—the b", "— b"),
        ("«Straße», U.S.", "«straße» us"),
        ("İstanbul 漢字。", "i̇stanbul 漢字。"),
    ],
)
def test_text_is_normalised_as_published(text: str, normal: str) -> None:
    assert normalize(text) == plain.normalize(text)
    assert normalize(text) == normal


def test_predictions_and_no_answer_scores_that_do_not_fit_are_refused() -> None:
    golds = Golds("2.0", ("a", "b"), (("x",), ()))
    with refused("answers-invalid", "1 of the 2", "'b'"):
        score(golds, {"a": "x", "b": ""}, {"a": 1.0})
    with refused("answers-invalid", 1):
        score(golds, {"c": "x"})
    with refused("option-not-applicable", "--na-prob", "2.0"):
        score(Golds("1.1", ("a",), (("x",),)), {"a": "x"}, {"a": 1.0})
    with refused("option-missing", "--na-prob"):
        score(Golds("2.0", ("a",), (("x",),)), {"a": "x"}, threshold=0.0)


def question(**fields: Any) -> dict[str, Any]:
    return {"id": "q1", "question": "?", "answers": [{"text": "x", "answer_start": 0}]} | fields


@pytest.mark.parametrize(
    ("version", "extra", "expected"),
    [
        ("1.1", {}, "1.1"),
        ("v2.0", {}, "2.0"),
        (2, {"answers": []}, "2.0"),
        ("1.1", {"is_impossible": None}, "1.1"),
        ("1.1", {"is_impossible": False}, "2.0"),
    ],
)
def test_the_file_says_whose_rules_hold(version: Any, extra: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "d.json", dataset_of([question(**extra)], version))
    assert read_golds(path).version == read_dataset(path).version == expected


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (dataset_of([], "1.1"), "file-empty", ()),
        (dataset_of([question(), question(answers=[])], "1.1"), "labels-invalid", ("1 of 2",)),
    ],
)
def test_a_dataset_that_cannot_be_scored_is_refused(
    content: Any, code: Code, facts: tuple[str, ...], tmp_path: Path
) -> None:
    with refused(code, *facts):
        read_golds(write(tmp_path / "d.json", content))


@pytest.mark.parametrize(
    ("kind", "raw", "code"),
    [
        (str, b'{"q1": null}', "file-format"),
        (str, b'{"data": [{"paragraphs": []}]}', "file-format"),
        (str, b'{"q1": "x', "file-damaged"),
        (str, b'{"q1": "\xff"}', "file-damaged"),
        (str, gzip.compress(b'{"q1": "x"}' * 100, mtime=0)[:40], "file-truncated"),
        (float, b'{"q1": "x"}', "file-format"),
        (float, b'{"q1": NaN}', "file-damaged"),
    ],
)
def test_what_is_no_file_of_answers_is_refused(kind: type[str], raw: bytes, code: Code, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(raw)
    with refused(code, path):
        read_answers(path, kind)


def test_answers_are_read_plain_and_packed_and_the_last_of_an_id_counts(tmp_path: Path) -> None:
    answers = {"q1": "\u2028", "q2": "", "q3": "漢字"}
    for number, raw in enumerate((json.dumps(answers).encode(), gzip.compress(json.dumps(answers, indent=4).encode()))):
        (tmp_path / f"{number}.json").write_bytes(raw)
        assert read_answers(tmp_path / f"{number}.json", str) == answers
    (tmp_path / "odds.json").write_text('{"a": 1, "a": 2.5}')
    assert read_answers(tmp_path / "odds.json", float) == {"a": 2.5}


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”’–—…。、「」"  # noqa: RUF001
OTHERS = "éèüñçøåßıﬁλογσςабвиюяñ漢字東京語가각あア"
KNOWN_WORDS = ("the", "norman", "france", "steve", "smith", "##an", "##ce", "##mi", "##th", "new", "york", "##or")


def asked(name: str, text: str = "who", *answers: str) -> Question:
    """One question."""
    return Question(name, text, [Answer(answer, 0) for answer in answers])


def small_vocabulary(lower_case: bool = True) -> Vocabulary:
    """Every letter as a word and as a continuation, every sign, a few words."""
    letters = list(dict.fromkeys(LETTERS + OTHERS + ("" if lower_case else LETTERS.upper() + "ÉÜÅÑÇ")))
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), *SIGNS, *KNOWN_WORDS]
    return Vocabulary(tuple(dict.fromkeys(pieces)), lower_case)


def features_of(contexts: Sequence[Paragraph], vocabulary: Vocabulary, **changes: Any) -> SquadFeatures:
    """The windows of some contexts."""
    lengths = {"max_seq_length": 24, "doc_stride": 7, "max_query_length": 6}
    values = {"split": "evaluation", "version": "1.1", **lengths, **changes}
    settings = Settings(**vocabulary_settings(vocabulary), **values)
    columns, _ = make_columns(contexts, settings, vocabulary)
    return SquadFeatures.of(settings, fingerprint_of(columns["input_ids.values"].tolist()), columns)


def random_logits(features: SquadFeatures, seed: int, *, steps: int = 0) -> Any:
    """Normally distributed logits; with `steps` rounded to so many per unit, which makes ties."""
    generator = np.random.default_rng(seed)
    drawn = 3 * generator.standard_normal((2, int(features.lengths.sum())), dtype=np.float32)
    if steps:
        drawn = np.round(drawn * steps) / np.float32(steps)
    return drawn


UNCASED, CASED = small_vocabulary(), small_vocabulary(lower_case=False)
TEXTS = (
    "The Norman's people, “Steve Smith’s”\u202f in New York (émigré) 東京語 a\u00a0b ﬁne İstanbul x-y the-the U.S.A.",  # noqa: RUF001
    "",
    "short.",
    "Straße\tÅngström\nNEW  york \u202fFRANCE " * 3,
)
LONG_QUESTION = "who was the norman of new york in france " * 12


def small_case(version: str = "1.1", questions: int = 3) -> SquadFeatures:
    contexts = [
        Paragraph(text, [asked(f"{n}-{k}", LONG_QUESTION[: 5 * k + 1], *["york"] * k) for k in range(questions)])
        for n, text in enumerate(TEXTS)
    ]
    return features_of(contexts, UNCASED, version=version)


def as_dicts(answers: Answers) -> dict[str, list[dict[str, object]]]:
    fields = ("text", "probability", "start_logit", "end_logit")
    return {name: [{f: getattr(e, f) for f in fields} for e in entries] for name, entries in answers.n_best.items()}


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize(("seed", "most", "steps"), [*itertools.product(range(4), (24, 3, 2), (0, 1, 3))])
def test_answers_lists_and_scores_equal_the_plain_reference(version: str, seed: int, most: int, steps: int) -> None:
    features = small_case(version)
    assert features.settings.max_seq_length == 24, "the list of 24 is made of all spans there are"
    logits = random_logits(features, seed, steps=steps)
    options = NBestOptions(n_best_size=most, max_answer_length=6, null_threshold=float(seed - 2))
    found = decode(features, logits, UNCASED, options)
    predictions, lists, odds = plain.predict(features, logits, UNCASED.pieces, most, 6, options.null_threshold)
    assert found.predictions == predictions
    assert as_dicts(found) == lists
    assert found.null_odds == (odds if version == "2.0" else {})
    quick = decode(features, logits, UNCASED, options, n_best=False)
    assert (quick.predictions, quick.null_odds, quick.n_best) == (predictions, found.null_odds, {})


def test_blocks_of_questions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features = small_case("2.0", questions=5)
    logits = random_logits(features, 3, steps=2)
    whole = decode(features, logits, UNCASED)
    for size in (1, 7):
        monkeypatch.setattr("bert.tasks.squad.predictions._QUESTIONS_AT_ONCE", size)
        assert decode(features, logits, UNCASED) == whole


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_questions_without_spans_are_answered_with_nothing(version: str) -> None:
    features = small_case(version)
    logits = random_logits(features, 0)
    offsets, document = features.input_ids.offsets, features.document_starts
    hopeless = int(features.question_windows[6])  # "2-0": one window; nothing but [CLS] and the question is likely
    low, high = int(offsets[hopeless]), int(offsets[hopeless] + document[hopeless])
    logits[0, low:high] = 100
    found = decode(features, logits, UNCASED, NBestOptions(n_best_size=high - low))
    for name in ("1-0", "1-1", "1-2", "2-0"):
        assert found.predictions[name] == ""
        assert [entry.text for entry in found.n_best[name]] == (["empty"] if version == "1.1" else ["empty", ""])
        assert sum(entry.probability for entry in found.n_best[name]) == pytest.approx(1)
    if version == "2.0":
        assert found.null_odds["2-0"] == float(logits[0, low]) + float(logits[1, low])
        assert score(golds_of(features), found.predictions, found.null_odds).missing == ()


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_files_hold_what_was_decoded_and_are_whole(version: str, tmp_path: Path) -> None:
    features = small_case(version)
    found = decode(features, random_logits(features, 1), UNCASED)
    names = ["nbest_predictions.json", *(["null_odds.json"] if version == "2.0" else []), "predictions.json"]
    assert [path.name for path in found.write(tmp_path / "out")] == names
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    contents = {name: json.loads((tmp_path / "out" / name).read_text(encoding="utf-8")) for name in names}
    assert contents["predictions.json"] == found.predictions
    assert contents["nbest_predictions.json"] == as_dicts(found)
    assert contents.get("null_odds.json", {}) == found.null_odds
    with pytest.raises(StorageError):
        found.write(tmp_path / "out" / "predictions.json" / "out")


def case_of(path: Path, contexts: int) -> tuple[SquadFeatures, Vocabulary]:
    dataset = read_dataset(path)
    cases = dataset.paragraphs[:: max(1, len(dataset.paragraphs) // contexts)]
    vocabulary = load_vocabulary(vocabulary_beside(path), lower_case=True)
    lengths = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    return features_of(cases, vocabulary, version=dataset.version, **lengths), vocabulary


@pytest.mark.parametrize("path", samples("squad/dev-v*.json*"))
def test_questions_are_decoded_like_the_plain_reference(path: Path) -> None:
    features, vocabulary = case_of(path, contexts=12)
    logits = random_logits(features, 2, steps=50)
    found = decode(features, logits, vocabulary)
    predictions, lists, odds = plain.predict(features, logits, vocabulary.pieces)
    assert len(predictions) >= 20
    assert found.predictions == predictions and as_dicts(found) == lists
    assert found.null_odds == (odds if "v2.0" in path.name else {})


def one_context(text: str, *, lower_case: bool) -> SquadFeatures:
    contexts = [Paragraph(text, [asked("q")])]
    return features_of(contexts, UNCASED if lower_case else CASED, max_seq_length=400, doc_stride=128)


@pytest.mark.parametrize(
    ("text", "answer", "expected", "lower_case"),
    [
        ("In Steve Smith's house", "steve smith", "Steve Smith", True),
        ("was “Norman”, they", "norman", "Norman", True),
        ("the Émigré, said", "emigre", "Émigré", True),
        ("the  New\nYork\u202fhouse", "new york house", "New York house", True),
        ("in 東京語 now", "京", "京", True),
        ("x–y co-op", "co-op", "co-op", True),  # noqa: RUF001
        ("about $5.3 million", "5.3", "5.3", True),
        ("soft\u00adhyphen word", "softhyphen", "soft\u00adhyphen", True),  # lengths differ: the original word
        ("İstanbul's", "istanbul", "İstanbul", True),
        ("e\u0301mile's", "emile", "e\u0301mile's", True),  # a combining accent more than its normal form
        ("(Émile", "É", "É", False),
        ("NEW York's", "York", "York", False),
        ("say ☃☃, then", "☃☃", "☃☃,", True),  # unknown pieces
        ("(ΛΟΓΟΣ), said", "ΛΟΓΟΣ", "ΛΟΓΟΣ", True),  # as the tokenizer writes a final sigma, not Python
        ("\u200b xx", "xx", "xx", True),  # after a word without a normal form
    ],
)
def test_answers_are_the_original_text(text: str, answer: str, expected: str, lower_case: bool) -> None:
    vocabulary = UNCASED if lower_case else CASED
    features = one_context(text, lower_case=lower_case)
    tokens = features.tokens[0].tolist()
    (wanted,) = vocabulary.encode([answer])
    first = next(n for n in range(len(tokens)) if tokens[n : n + len(wanted)] == wanted)
    context = Context(features, 0, vocabulary.pieces, NormalWords(lower_case))
    assert context.text(first, first + len(wanted) - 1) == expected


# A final sigma and private characters are left out: there the tokenizer and Python's own rules differ.
CHARACTERS = (
    LETTERS + LETTERS.upper()[:26] + OTHERS.replace("ς", "") + "ÉÜÅÑÇİẞ가\u0301\u0308\u200b\u00ad\ufeff" + SIGNS
)


@settings(max_examples=examples(150), deadline=None)
@given(
    text=st.text(st.sampled_from(CHARACTERS) | st.sampled_from(" \t\r\n\u202f\u00a0\u3000  "), max_size=40),
    lower_case=st.booleans(),
)
def test_every_span_of_any_text_equals_the_plain_projection(text: str, lower_case: bool) -> None:
    vocabulary = UNCASED if lower_case else CASED
    features = one_context(text, lower_case=lower_case)
    words = re.findall("[^ \t\r\n\u202f]+", text)
    word_of = features.token_words.tolist()
    pieces = [vocabulary.pieces[number] for number in features.tokens[0].tolist()]
    context = Context(features, 0, vocabulary.pieces, NormalWords(lower_case))
    for first in range(len(pieces)):
        for last in range(first, min(len(pieces), first + 8)):
            joined = " ".join(pieces[first : last + 1]).replace(" ##", "").replace("##", "")
            original = " ".join(words[word_of[first] : word_of[last] + 1])
            assert context.text(first, last) == plain.final_text(" ".join(joined.split()), original, lower_case)
