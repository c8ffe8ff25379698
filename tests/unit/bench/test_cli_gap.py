"""`data gap`, `predict gap` and `eval gap` as a user calls them."""

import json
from pathlib import Path

import pytest
from support.commands import document, result, text
from support.datasets import GAP_COLUMNS, gap_features, gap_vocabulary, learnable_gap, write_gap
from support.training_runs import Recorder, settings
from support.training_runs import run as training_run

from bench.cli.main import run
from bert.tasks import given_options, resolve_options, task_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gap_features(tmp_path_factory.mktemp("gap"))


def checkpoint(path: Path, features: Path, head: str) -> Path:
    options = given_options("gap", {"head": head})
    source = task_data("gap").inspect(str(features), None, options)
    wanted = settings(
        source.source, task="gap", task_options=resolve_options("gap", options, source), seq_len=source.seq_len,
        vocab_size=source.vocab_size, optimizer="adamw", steps=1,
    )  # fmt: skip
    training_run(wanted, path, Recorder())
    return path


def test_data_gap_tells_what_became_of_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = learnable_gap(8)
    rows[4] |= {"A-offset": "7"}
    source, vocab = write_gap(tmp_path / "gap-development.tsv", rows), gap_vocabulary(tmp_path)
    words = ["data", "gap", "--input", str(source), "--vocab", str(vocab), "--output", str(tmp_path / "out")]
    assert run(words) == 0
    told = capsys.readouterr()
    assert all(fact in told.out for fact in ("rows", "8", "features", "7", "left out", "1"))
    assert "line 6 (development-5)" in told.err
    (summary,) = document(*words)
    assert summary["kept"]
    assert summary["examples"]["left out"][0].startswith("line 6 ")


@pytest.mark.parametrize("head", ["concat", "mul", "segment", "span"])
def test_predictions_of_rows_without_answers_go_to_kaggle_and_to_the_scorer(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    rows = learnable_gap(9, "test")
    rows[2] |= {"A-offset": "7"}
    columns = [name for name in GAP_COLUMNS if not name.endswith("coref")]
    source = write_gap(tmp_path / "test_stage_2.tsv", rows, columns)
    vocab = str(folder / "vocab.txt")
    options = ["--max-seq-length", "32", "--output", str(tmp_path / "features")]
    assert run(["data", "gap", "--input", str(source), "--vocab", vocab, *options]) == 0
    model = checkpoint(tmp_path / "model", folder, head)
    words = ["--checkpoint", str(model), "--features", str(tmp_path / "features"), "--device", "cpu"]
    capsys.readouterr()
    assert run(["predict", "gap", *words, "--kaggle-csv", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["head"], found["rows"], found["left_out"]) == (head, 8, 1)
    assert "test-3" in told.err
    lines = (tmp_path / "out" / "submission.csv").read_text().splitlines()
    assert lines[0] == "ID,A,B,NEITHER"
    assert len(lines) == 10
    assert all(sum(map(float, line.split(",")[1:])) == pytest.approx(1.0) for line in lines[1:])
    gold = write_gap(tmp_path / "gold.tsv", learnable_gap(9, "test"))
    for name in ("submission.csv", "predictions.tsv"):
        words = ["eval", "gap", "--dataset", str(gold), "--predictions", str(tmp_path / "out" / name), "--json"]
        assert run(words) == 0
    csv_scores, tsv_scores = (json.loads(part) for part in _documents(capsys.readouterr().out))
    assert tsv_scores["missing"] == ["test-3"]
    assert csv_scores["log_loss"] is not None and tsv_scores["log_loss"] is None


def _documents(text: str) -> list[str]:
    first, second = text.split("}\n{")
    return [first + "}", "{" + second]


def test_eval_gap_prints_scores_and_slices(tmp_path: Path) -> None:
    gold = write_gap(tmp_path / "gold.tsv", learnable_gap(12))
    system = tmp_path / "system.tsv"
    system.write_text("".join(f"development-{n}\tTRUE\tFALSE\n" for n in range(1, 12)) + "nobody\tTRUE\tFALSE\n")
    words = ["eval", "gap", "--dataset", str(gold), "--predictions", str(system)]
    told = text(result(*words, "--out", str(tmp_path / "out")).blocks)
    for part in ("overall", "masculine", "bias", "accuracy  33.3 %", "missing", "extra"):
        assert part in told
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["overall"]["true_positives"] == 4
