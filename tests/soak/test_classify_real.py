"""Real trainings on texts of CSVs: the same from CSV and database, several at once, and a real encoder that learns."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support import shared_files
from support.checkpoints import minilm_folder
from support.cli import ROOT, bertbench, printed
from support.datasets import THINGS, colours_and_animals, write_csv, write_vocabulary

SMS = shared_files.DATA / "csv/sms_spam_latin1.csv"
SMALL = (
    "--preset", "tiny", "--steps", "12", "--global-batch-size", "16", "--micro-batch-size", "16", "--learning-rate",
    "3e-3", "--device", "cpu", "--threads", "1", "--precision", "fp32", "--eval-every", "6",
)  # fmt: skip


def start(*words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        bertbench("train", "classify", *words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_trainers_started_on_one_csv_both_end_and_the_database_gives_the_identical_training(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path, *THINGS)
    path = write_csv(tmp_path / "things.csv", colours_and_animals(300))
    words = ("--vocab", vocabulary, "--seq-len", "24", *SMALL)
    running = [start(path, *words, "--out", tmp_path / f"run{number}") for number in range(2)]
    said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert sum("finished before" in told for _, told in said) == 1  # the other one has made it
    stats = json.loads((tmp_path / "things_train_test_stats.json").read_text())
    assert stats["test"]["texts"] == 30 and (tmp_path / "things_trained_model/model.safetensors").is_file()
    assert not list(tmp_path.glob(".*.tmp")) and not list(tmp_path.glob(".*.new"))
    shutil.copy(tmp_path / "things.sqlite", tmp_path / "copy.sqlite")
    printed("train", "classify", tmp_path / "copy.sqlite", *SMALL, "--out", tmp_path / "run2")
    curves = {(tmp_path / f"run{number}/curve.csv").read_bytes() for number in range(3)}
    predictions = {(tmp_path / f"{name}_testset_predictions.csv").read_bytes() for name in ("things", "copy")}
    assert len(curves) == len(predictions) == 1


@pytest.mark.public
def test_a_real_encoder_tells_spam_from_messages(tmp_path: Path) -> None:
    shutil.copy(SMS, tmp_path / "sms.csv")
    options = ("--text", "v2", "--label", "v1", "--seq-len", "48", "--init", minilm_folder(), "--steps", "60",
               "--learning-rate", "3e-4", "--global-batch-size", "16", "--micro-batch-size", "16", "--eval-every", "60",
               "--eval-samples", "60", "--device", "cpu", "--threads", "1",
               "--test", "0.05", "--out", tmp_path / "run")  # fmt: skip
    printed("train", "classify", tmp_path / "sms.csv", *options)
    stats = json.loads((tmp_path / "sms_train_test_stats.json").read_text())
    assert stats["test"]["balanced_accuracy"] >= 0.9
