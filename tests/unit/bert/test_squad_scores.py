"""Official scores of SQuAD 1.1 and 2.0."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import plain_squad_decoding as plain
from support.refusals import refused

from bert.tasks.squad.reading import Golds, read_answers, read_dataset, read_golds
from bert.tasks.squad.scores import normalize, score
from common.errors import Code

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
