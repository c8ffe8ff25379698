"""Runs `bertbench compare-strategies` in real processes: one process against two, on shards written for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cli import ROOT
from support.training_runs import SEQ_LEN

STEPS = 6
ALIKE = (
    "--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--global-batch-size", "8", "--micro-batch-size", "2", "--dropout", "0", "--eval-every", "3", "--log-every", "1",
)  # fmt: skip


class Compare:
    """One folder, and the command."""

    def __init__(self, data: Path, out: Path) -> None:
        self.out = out
        self.words = ["compare-strategies", "pretrain", *ALIKE, "--data", str(data), "--out", str(out)]

    def argv(self, *more: str, steps: int = STEPS) -> list[str]:
        own = ["--devices", "1", "2", "--profile-steps", "2", "--steps", str(steps)]
        return [sys.executable, "-m", "bench.cli.main", *self.words, *own, *more]

    def run(self, *more: str, seconds: float = 240) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.argv(*more), cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "comparison.json").read_text())
        return found
