"""Runs `bertbench train` in real processes, on shards written for it, and ends it in every way."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from support.cli import Cli
from support.training_runs import SEQ_LEN

SMALL = (
    "--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--log-every", "1", "--save-every", "5", "--eval-every", "10", "--learning-rate", "2e-3",
)  # fmt: skip
STEPS = 24
# More steps than a test waits for.
ENDLESS = ("--steps", "100000")


class TrainCli(Cli):
    """One run directory, and the command with the options that the whole run keeps."""

    def __init__(self, data: Path, out: Path, ranks: int = 1, steps: int = STEPS) -> None:
        super().__init__(out)
        self.ranks = ranks
        batches = ("--devices", str(ranks), "--global-batch-size", "8", "--micro-batch-size", str(8 // ranks // 2))
        self.options = (*SMALL, *batches, "--steps", str(steps), "--data", str(data), "--out", str(out))

    def command(self, *more: str) -> list[str]:
        return self.argv("train", "pretrain", *self.options, *more)

    def curve(self) -> str:
        path = self.out / "curve.csv"
        return path.read_text() if path.exists() else ""

    def attempts(self) -> list[Path]:
        """Folders of the attempts, the latest last."""
        paths = list(self.out.glob("trials/*/trial.json"))
        return [path.parent for path in sorted(paths, key=lambda path: int(json.loads(path.read_text())["round"]))]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.attempts()[-1] / "result.json").read_text())
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "train.json").read_text())
        return found

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.out / "checkpoints").glob("step-*"))


def tree(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The harness, the launcher and the ranks."""
    try:
        own = psutil.Process(process.pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def wait_for_steps(cli: TrainCli, process: "subprocess.Popen[str]", attempt: int, steps: int) -> None:
    """Wait until attempt number `attempt` has made `steps` steps, or has ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None and not (len(cli.attempts()) >= attempt and cli.steps_written() >= steps):
        assert time.monotonic() < deadline, f"waited for {steps} steps of attempt {attempt}"
        time.sleep(0.01)


def kill_all(process: "subprocess.Popen[str]") -> None:
    """Kill -9 everything at once, the harness first: nothing is left that could tidy up."""
    members = tree(process)
    for member in members:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.communicate(timeout=30)
    psutil.wait_procs(members, timeout=10)


def send_to_all(process: "subprocess.Popen[str]", number: int) -> None:
    """Send a signal to every process of a call, as a batch system does."""
    for member in tree(process):
        member.send_signal(number)
