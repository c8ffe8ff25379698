"""Scores of published predictions, as the official scripts have them, and of made-up answers to GAP."""

import csv
from pathlib import Path

import pytest
from frozen import check
from support.commands import document
from support.plain_gap_scores import scorecard
from support.shared_files import DATA

pytestmark = pytest.mark.public

OFFICIAL = {
    ("dev-v1.1", "v1.1.bert-ensemble"): {"exact_match": 86.20624408703878, "f1": 92.19557978351145},
    ("dev-v1.1", "v1.1.logistic-regression"): {"exact_match": 40.14191106906339, "f1": 50.98153647324461},
    ("dev-v2.0", "v2.0.bert-single"): {"exact": 78.74168280973637, "f1": 81.77528052374723},
}

ANSWERED = {"HasAns_exact": 74.10593792, "HasAns_f1": 80.18183293, "NoAns_exact": 83.36417157}
"""Of SQuAD 2.0, as published, cut after eight digits."""


@pytest.mark.parametrize(("dataset", "predictions"), OFFICIAL)
def test_official_scores_of_squad(dataset: str, predictions: str) -> None:
    files = [str(DATA / f"squad/{name}.json.gz") for name in (dataset, predictions)]
    scores = document("eval", "squad", "--dataset", files[0], "--predictions", files[1])["scores"]
    official = OFFICIAL[dataset, predictions]
    assert {name: scores[name] for name in official} == official
    if dataset == "dev-v2.0":
        answered = {name: scores[name] for name in ANSWERED}
        assert answered == pytest.approx(ANSWERED, abs=1e-8)
    check("scores", predictions, scores)


def test_official_scores_of_gap(tmp_path: Path) -> None:
    gold, answers = DATA / "gap/gap-validation.tsv", tmp_path / "answers.tsv"
    with gold.open(encoding="utf-8", newline="") as file:
        ids = [row["ID"] for row in csv.DictReader(file, delimiter="\t")]
    rows = [(name, number % 3 == 1, number % 5 < 2) for number, name in enumerate(ids) if number % 17]
    answers.write_text("".join(f"{name}\t{str(a).upper()}\t{str(b).upper()}\n" for name, a, b in rows))
    found = document("eval", "gap", "--dataset", gold, "--predictions", answers)
    official = scorecard(gold, answers)
    assert found["overall"] == {name: official[f"overall {name}"] for name in found["overall"]}
    check("scores", "gap", official)
