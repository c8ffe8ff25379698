"""Pretraining on real books and Wikipedia articles: both phases with an interruption."""

import csv
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.cli import ROOT, bertbench
from support.real_text import prepare, run

pytestmark = [pytest.mark.soak, pytest.mark.public]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("real"), 128, 512)


def curve(folder: Path) -> list[float]:
    with (folder / "curve.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def both_phases(shards: Path, out: Path, ranks: int, kill: bool, step: str) -> tuple[list[float], list[float]]:
    """Train phase 1 and phase 2, phase 1 ended by kill -9 in the middle and resumed where wished."""
    common: list[object] = ["--preset", "tiny", "--data", shards, "--device", "cpu", "--devices", ranks, "--threads", 1]
    common += ["--precision", "fp32", "--dropout", 0, "--optimizer", "lamb", "--learning-rate", 4e-3, "--log-every", 1]
    common += ["--step", step]
    for phase, steps, batch in ((1, 12, 8), (2, 6, 4)):
        words: list[object] = ["train", "pretrain", "--phase", phase, *common, "--steps", steps, "--save-every", 2]
        words += ["--global-batch-size", batch, "--micro-batch-size", batch // 4, "--out", out / f"phase{phase}"]
        words += ["--init", out / "phase1"] if phase == 2 else []
        if kill and phase == 1:
            process = subprocess.Popen(
                bertbench(*words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            deadline = time.monotonic() + 240
            while not (out / "phase1/checkpoints/step-0000004").is_dir():
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            time.sleep(2)  # the ranks end with it
        run(*words)
    return curve(out / "phase1"), curve(out / "phase2")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("step", "tolerance"),
    # The fast step divides sequences between ranks by their work.
    [("plain", 2e-5), ("fast", 2e-3)],
)
def test_phase_1_to_2_with_a_resume_is_the_same_on_one_and_on_two_processes(
    shards: Path, tmp_path: Path, step: str, tolerance: float
) -> None:
    one = both_phases(shards, tmp_path / "one", 1, False, step)
    assert [len(losses) for losses in one] == [12, 6]
    assert both_phases(shards, tmp_path / "killed", 1, True, step) == one, "to the bit"
    two = both_phases(shards, tmp_path / "two", 2, True, step)
    for alone, together in zip(one, two, strict=True):
        np.testing.assert_allclose(together, alone, rtol=tolerance)
