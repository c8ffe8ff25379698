"""A real fine-tuning: the MiniLM encoder with head mul learns whom pronouns mean, and heads are compared."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
from support import shared_files
from support.cli import ROOT, Cli
from support.gap_files import prepared
from support.minilm import minilm_folder

GAP = shared_files.DATA / "gap"
MAJORITY = 205 / 454
"""Of GAP's validation rows, those whose pronoun means B."""
SEQ_LEN = 64
"""Tokens of a row: a shorter text takes less time, and the mentions stay."""
SETTINGS = (
    "--learning-rate", "1e-4", "--global-batch-size", "8", "--micro-batch-size", "8", "--epochs", "1",
    "--sample-limit", "640", "--device", "cpu", "--threads", "1",
)  # fmt: skip


def run(out: Path, *words: object) -> str:
    done = subprocess.run(
        Cli(out).argv(*map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.public
def test_head_mul_is_above_the_majority_class_on_validation(tmp_path: Path) -> None:
    weights, data, out = minilm_folder(), tmp_path / "gap", tmp_path / "run"
    inputs = [GAP / f"gap-{split}.tsv" for split in ("development", "validation")]
    vocab = ["--vocab", weights / "vocab.txt", "--max-seq-length", SEQ_LEN]
    run(out, "data", "gap", "--input", *inputs, *vocab, "--output", data)
    run(out, "train", "gap", "--head", "mul", "--data", data, "--init", weights, "--out", out, *SETTINGS)
    best = json.loads((out / "train.json").read_text())["best"]
    assert best["score"] == "accuracy"
    assert best["value"] > MAJORITY + 0.05
    (features,) = data.glob("gap-validation-*.safetensors")
    words = ["--checkpoint", out, "--features", features, "--kaggle-csv", "--out", tmp_path / "answers"]
    run(out, "predict", "gap", *words)
    answers = tmp_path / "answers" / "submission.csv"
    found = json.loads(run(out, "eval", "gap", "--dataset", inputs[1], "--predictions", answers, "--json"))
    assert found["accuracy"] == pytest.approx(best["value"], abs=0.02), "bf16 batches differ in their rounding"
    assert found["overall"]["f1"] > 50


def test_heads_are_compared_epoch_by_epoch_and_a_second_call_trains_nothing(tmp_path: Path) -> None:
    data, out = prepared(tmp_path / "data"), tmp_path / "heads"
    words = ["train", "gap", "--data", data, "--vary", "head=mul,span", "--preset", "tiny", "--epochs", 2]
    options = ["--device", "cpu", "--learning-rate", "2e-3", "--schedule", "cyclic", "--warmup", "0.25", "--out", out]
    document = json.loads(run(out, *words, *options, "--json"))
    rows = document["rows"]
    assert [row["variant"] for row in rows] == ["mul", "span"]
    assert [[one["epoch"] for one in row["readings"]] for row in rows] == [[1.0, 2.0]] * 2
    assert all(row["step_seconds"] > 0 and row["status"] == "finished" and row["best_value"] for row in rows)
    assert len(list(csv.reader((out / "trainings.csv").open()))) == 3
    assert (out / "trainings.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(out.glob("*/trials/*"))) == 2
    assert "best" in run(out, *words, *options)
    assert len(list(out.glob("*/trials/*"))) == 2
