"""Real trials: a killed worker's is gone on with, two workers share a study, the best command trains it again."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from support.cli import ROOT
from support.train_cli import kill_all
from support.training_runs import SEQ_LEN, shards


def tune(data: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    fixed = ["--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32"]
    run = ["--global-batch-size", "8", "--steps", "200", "--eval-every", "40", "--save-every", "20", "--log-every", "5"]
    search = ["--search", "learning_rate=log:1e-4:1e-2", "--sampler", "random", "--pruner", "none", "--trials", "3"]
    words = ["tune", "pretrain", "--data", str(data), "--out", str(out), *fixed, *run, *search, *more]
    argv = [sys.executable, "-m", "bench.cli.main", *words]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_worker_costs_no_trial_and_the_best_command_trains_the_same_again(tmp_path: Path) -> None:
    data, out = shards(tmp_path / "shards"), tmp_path / "study"
    doomed = tune(data, out)
    deadline = time.monotonic() + 120
    while not list(out.glob("trial-0000/checkpoints/step-*/state.json")):
        assert doomed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    kill_all(doomed)
    workers = [tune(data, out), tune(data, out)]
    for worker in workers:
        _, said = worker.communicate(timeout=240)
        assert worker.returncode == 0, said
    found: dict[str, Any] = json.loads((out / "tune.json").read_text())
    assert [row["state"] for row in found["trials"]] == ["complete"] * 3
    assert [row["killed"] for row in found["trials"]] == [1, 0, 0]
    attempts = [json.loads(path.read_text()) for path in out.glob("trial-0000/trials/*/trial.json")]
    assert len(attempts) == 2
    events = [path.read_text() for path in out.glob("trial-0000/trials/*/events.jsonl")]
    assert sum('"event": "resumed"' in text for text in events) == 1
    command = shlex.split(found["best"]["command"])[1:]
    done = subprocess.run(
        [sys.executable, "-m", "bench.cli.main", *command, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)["state"]
    assert state["best"]["value"] == found["best"]["value"]  # bit by bit: the same training
