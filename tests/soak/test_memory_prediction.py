"""What a rank is predicted to need at its peak, against what it took."""

from pathlib import Path

import pytest
from support.cli import Cli

from analysis.load import load_run
from bert.memory import predict_memory
from records.run import RunDirectory

# 34 trials lay between 0.89 and 1.12 (version 0.2.0, two CPU cores).
LEAST, MOST = 0.85, 1.15


@pytest.mark.parametrize(("precision", "seq_len", "batches"), [("fp32", 128, (4, 16)), ("bf16", 512, (2, 8))])
def test_the_predicted_peak_is_near_the_measured_one(
    tmp_path: Path, precision: str, seq_len: int, batches: tuple[int, int]
) -> None:
    done = Cli(tmp_path / "run").run(
        "--preset", "mini", "--precisions", precision, "--seq-lens", str(seq_len), "--data", "synthetic:full",
        "--batch-sizes", *map(str, batches), "--step", "plain", "fast", "--rounds", "1", "--start", "1", "--stop", "2",
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ratios = []
    for trial in load_run(RunDirectory(tmp_path / "run")):
        predicted = predict_memory(trial.trial, trial.trial.device)
        ratios.append(predicted.total / trial.row["peak_memory_bytes"])
    assert len(ratios) == 4
    assert min(ratios) > LEAST and max(ratios) < MOST, ratios
