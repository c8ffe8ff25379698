"""Real processes: what a rank is predicted to need at its peak, the largest batch, a model that is compiled."""

import json
import shutil
from pathlib import Path

import pytest
from support.cli import SHORT, Cli

from analysis.load import load_run
from bert.memory import predict_memory
from records.run import RunDirectory

# 34 trials lay between 0.89 and 1.12 (version 0.2.0, two CPU cores).
LEAST, MOST = 0.85, 1.15


@pytest.mark.parametrize(("precision", "seq_len", "batches"), [("fp32", 128, (4, 16)), ("bf16", 512, (2, 8))])
def test_the_predicted_peak_is_near_the_measured_one(
    tmp_path: Path, precision: str, seq_len: int, batches: tuple[int, int]
) -> None:
    Cli(tmp_path / "run").run(
        "--preset", "mini", "--precisions", precision, "--seq-lens", str(seq_len), "--data", "synthetic:full",
        "--batch-sizes", *map(str, batches), "--step", "plain", "fast", "--rounds", "1", "--start", "1", "--stop", "2",
        timeout=800,
    )  # fmt: skip
    ratios = []
    for trial in load_run(RunDirectory(tmp_path / "run")):
        predicted = predict_memory(trial.trial, trial.trial.device)
        ratios.append(predicted.total / trial.row["peak_memory_bytes"])
    assert len(ratios) == 4
    assert min(ratios) > LEAST and max(ratios) < MOST, ratios


@pytest.mark.timeout(1800)
def test_the_largest_batch_is_found_proved_and_one_more_fails(cli: Cli) -> None:
    words = ("--max-batch-search", "--seq-lens", "512", "--batch-sizes", "8", "--memory-limit-gib", "0.9", "--json")
    (found,) = json.loads(cli.run(*words, timeout=1200).stdout)["max_batch"]
    assert found["fails_at"] == found["micro_batch_size"] + 1
    assert [found["fails_at"], "oom"] in found["tried"]
    assert [found["micro_batch_size"], "ok"] in found["tried"]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_compiled_hugging_face_model_trains_and_its_first_step_is_no_measurement(cli: Cli) -> None:
    cli.run(*SHORT, "--batch-sizes", "2", "--implementations", "hf", "hf-compiled", "--rounds", "1", timeout=800)
    eager, compiled = cli.results()
    assert compiled["status"] == "ok", compiled["reason"]
    assert compiled["steps_warmup"] == 1 and compiled["steps_measured"] == 2
    assert compiled["parameters"] == eager["parameters"]
