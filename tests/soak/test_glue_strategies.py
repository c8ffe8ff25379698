"""CoLA from scratch by every strategy, with the command line: each trains the same losses and scores."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT
from support.shared_files import DATA

from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.prepare import prepare

VOCAB = DATA / "vocab" / "bert-uncased.txt"
STEPS = 4

pytestmark = pytest.mark.public


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("glue")
    config = GlueConfig(tasks=("cola",), input=DATA / "glue", vocab=VOCAB, output=out)
    prepare(config, lambda stage, done, total: None)
    return out


@pytest.fixture(scope="module")
def alone(features: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(features, tmp_path_factory.mktemp("alone"), "single", 1)


def train(features: Path, out: Path, strategy: str, devices: int, *more: str) -> dict[str, Any]:
    words = [
        "train", "glue", "--task", "cola", "--data", str(features), "--preset", "tiny", "--steps", str(STEPS),
        "--strategy", strategy, "--devices", str(devices), "--device", "cpu", "--threads", "1", "--precision", "fp32",
        "--global-batch-size", "16", "--micro-batch-size", "8", "--dropout", "0", "--learning-rate", "1e-3",
        "--log-every", "1", "--eval-every", str(STEPS), "--eval-samples", "64", "--out", str(out), "--json", *more,
    ]  # fmt: skip
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.cli.main", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found["result"]["outcome"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed"])
def test_cola_from_scratch_is_the_same_training_by_every_strategy(
    strategy: str, features: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    if strategy == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed: docs/how-to/strategies.md")
    found = train(features, tmp_path / "run", strategy, 2, *(["--zero-stage", "1"] * (strategy == "deepspeed")))
    assert found["finished"] and found["applied_steps"] == STEPS
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert found["evaluation"]["samples"] == 64
    assert set(found["evaluation"]) >= {"matthews", "accuracy"}
    assert found["evaluation"]["accuracy"] == pytest.approx(alone["evaluation"]["accuracy"], abs=1 / 64)
