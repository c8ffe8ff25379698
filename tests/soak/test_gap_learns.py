"""A real fine-tuning: the MiniLM encoder with head mul learns whom pronouns mean, and heads are compared."""

import json
from pathlib import Path

import pytest
from support import shared_files
from support.checkpoints import minilm_folder
from support.cli import printed

GAP = shared_files.DATA / "gap"
MAJORITY = 205 / 454
"""Of GAP's validation rows, those whose pronoun means B."""
SEQ_LEN = 64
"""Tokens of a row: a shorter text takes less time, and the mentions stay."""
SETTINGS = (
    "--learning-rate", "1e-4", "--global-batch-size", "8", "--micro-batch-size", "8", "--epochs", "1",
    "--sample-limit", "640", "--device", "cpu", "--threads", "1",
)  # fmt: skip


@pytest.mark.public
def test_head_mul_is_above_the_majority_class_on_validation(tmp_path: Path) -> None:
    weights, data, out = minilm_folder(), tmp_path / "gap", tmp_path / "run"
    inputs = [GAP / f"gap-{split}.tsv" for split in ("development", "validation")]
    vocab = ["--vocab", weights / "vocab.txt", "--max-seq-length", SEQ_LEN]
    printed("data", "gap", "--input", *inputs, *vocab, "--output", data)
    printed("train", "gap", "--head", "mul", "--data", data, "--init", weights, "--out", out, *SETTINGS)
    best = json.loads((out / "train.json").read_text())["best"]
    assert best["score"] == "accuracy"
    assert best["value"] > MAJORITY + 0.05
    (features,) = data.glob("gap-validation-*.safetensors")
    words = ["--checkpoint", out, "--features", features, "--kaggle-csv", "--out", tmp_path / "answers"]
    printed("predict", "gap", *words)
    answers = tmp_path / "answers" / "submission.csv"
    found = json.loads(printed("eval", "gap", "--dataset", inputs[1], "--predictions", answers, "--json"))
    assert found["accuracy"] == pytest.approx(best["value"], abs=0.02), "bf16 batches differ in their rounding"
    assert found["overall"]["f1"] > 50
