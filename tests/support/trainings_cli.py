"""Runs `bertbench train pretrain` with several trainings in real processes, on shards written for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cli import ROOT
from support.training_runs import SEQ_LEN

STEPS = 6
SMALL = (
    "--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--global-batch-size", "8", "--dropout", "0", "--log-every", "1",
)  # fmt: skip
TWO = ("--vary", "devices=1,2", "--profile-steps", "2", "--micro-batch-size", "2", "--eval-every", "3",
       "--steps", str(STEPS))  # fmt: skip


def until(target: float, steps: int = 400, every: int = 2) -> tuple[str, ...]:
    """Return the options of trainings to a held-out loss."""
    return (
        "--until", f"mlm_loss={target}", "--steps", str(steps), "--eval-every", str(every), "--micro-batch-size", "8",
        "--learning-rate", "1e-3", "--save-every", "1000", "--warmup", "0", "--optimizer", "adamw",
    )  # fmt: skip


class TrainingsCli:
    """One folder, and the command with the options that all calls share."""

    def __init__(self, data: Path, out: Path, *words: str) -> None:
        self.out = out
        self.words = ["train", "pretrain", *SMALL, *words, "--data", str(data), "--out", str(out)]

    def argv(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "bench.cli.main", *self.words, *more]

    def run(self, *more: str, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.argv(*more), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)

    def start(self, *more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(self.argv(*more), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "trainings.json").read_text())
        return found
