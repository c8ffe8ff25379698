"""Real trials: two workers share a study, that of a killed or stopped one resumes, the best command repeats it."""

import csv
import json
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from support.cli import ROOT, bertbench, kill_all, run_to_end, wait_for
from support.training_runs import SEQ_LEN, shards

pytestmark = pytest.mark.timeout(900)


def tune(data: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    fixed = ["--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32"]
    run = ["--global-batch-size", "8", "--steps", "100", "--eval-every", "20", "--save-every", "10", "--log-every", "5"]
    search = ["--search", "learning_rate=log:1e-4:1e-2", "--sampler", "random", "--pruner", "none", "--trials", "3"]
    words = ["tune", "pretrain", "--data", str(data), "--out", str(out), *fixed, *run, *search, *more]
    return subprocess.Popen(bertbench(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
        _, errors = worker.communicate(timeout=600)
        assert worker.returncode == 0, errors
    study: dict[str, Any] = json.loads((out / "tune.json").read_text())
    assert [row["state"] for row in study["trials"]] == ["complete"] * 3
    assert [row["resumed"] for row in study["trials"]] == [1, 0, 0]
    attempts = list(out.glob("trial-0000/trials/*/trial.json"))
    assert len(attempts) == 2
    events = [path.read_text() for path in out.glob("trial-0000/trials/*/events.jsonl")]
    assert sum('"event": "resumed"' in text for text in events) == 1
    assert Path(study["best"]["checkpoint"]).is_dir()
    states = [row["state"] for row in csv.DictReader((out / "trials.csv").open())]
    assert sorted(states) == ["COMPLETE"] * 3 + ["FAIL"], "the killed one is a row of Optuna's table"
    done = run_to_end(bertbench(*shlex.split(study["best"]["command"])[1:], "--json"))
    state = json.loads(done.stdout)["state"]
    assert state["best"]["value"] == study["best"]["value"]  # bit by bit: the same training


def test_a_stopped_search_resumes_its_trial(tmp_path: Path) -> None:
    data, out = shards(tmp_path / "shards"), tmp_path / "study"
    first = tune(data, out)
    wait_for(lambda: list(out.glob("trial-0000/checkpoints/step-*/state.json")), "a checkpoint", 120)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130 and "Traceback" not in errors
    assert [row["state"] for row in json.loads((out / "tune.json").read_text())["trials"]] == ["waiting"]
    second = tune(data, out, "--max-seconds", "600")
    _, errors = second.communicate(timeout=600)
    assert second.returncode == 0, errors
    study = json.loads((out / "tune.json").read_text())
    assert [(row["state"], row["resumed"]) for row in study["trials"]] == [("complete", 1), *[("complete", 0)] * 2]
