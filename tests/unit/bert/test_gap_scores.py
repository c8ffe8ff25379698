"""GAP's TSVs and files of predictions, and their scores: equal to a plain reading of the official rules."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
from support.datasets import GAP_COLUMNS, gap_row, learnable_gap, write_gap
from support.plain_gap_scores import scorecard
from support.refusals import refused
from support.shared_files import samples

from bert.tasks.gap.reading import read_gap, read_predictions, write_kaggle, write_official
from bert.tasks.gap.scores import Scores, distance, length, log_loss, read_golds, score, slices
from common.errors import Code

TEXT = '"Ada said "no" to Bea - because she was tired.'


def test_byte_order_mark_crlf_empty_lines_quotes_and_another_order_of_columns_are_read(tmp_path: Path) -> None:
    rows = [*learnable_gap(4), gap_row("x-1", TEXT, "she", "Ada", "Bea", 1)]
    path = write_gap(tmp_path / "gap.tsv", rows, ("URL", *reversed(GAP_COLUMNS[:-1])))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    plain = read_gap(write_gap(tmp_path / "plain.tsv", rows))
    assert (read_gap(path).examples, read_gap(path).left_out) == (plain.examples, ())
    assert plain.examples[-1].text == TEXT


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Pronoun-offset": "3"}, "Pronoun-offset '3'"),
        ({"A-offset": "-1"}, "A-offset '-1'"),
        ({"B-offset": ""}, "B-offset ''"),
        ({"B-offset": "99999999999"}, "B-offset '99999999999'"),
        ({"A": ""}, "A ''"),
        ({"ID": "a\x07b"}, "its id is"),
        ({"ID": "development-1"}, "line 2"),
        ({"A-coref": "yes"}, "'YES'"),
        ({"URL": "a\tb"}, "12 columns instead of 11"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_line(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    rows = learnable_gap(10)
    rows[2] |= changes
    file = read_gap(write_gap(tmp_path / "gap.tsv", rows))
    assert len(file.examples) == 9
    (left_out,) = file.left_out
    assert left_out.line == 4 and why in left_out.why


HEADER = "\t".join(GAP_COLUMNS)


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b" \n\n", "file-empty", ()),
        (f"{HEADER}\n1\tcaf\xe9".encode("latin-1"), "file-encoding", ("line 2", "UTF-8")),
        (b"ID\tText\n", "columns-missing", ("Pronoun, Pronoun-offset",)),
        (HEADER.replace("\t", ",").encode(), "columns-missing", ("line 1",)),
        (HEADER.encode(), "file-empty", ()),
        (HEADER.replace("\tB-coref", "").encode(), "columns-missing", ("B-coref",)),
        (f"{HEADER}\na\tb\nc\n".encode(), "rows-invalid", ("line 2", "line 3")),
    ],
    ids=range(7),
)
def test_what_is_no_tsv_of_gap_is_refused(tmp_path: Path, content: bytes, code: Code, facts: tuple[str, ...]) -> None:
    (tmp_path / "gap.tsv").write_bytes(content)
    with refused(code, tmp_path, *facts):
        read_gap(tmp_path / "gap.tsv")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\n \n", "file-empty"),
        (b"development-1\tTRUE\n", "answers-invalid"),
        (b"ID\tA-coref\tB-coref\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,0.2\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,nan,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,-0.1,1,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0,0,0\n", "answers-invalid"),
    ],
    ids=range(8),
)
def test_what_is_no_file_of_predictions_is_refused(tmp_path: Path, content: bytes, code: Code) -> None:
    (tmp_path / "system").write_bytes(content)
    with refused(code, tmp_path / "system"):
        read_predictions(tmp_path / "system")


def test_the_first_line_of_an_id_counts_and_other_words_are_no_decision(tmp_path: Path) -> None:
    path = tmp_path / "system"
    path.write_text("a\tTRUE\tFALSE\na\tFALSE\tFALSE\nb\tmaybe\tFALSE\n")
    assert read_predictions(path) == ({"a": (True, False), "b": (None, False)}, None)
    path.write_bytes(b'ID,A,B,NEITHER\r\n"a",0.25,0.5,0.25\r\na,1,0,0\r\n')
    assert read_predictions(path) == ({"a": (False, True)}, {"a": (0.25, 0.25, 0.5)})


def ours(gold: Path, system: Path) -> Scores:
    golds = {name: (example.decision, example.gender) for name, example in read_golds(gold).items()}
    return score(golds, *read_predictions(system))


def assert_as_official(gold: Path, system: Path) -> Scores:
    scores = ours(gold, system)
    expected = scorecard(gold, system)
    for group in ("overall", "masculine", "feminine"):
        tally = getattr(scores, group)
        for name in tally.__slots__:
            assert getattr(tally, name) == expected[f"{group} {name}"], (group, name)
    assert scores.bias == expected["bias"]
    return scores


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


@pytest.mark.parametrize("gold", samples("gap/gap-validation.tsv"))
def test_scores_are_the_official_ones_on_many_random_system_files(gold: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    for file, count in ((write_gap(tmp_path / "gap-test.tsv", learnable_gap(40)), 400), (gold, 20)):
        ids = list(read_golds(file))
        for _ in range(count):
            assert_as_official(file, random_system(tmp_path / "system.tsv", ids, chance))


def test_nothing_right_has_no_bias_and_everything_right_scores_100(tmp_path: Path) -> None:
    rows = learnable_gap(12)
    gold = write_gap(tmp_path / "gap-test.tsv", rows)
    right = {cells["ID"]: (cells["A-coref"] == "TRUE", cells["B-coref"] == "TRUE") for cells in rows}
    none = write_official(tmp_path / "none.tsv", dict.fromkeys(right, (False, False)))
    assert assert_as_official(gold, none).bias is None
    scores = assert_as_official(gold, write_official(tmp_path / "system.tsv", right))
    assert {scores.overall.f1, scores.masculine.f1, scores.feminine.f1} == {100.0}
    assert (scores.bias, scores.accuracy) == (1.0, 1.0)


def test_the_confusion_matrix_counts_rows_with_both_names_and_with_none(tmp_path: Path) -> None:
    rows = [*learnable_gap(3), gap_row("both", "Ada and Bea said that she was kind.", "she", "Ada", "Bea", 1)]
    rows[3]["B-coref"] = "TRUE"
    gold = write_gap(tmp_path / "gap-test.tsv", rows)
    system = tmp_path / "system.tsv"
    system.write_text("development-1\tTRUE\tTRUE\ndevelopment-2\tTRUE\tno\nboth\tTRUE\tTRUE\n")
    scores = assert_as_official(gold, system)
    found = {(right, said): n for right, cells in scores.confusion.items() for said, n in cells.items() if n}
    assert found == {("neither", "both"): 1, ("A", "none"): 1, ("B", "none"): 1, ("both", "both"): 1}
    assert scores.accuracy == 0.25


def test_log_loss_is_kaggles_with_shares_of_the_sum_kept_away_from_0_and_1() -> None:
    assert log_loss((2.0, 1.0, 1.0), 0) == pytest.approx(math.log(2))
    assert log_loss((0.0, 1.0, 0.0), 0) == pytest.approx(-math.log(1e-15))
    assert log_loss((1.0, 0.0, 0.0), 0) == pytest.approx(1e-15, rel=0.2)


def test_probabilities_become_decisions_and_come_back_from_the_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 3))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ids = [cells["ID"] for cells in learnable_gap(12)]
    path = write_kaggle(tmp_path / "submission.csv", dict(zip(ids, shares.tolist(), strict=True)))
    assert path.read_text().splitlines()[0] == "ID,A,B,NEITHER"
    decisions, probabilities = read_predictions(path)
    assert probabilities is not None
    assert np.allclose([probabilities[name] for name in ids], shares, atol=1e-8)
    gold = write_gap(tmp_path / "gap-test.tsv", learnable_gap(12))
    scores = ours(gold, path)
    labels = np.array([number % 3 for number in range(12)])
    assert scores.log_loss == pytest.approx(-np.log(shares[range(12), labels]).mean(), rel=1e-6)
    assert scores.accuracy == pytest.approx((shares.argmax(1) == labels).mean())
    assert ours(gold, write_official(tmp_path / "system.tsv", decisions)).overall == scores.overall


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"A-coref": ""}, "labels-invalid"),
        ({"A-coref": "yes"}, "rows-invalid"),
        (
            {"Pronoun": "it", "Pronoun-offset": "0", "Text": "it Bea Cleo", "A-offset": "3", "B-offset": "7"},
            "labels-invalid",
        ),
    ],
    ids=("empty", "word", "pronoun"),
)
def test_golds_that_are_not_all_there_are_refused_with_the_line(
    tmp_path: Path, changes: dict[str, str], code: Code
) -> None:
    rows = learnable_gap(3)
    rows[1] |= changes
    with refused(code, "line 3"):
        read_golds(write_gap(tmp_path / "gap-test.tsv", rows))


@pytest.mark.parametrize("path", samples("gap/gap-validation.tsv"))
def test_slices_part_the_rows_three_times(path: Path) -> None:
    examples = read_golds(path)
    right = {name: example.decision for name, example in examples.items()}
    right["validation-1"] = (True, True)
    found = slices(examples, right)
    for by in ("gender", "distance", "length"):
        own = [part for part in found if part["by"] == by]
        assert sum(part["rows"] for part in own) == len(examples)
        assert sum(part["rows"] * part["accuracy"] for part in own) == pytest.approx(len(examples) - 1)
    first = examples["validation-1"]
    pronoun, _, b = first.mentions
    assert distance(first) == len(first.text[b.end : pronoun.offset].split())
    assert length(first) == len(first.text.split())
