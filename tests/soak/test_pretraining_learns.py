"""Pretraining on real books and Wikipedia articles learns what holds for texts that it has not seen."""

import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.cli import ROOT, bertbench, printed
from support.shared_files import DATA, PUBLIC_VOCABULARY

from records.training import TrainRun, read_events

pytestmark = pytest.mark.public
STEPS, EVAL_EVERY, EVALUATED = 1000, 250, 1024
NATS_ABOVE_UNIGRAM_ENTROPY = 0.3
CLEARLY = 0.03
"""How far above one answer to all the share of right next sentences lies before the run is ended early: two standard
deviations at EVALUATED samples, for it is looked at more than once."""


def unigram_entropy(folder: Path) -> float:
    """Entropy in nats of the distribution of the hidden pieces of the test shards."""
    counts = np.zeros(40_000)
    for path in folder.rglob("*_test_*.hdf5"):
        with h5py.File(path) as file:
            counts += np.bincount(file["masked_lm_ids"][:][file["masked_lm_positions"][:] > 0], minlength=len(counts))
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def majority(folder: Path) -> float:
    """Share of the more frequent next-sentence label of the test shards."""
    labels = []
    for path in folder.rglob("*_test_*.hdf5"):
        with h5py.File(path) as file:
            labels.append(file["next_sentence_labels"][:])
    share = float(np.concatenate(labels).mean())
    return max(share, 1 - share)


def evaluations(run: TrainRun) -> list[dict[str, Any]]:
    return [event for attempt in run.attempts() for event in read_events(attempt) if event["event"] == "evaluated"]


@pytest.mark.timeout(2400)
def test_held_out_loss_comes_within_reach_of_the_unigram_entropy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words: list[object] = ["--input", DATA / "pretrain", "--vocab", PUBLIC_VOCABULARY, "--dataset", "pretrain"]
    printed("data", "pretrain", *words, "--seq-lens", 128, "--output", data)
    entropy, one_answer = unigram_entropy(data), majority(data)
    assert 6 < entropy < 8 < math.log(30_522)
    words = ["train", "pretrain", "--preset", "mini", "--data", data, "--seq-len", 128]
    words += ["--global-batch-size", 16, "--micro-batch-size", 16, "--steps", STEPS, "--dropout", 0]
    words += ["--optimizer", "adamw", "--learning-rate", 5e-4, "--schedule", "linear", "--warmup", 0.05]
    words += ["--precision", "fp32", "--device", "cpu", "--devices", 1, "--save-every", STEPS]
    words += ["--eval-every", EVAL_EVERY, "--eval-samples", EVALUATED, "--out", tmp_path / "run"]
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(bertbench(*words), cwd=ROOT, stdout=output, stderr=output)
    run = TrainRun(tmp_path / "run")

    def learned(found: dict[str, Any], more: float) -> bool:
        right = found["nsp_accuracy"] > one_answer + more
        return bool(found["mlm_loss"] < entropy + NATS_ABOVE_UNIGRAM_ENTROPY and right)

    try:
        while process.poll() is None:
            if any(learned(found, CLEARLY) for found in evaluations(run)):
                process.send_signal(signal.SIGTERM)  # what was to be shown is shown: save and end
                break
            time.sleep(1)
        assert process.wait(240) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
    found = evaluations(run)
    print(f"unigram entropy {entropy:.3f}, one answer to all {one_answer:.3f}: {found}")
    assert any(learned(each, CLEARLY) for each in found) or learned(found[-1], 0.0), found
