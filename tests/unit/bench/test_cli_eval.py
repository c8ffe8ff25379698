"""`eval squad`: exit codes, what it prints, what it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.commands import document, result, text

SQUAD = shared_files.DATA / "squad"
PICTURES = ["precision_recall.png"]


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return str(path)


def question(name: str, *answers: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in answers], **more}


def dataset(folder: Path, version: str = "v2.0") -> str:
    questions = [question("q1", "the Normans"), question("q2", "1066", "in 1066"), question("q3", "York")]
    if version == "v2.0":
        questions += [question("q4", is_impossible=True), question("q5", is_impossible=True)]
    content = {"version": version, "data": [{"title": "T", "paragraphs": [{"context": "c", "qas": questions}]}]}
    return write(folder / "dataset.json", content)


def predictions(folder: Path) -> str:
    return write(folder / "predictions.json", {"q1": "Normans!", "q2": "1066 AD", "q3": "", "q4": "", "q5": "x"})


def null_odds(folder: Path) -> str:
    return write(folder / "null_odds.json", {"q1": -5.5, "q2": -2, "q3": 0.5, "q4": 3.0, "q5": 1.25})


def test_scores_of_1_1_are_printed_and_no_file_is_written(tmp_path: Path) -> None:
    names = [dataset(tmp_path, "1.1"), predictions(tmp_path)]
    before = sorted(tmp_path.iterdir())
    shown = text(result("eval", "squad", "--dataset", names[0], "--predictions", names[1]).blocks)
    assert "SQuAD 1.1, 3 questions" in shown and "33.333 %" in shown and "55.556 %" in shown
    assert "2 for unknown ids: q4, q5" in shown and "missing" not in shown
    assert sorted(tmp_path.iterdir()) == before


def test_no_answer_scores_give_thresholds_and_pictures(tmp_path: Path) -> None:
    argv = ["eval", "squad", "--dataset", dataset(tmp_path), "--predictions", predictions(tmp_path)]
    argv += ["--na-prob", null_odds(tmp_path), "--threshold", "1", "--out", str(tmp_path / "out")]
    found = result(*argv)
    shown = text(found.blocks)
    assert "avg. precision" in shown and "--na-prob" not in shown
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*PICTURES, "scores.json"])
    for name in PICTURES:
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
        assert tmp_path / "out" / name in found.written
    printed = document(*argv)
    kept = json.loads((tmp_path / "out" / "scores.json").read_text(encoding="utf-8"))
    assert kept == {name: value for name, value in printed.items() if name != "written"}
    assert printed["scores"]["total"] == 5 and printed["scores"]["best_exact_thresh"] == -5.5
    assert printed["scores"]["NoAns_exact"] == 100.0  # q5 is above the threshold


@pytest.mark.public
def test_json_has_every_digit_and_all_missing_ids() -> None:
    files = ["--dataset", str(SQUAD / "dev-v1.1.json.gz"), "--predictions"]
    printed = document("eval", "squad", *files, str(SQUAD / "v1.1.logistic-regression.json.gz"))
    assert printed["scores"] == {"exact_match": 40.14191106906339, "f1": 50.98153647324461}
    assert (len(printed["missing"]), len(printed["extra"]), printed["questions"]) == (13, 28, 10_570)


def test_an_empty_file_of_predictions_is_scored_and_of_repeated_ids_the_last_counts(tmp_path: Path) -> None:
    words = ["eval", "squad", "--dataset", dataset(tmp_path), "--na-prob", null_odds(tmp_path)]
    empty = write(tmp_path / "empty.json", {})
    shown = text(result(*words, "--predictions", empty, "--out", str(tmp_path / "out")).blocks)
    assert "5 without a prediction" in shown and "0.000 %" in shown
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["scores.json"]
    twice = tmp_path / "twice.json"
    twice.write_text('{"q1": "York", "q1": "Normans"}')
    found = document("eval", "squad", "--dataset", dataset(tmp_path, "1.1"), "--predictions", str(twice))
    assert found["scores"]["exact_match"] == pytest.approx(100 / 3)
