"""`bertbench measure` on whole scripts: the real frameworks, compiled steps, spawned ranks, and how it is ended."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.cli import lives, wait_for

from bench.cli.dispatch import result_of
from records.run import RunDirectory, TrialDirectory

HERE = Path(__file__).resolve().parent


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"needs {package}: pip install {package}")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def measured(folder: Path, *command: str) -> tuple[TrialDirectory, dict[str, Any]]:
    out = folder / "run"
    result = result_of(["measure", "--out", str(out), "--timeout-seconds", "500", "--", sys.executable, *command])
    assert result.code == 0, result.document["reason"]
    return RunDirectory(out).trial(result.document["trial_id"]), result.document


def assert_own_clock(directory: TrialDirectory, clock: Path) -> None:
    """Steps end when the script's clock says so: on a busy machine a few of them apart, most of them together."""
    times = json.loads(clock.read_text())
    own = 1000 * np.diff(times[0] if isinstance(times[0], list) else times)
    found = [row["step_time_ms"] for row in directory.read_steps(0)][1:]
    assert len(found) == len(own)
    apart = np.cumsum(found) - np.cumsum(own)
    assert float(np.median(np.abs(apart - np.median(apart)))) < 0.05 * float(np.median(own))
    assert float(np.sum(found)) == pytest.approx(float(np.sum(own)), rel=0.05)


@needs("transformers")
@needs("accelerate")
def test_hugging_faces_trainer(tmp_path: Path) -> None:
    directory, document = measured(
        tmp_path, str(HERE / "script_mlm_trainer.py"), "--output_dir", str(tmp_path / "out"), "--max_steps", "18",
        "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--report_to", "none",
        "--save_strategy", "no",
        "--clock_file", str(tmp_path / "own.json"), "--threads", "1",
    )  # fmt: skip
    rows = directory.read_steps(0)
    assert len(rows) == 18 and {row["samples"] for row in rows} == {8}, "Accelerate reads ahead; the last has its own"
    # A row has 3 to 7 tokens.
    kept = sum(row["real_tokens"] for row in rows)
    assert 8 * 18 * 3 <= kept <= 8 * 18 * 7 and all(row["real_tokens"] <= row["padded_tokens"] for row in rows)
    assert document["tokens_per_second"] > 0 and document["optimizer_ms"] > 0
    assert_own_clock(directory, tmp_path / "own.json")


COMPILED = """
import torch
import torch._dynamo.utils as counters
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(layer.parameters(), lr=torch.tensor(1e-3))
step = torch.compile(optimizer.step, backend="eager")
for _ in range(12):
    layer(torch.ones(2, 4)).sum().backward()
    step()
print("breaks", sum(counters.counters["graph_break"].values()))
"""


def test_a_compiled_step_is_counted_without_a_break_of_its_graph(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, check=True, timeout=500
    )
    directory, document = measured(tmp_path, str(tmp_path / "train.py"))
    assert len(directory.read_steps(0)) == 12 and document["optimizer_ms"] is None
    (breaks,) = [line for line in directory.log.read_text().splitlines() if line.startswith("breaks")]
    assert breaks == alone.stdout.strip()


SPAWNED = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

def train(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(12):
        weight.grad = torch.ones(3)
        dist.all_reduce(weight.grad)
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(train, args=(sys.argv[1],), nprocs=2)
"""


def test_ranks_that_the_script_spawns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    directory, document = measured(tmp_path, str(tmp_path / "train.py"), str(tmp_path))
    assert document["world_size"] == 2 and document["samples_per_second"] is None
    assert [len(directory.read_steps(rank)) for rank in directory.ranks()] == [12, 12]


ENDLESS = """
import os, time
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    weight.grad = torch.ones(3)
    optimizer.step()
    time.sleep(0.02)
"""


def started(folder: Path) -> "tuple[subprocess.Popen[bytes], TrialDirectory, psutil.Process]":
    """Begin to measure an endless script; return the harness, the trial, and the script's process after some steps."""
    (folder / "train.py").write_text(ENDLESS)
    words = [sys.executable, "-m", "bench.cli.main", "measure", "--out", "run", "--", sys.executable, "train.py"]
    harness = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for directory in RunDirectory(folder / "run").trials():
            if directory.ranks() and len(directory.read_steps(0)) > 5:
                return harness, directory, psutil.Process(directory.read_ranks()[0]["pid"])
        time.sleep(0.1)
    harness.kill()
    raise AssertionError("the script made no steps")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_script_and_keeps_its_steps(number: signal.Signals, code: int, tmp_path: Path) -> None:
    harness, directory, script = started(tmp_path)
    harness.send_signal(number)
    assert harness.wait(timeout=100) == code and not lives(script.pid)
    (directory,) = RunDirectory(tmp_path / "run").trials()  # its name has the device since
    result = directory.read_result()
    assert result is not None and (result["status"], result["reason"]) == ("ok", f"stopped by {number.name}")
    timed = [row for row in directory.read_steps(0) if row["step_time_ms"] is not None]
    assert result["steps_measured"] + result["steps_warmup"] == len(timed) > 5


def test_a_long_script_ends_once_enough_steps_were_measured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    out = str(tmp_path / "run")
    words = ["measure", "--out", out, "--start", "5", "--steps", "20", "--", sys.executable, str(tmp_path / "train.py")]
    document = result_of(words).document
    assert (document["steps_measured"], document["window_start"], document["window_stop"]) == (20, 5, 25)
    assert document["reason"] == "stopped by --steps 20"


def test_a_killed_harness_takes_the_script_along_and_the_next_call_says_so(tmp_path: Path) -> None:
    harness, directory, script = started(tmp_path)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait(timeout=100)
    wait_for(lambda: not lives(script.pid), "the end of the script", 60)
    result_of(["measure", "--out", str(tmp_path / "run"), "--", "true"])
    result = directory.read_result()
    assert result is not None and result["status"] == "crashed" and result["code"] == "worker-lost"
