"""GAP's scores: equal to a plain reading of the official rules on many system files; files of predictions."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
from support.gap_files import learnable, row, write
from support.plain_gap_scores import scorecard
from support.refusals import refused
from support.shared_files import samples

from bert.tasks.gap.prediction_files import read_predictions, write_kaggle, write_official
from bert.tasks.gap.scores import ANSWERS, Scores, distance, length, log_loss, read_golds, score, slices
from common.errors import Code


def ours(gold: Path, system: Path) -> Scores:
    golds = {name: example.gold for name, example in read_golds(gold).items()}
    return score(golds, *read_predictions(system))


def assert_as_official(gold: Path, system: Path) -> None:
    scores = ours(gold, system)
    expected = scorecard(gold, system)
    for group, tally in scores.tallies.items():
        for name, value in tally.to_json().items():
            assert value == expected[f"{group} {name}"], (group, name)
    assert scores.bias == expected["bias"]


def random_system(path: Path, ids: list[str], chance: random.Random) -> Path:
    """Any valid file: ids left out, of nobody, repeated, in any order; TRUE and FALSE in any case; odd words."""
    share = chance.random()
    chosen = [name for name in ids if chance.random() < chance.choice((1.0, 0.9, share))]
    chosen += [f"nobody-{number}" for number in range(chance.randrange(4))]
    chosen += chance.choices(ids, k=chance.randrange(5))
    chance.shuffle(chosen)
    odd = 0.1 if chance.random() < 0.3 else 0.0
    words = ("TRUE", "FALSE", "True", "false", "tRuE")
    lines = [f"{ids[0]}\tTRUE\tFALSE"]
    for name in chosen:
        said = ["perhaps" if chance.random() < odd else chance.choice(words) for _ in range(2)]
        lines.append("\t".join([name, *said, *(["more"] if chance.random() < 0.05 else [])]))
        lines += [""] * (chance.random() < 0.05)
    path.write_text("\n".join(lines) + "\n" * (chance.random() < 0.9), encoding="utf-8")
    return path


def test_scores_are_the_official_ones_on_many_random_system_files(tmp_path: Path) -> None:
    gold = write(tmp_path / "gap-test.tsv", learnable(40))
    ids = [cells["ID"] for cells in learnable(40)]
    chance = random.Random(0)
    for number in range(400):
        assert_as_official(gold, random_system(tmp_path / f"{number % 2}.tsv", ids, chance))


@pytest.mark.parametrize("gold", samples("gap/gap-validation.tsv"))
def test_scores_are_the_official_ones_on_the_rows_of_a_file(gold: Path, tmp_path: Path) -> None:
    ids = list(read_golds(gold))
    chance = random.Random(1)
    for _ in range(20):
        assert_as_official(gold, random_system(tmp_path / "system.tsv", ids, chance))


def test_both_names_of_a_missing_row_are_false_negatives(tmp_path: Path) -> None:
    gold = write(tmp_path / "gap-test.tsv", learnable(3))
    system = tmp_path / "system.tsv"
    system.write_text("development-2\tTRUE\tFALSE\n")
    scores = ours(gold, system)
    overall = scores.tallies["overall"]
    counts = (overall.true_positives, overall.false_positives, overall.false_negatives, overall.true_negatives)
    assert counts == (1, 0, 4, 1)
    assert scores.missing == ("development-1", "development-3")
    assert scores.accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize("header", [",ID,A,B,NEITHER", "ID,A,B,NEITHER,foo", "ID,A,A,NEITHER", "ID;A;B;NEITHER"])
def test_another_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "p.csv").write_text(f"{header}\r\n1,0.5,0.3,0.2,1\n")
    with refused("answers-invalid", "ID,A,B,NEITHER"):
        read_predictions(tmp_path / "p.csv")


def test_without_any_right_answer_there_is_no_bias(tmp_path: Path) -> None:
    gold = write(tmp_path / "gap-test.tsv", learnable(6))
    system = write_official(tmp_path / "system.tsv", {f"development-{n}": (False, False) for n in range(1, 7)})
    assert ours(gold, system).bias is None
    assert scorecard(gold, system)["bias"] is None


def test_everything_right_scores_100_and_a_bias_of_1(tmp_path: Path) -> None:
    rows = learnable(12)
    gold = write(tmp_path / "gap-test.tsv", rows)
    right = {cells["ID"]: (cells["A-coref"] == "TRUE", cells["B-coref"] == "TRUE") for cells in rows}
    scores = ours(gold, write_official(tmp_path / "system.tsv", right))
    assert {tally.f1 for tally in scores.tallies.values()} == {100.0}
    assert (scores.bias, scores.accuracy) == (1.0, 1.0)


def test_the_confusion_matrix_counts_rows_with_both_names_and_with_none(tmp_path: Path) -> None:
    rows = [*learnable(3), row("both", "Ada and Bea said that she was kind.", "she", "Ada", "Bea", 1)]
    rows[3]["B-coref"] = "TRUE"
    gold = write(tmp_path / "gap-test.tsv", rows)
    system = tmp_path / "system.tsv"
    system.write_text("development-1\tTRUE\tTRUE\ndevelopment-2\tTRUE\tno\nboth\tTRUE\tTRUE\n")
    scores = ours(gold, system)
    found = {
        (right, said): int(scores.confusion[line, column])
        for line, right in enumerate(ANSWERS[:-1])
        for column, said in enumerate(ANSWERS)
        if scores.confusion[line, column]
    }
    assert found == {("neither", "both"): 1, ("A", "none"): 1, ("B", "none"): 1, ("both", "both"): 1}
    assert scores.accuracy == 0.25
    assert_as_official(gold, system)


def test_log_loss_is_kaggles_with_shares_of_the_sum_kept_away_from_0_and_1() -> None:
    assert log_loss((2.0, 1.0, 1.0), 0) == pytest.approx(math.log(2))
    assert log_loss((0.0, 1.0, 0.0), 0) == pytest.approx(-math.log(1e-15))
    assert log_loss((1.0, 0.0, 0.0), 0) == pytest.approx(1e-15, rel=0.2)


def test_probabilities_become_decisions_and_come_back_from_the_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 3))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ids = [cells["ID"] for cells in learnable(12)]
    path = write_kaggle(tmp_path / "submission.csv", dict(zip(ids, shares.tolist(), strict=True)))
    assert path.read_text().splitlines()[0] == "ID,A,B,NEITHER"
    decisions, probabilities = read_predictions(path)
    assert probabilities is not None
    assert np.allclose([probabilities[name] for name in ids], shares, atol=1e-8)
    gold = write(tmp_path / "gap-test.tsv", learnable(12))
    scores = ours(gold, path)
    labels = np.array([number % 3 for number in range(12)])
    assert scores.log_loss == pytest.approx(-np.log(shares[range(12), labels]).mean(), rel=1e-6)
    assert scores.accuracy == pytest.approx((shares.argmax(1) == labels).mean())
    decided = write_official(tmp_path / "system.tsv", decisions)
    assert ours(gold, decided).tallies == scores.tallies


@pytest.mark.parametrize("delimiter", [",", "\t"], ids=["commas", "tabs"])
@pytest.mark.parametrize("quote", ["", '"'], ids=["plain", "quoted"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_probabilities_stand_between_commas_or_tabs_in_any_order(
    tmp_path: Path, delimiter: str, quote: str, end: str
) -> None:
    gold = write(tmp_path / "gap-test.tsv", learnable(3))  # neither, A, B are right in this order
    first, second, third = (cells["ID"] for cells in learnable(3))
    rows = [
        ("B", "ID", "neither", "A"), ("0.25", first, "0.5", "0.25"), ("0.1", second, "0.1", "0.8"),
        ("0.2", third, "0.4", "0.4"),
    ]  # fmt: skip
    path = tmp_path / "submission"
    path.write_bytes("".join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) + end for row in rows).encode())
    decisions, probabilities = read_predictions(path)
    assert probabilities == {first: (0.5, 0.25, 0.25), second: (0.1, 0.8, 0.1), third: (0.4, 0.4, 0.2)}
    assert decisions[second] == (True, False)
    # -(ln 0.5 + ln 0.8 + ln 0.2) / 3 = (0.693147 + 0.223144 + 1.609438) / 3
    assert ours(gold, path).log_loss == pytest.approx(0.841910, abs=1e-6)
    path.write_text(f"ID{delimiter}A{delimiter}B{delimiter}NEITHER\nx{delimiter}0.1{delimiter}0.2\n")
    with refused("answers-invalid", path, "0.2"):
        read_predictions(path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-empty"),
        (b"\n \n", "file-empty"),
        (b"development-1\tTRUE\n", "answers-invalid"),
        (b"\ndevelopment-1 TRUE FALSE\n", "answers-invalid"),
        (b"ID\tA-coref\tB-coref\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\n", "answers-invalid"),
        (b"x\t0.1\t0.2\t0.7\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,0.2\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,much,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,nan,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,inf,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,-0.1,1,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0,0,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,1e308,1e308,0\n", "answers-invalid"),
        (b"\xff\xfe\x00", "file-encoding"),
    ],
    ids=range(15),
)
def test_what_is_no_file_of_predictions_is_refused(tmp_path: Path, content: bytes, code: Code) -> None:
    path = tmp_path / "system"
    path.write_bytes(content)
    with refused(code, path):
        read_predictions(path)


@pytest.mark.parametrize(
    "content",
    ["x-1\tTRUE\tFALSE\n x-2 \tTRUE\tFALSE\n", "ID,A,B,NEITHER\nx-1,1,0,0\n x-2,0,1,0\n"],
    ids=("official", "kaggle"),
)
def test_blanks_around_an_id_do_not_belong_to_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "system"
    path.write_text(content)
    assert list(read_predictions(path)[0]) == ["x-1", "x-2"]


def test_the_first_line_of_an_id_counts_and_other_words_are_no_decision(tmp_path: Path) -> None:
    path = tmp_path / "system.tsv"
    path.write_text("a\tTRUE\tFALSE\na\tFALSE\tFALSE\nb\tmaybe\tFALSE\n")
    assert read_predictions(path) == ({"a": (True, False), "b": (None, False)}, None)


@pytest.mark.parametrize(
    ("changes", "code", "facts"),
    [
        ({"A-coref": ""}, "labels-invalid", ("line 3", "A-coref")),
        ({"A-coref": "yes"}, "rows-invalid", ("TRUE", "FALSE", "line 3")),
        (
            {"Pronoun": "it", "Pronoun-offset": "0", "Text": "it Bea Cleo", "A-offset": "3", "B-offset": "7"},
            "labels-invalid",
            ("line 3", "pronoun"),
        ),
    ],
    ids=("empty", "word", "pronoun"),
)
def test_golds_that_are_not_all_there_are_refused_with_the_line(
    tmp_path: Path, changes: dict[str, str], code: Code, facts: tuple[str, ...]
) -> None:
    rows = learnable(3)
    rows[1] |= changes
    with refused(code, *facts):
        read_golds(write(tmp_path / "gap-test.tsv", rows))


@pytest.mark.parametrize("path", samples("gap/gap-validation.tsv"))
def test_slices_part_the_rows_three_times(path: Path) -> None:
    examples = read_golds(path)
    right = {name: example.gold[:2] for name, example in examples.items()}
    right["validation-1"] = (True, True)
    found = slices(examples, right)
    for by in ("gender", "distance", "length"):
        own = [part for part in found if part["by"] == by]
        assert sum(part["rows"] for part in own) == len(examples)
        assert sum(part["rows"] * part["accuracy"] for part in own) == pytest.approx(len(examples) - 1)
    first = examples["validation-1"]
    between = first.text[first.b.end : first.pronoun.offset]
    assert distance(first) == len(between.split())
    assert length(first) == len(first.text.split())
