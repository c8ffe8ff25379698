"""Pretraining on real books and Wikipedia articles: both phases with an interruption, and that something is learned."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared/data"
CORPUS = SHARED / "pretrain"
VOCABULARY = SHARED / "vocab/bert-uncased.txt"
LEARNING_STEPS = 1000
NATS_ABOVE_UNIGRAM_ENTROPY = 0.3

pytestmark = pytest.mark.skipif(
    not (CORPUS.is_dir() and VOCABULARY.is_file()),
    reason="the corpus is not beside this checkout (shared/data/pretrain)",
)


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "bench.cli.main", *map(str, words)]


def run(*words: object, timeout: float = 900) -> None:
    done = subprocess.run(argv(*words), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("real")
    run("data", "pretrain", "--input", CORPUS, "--output", output, "--vocab", VOCABULARY, "--seq-lens", 128, 512)
    return output


def curve(folder: Path) -> list[float]:
    with (folder / "curve.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def both_phases(shards: Path, out: Path, ranks: int, kill: bool) -> tuple[list[float], list[float]]:
    """Train phase 1 and phase 2, phase 1 ended by kill -9 in the middle and resumed where wished."""
    common: list[object] = ["--preset", "tiny", "--data", shards, "--device", "cpu", "--devices", ranks, "--threads", 1]
    common += ["--precision", "fp32", "--dropout", 0, "--optimizer", "lamb", "--learning-rate", 4e-3, "--log-every", 1]
    for phase, steps, batch in ((1, 12, 8), (2, 6, 4)):
        words: list[object] = ["train", "pretrain", "--phase", phase, *common, "--steps", steps, "--save-every", 2]
        words += ["--global-batch-size", batch, "--micro-batch-size", batch // 4, "--out", out / f"phase{phase}"]
        words += ["--init", out / "phase1"] if phase == 2 else []
        if kill and phase == 1:
            process = subprocess.Popen(argv(*words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
def test_phase_1_to_2_with_a_resume_is_the_same_on_one_and_on_two_processes(shards: Path, tmp_path: Path) -> None:
    one = both_phases(shards, tmp_path / "one", ranks=1, kill=False)
    assert [len(losses) for losses in one] == [12, 6]
    assert both_phases(shards, tmp_path / "killed", ranks=1, kill=True) == one, "to the bit"
    two = both_phases(shards, tmp_path / "two", ranks=2, kill=True)
    for alone, together in zip(one, two, strict=True):
        np.testing.assert_allclose(together, alone, rtol=2e-5)


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


@pytest.mark.timeout(2400)
def test_held_out_loss_comes_within_reach_of_the_unigram_entropy(shards: Path, tmp_path: Path) -> None:
    words: list[object] = ["train", "pretrain", "--preset", "mini", "--data", shards, "--seq-len", 128]
    words += ["--global-batch-size", 16, "--micro-batch-size", 16, "--steps", LEARNING_STEPS, "--dropout", 0]
    words += ["--optimizer", "adamw", "--learning-rate", 1e-3, "--schedule", "linear", "--warmup", 0.05]
    words += ["--precision", "fp32", "--device", "cpu", "--devices", 1, "--eval-every", LEARNING_STEPS]
    run(*words, "--save-every", LEARNING_STEPS, "--out", tmp_path / "run", timeout=2300)
    found = json.loads((tmp_path / "run/train.json").read_text())["evaluation"]
    entropy = unigram_entropy(next(shards.glob("hdf5_*_seq_len_128_*")))
    print(f"held-out MLM loss {found['mlm_loss']:.3f}, unigram entropy {entropy:.3f}, NSP {found['nsp_accuracy']:.3f}")
    assert 6 < entropy < 8 < math.log(30_522)
    assert found["mlm_loss"] < entropy + NATS_ABOVE_UNIGRAM_ENTROPY
    assert found["nsp_accuracy"] > majority(next(shards.glob("hdf5_*_seq_len_128_*"))), "better than one answer to all"
