"""Helpers that run the real command line in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from support.training_runs import SEQ_LEN

ROOT = Path(__file__).resolve().parents[2]
# The smallest trials that are still real: preset tiny, 32 tokens, three steps.
TINY = ["--preset", "tiny", "--seq-lens", "32", "--precisions", "fp32", "--device", "cpu", "--devices", "1"]
SHORT = ["--start", "1", "--stop", "3"]
# Far more steps than a test waits for.
ENDLESS = ["--start", "1", "--stop", "1000000"]


def bertbench(*words: object) -> list[str]:
    """Return a command line of `bertbench`."""
    return [sys.executable, "-m", "bench.cli.main", *map(str, words)]


def run_to_end(
    argv: Sequence[object], code: int | None = 0, *, timeout: float = 280, cwd: Path = ROOT, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command, with further environment variables, and check its exit code, if one is given."""
    environment = {**os.environ, **variables}
    ended = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip
    assert code is None or ended.returncode == code, ended.stdout + ended.stderr
    return ended


def printed(*words: object) -> str:
    """Return what a command of `bertbench` prints, which may take long."""
    return run_to_end(bertbench(*words), timeout=1500).stdout


class Cli:
    """Starts `bertbench` with a run directory of its own."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def argv(self, *words: str) -> list[str]:
        return bertbench(*words)

    def sweep(self, *options: str) -> list[str]:
        return self.argv("throughput", "pretrain", *TINY, *options, "--out", str(self.out))

    def command(self, *more: str) -> list[str]:
        return self.sweep(*more)

    def run(self, *more: str, code: int | None = 0, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
        """Run the command of this directory to its end and check its exit code."""
        return run_to_end(self.command(*more), code, timeout=timeout)

    def start(self, *more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(*more), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def results(self) -> list[dict[str, object]]:
        """Results in the order the trials were planned."""
        planned = json.loads((self.out / "sweep.json").read_text())["trials"]
        paths = [self.out / "trials" / name / "result.json" for name in planned]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def processes(self) -> list[psutil.Process]:
        """Every live process of this run directory's trials."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                if process.status() != psutil.STATUS_ZOMBIE and any(str(self.out) in word for word in words):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """The ranks."""
        return [p for p in self.processes() if p.cmdline()[1:4] == ["-u", "-m", "bench.run.worker"]]

    def steps_written(self, rank: int = 0) -> int:
        """Rows of the newest step file of a rank."""
        files = sorted(self.out.glob(f"trials/*/steps-{rank}.csv"), key=lambda path: path.stat().st_mtime)
        return max(0, len(files[-1].read_text().splitlines()) - 1) if files else 0


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to ask how it ended does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    """Wait until `condition` holds; fail with `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


SMALL_TRAINING = (
    "--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--log-every", "1", "--save-every", "5", "--eval-every", "10", "--learning-rate", "2e-3",
)  # fmt: skip
STEPS = 24


class TrainCli(Cli):
    """One run directory, and the command with the options that the whole run keeps."""

    task = "pretrain"

    def __init__(self, data: Path, out: Path, ranks: int = 1, steps: int = STEPS) -> None:
        super().__init__(out)
        self.ranks = ranks
        batches = ("--devices", str(ranks), "--global-batch-size", "8", "--micro-batch-size", str(8 // ranks // 2))
        self.options = (*SMALL_TRAINING, *batches, "--steps", str(steps), "--data", str(data), "--out", str(out))

    def command(self, *more: str) -> list[str]:
        return self.argv("train", self.task, *self.options, *more)

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
