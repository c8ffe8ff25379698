"""Runs `bertbench train pretrain` with several trainings in real processes, on shards written for it."""

import json
from pathlib import Path
from typing import Any

from support.cli import Cli
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


class TrainingsCli(Cli):
    """One folder, and the command with the options that all calls share."""

    def __init__(self, data: Path, out: Path, *words: str) -> None:
        super().__init__(out)
        self.words = ["train", "pretrain", *SMALL, *words, "--data", str(data), "--out", str(out)]

    def command(self, *more: str) -> list[str]:
        return self.argv(*self.words, *more)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "trainings.json").read_text())
        return found
