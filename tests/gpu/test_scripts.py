"""The scripts of the GPU session, as far as a CPU can run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cli import ROOT
from support.triton_needed import need_triton


def rows(script: str, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(ROOT / "tests/gpu" / script), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["rows"])


def test_every_kernel_and_setting_can_be_called_without_a_gpu() -> None:
    need_triton()
    made = rows("kernels.py", "--device", "meta")
    assert {row["part"] for row in made} == {"copy", "attention", "norm", "cast", "gelu", "gemm"}
    assert [row for row in made if "error" in row] == []
    backward = [row["settings"] for row in made if row["kernel"] == "backward"]
    assert len(backward) == 10 == len({tuple(settings.items()) for settings in backward})


def test_steps_of_several_batches_run_in_one_process(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--preset", "tiny", "--seq-len", "32", "--data", "synthetic", "--seconds", "0.2"]
    made = rows("steps.py", *options, "--rows", "fp32:2", "fp32:4:lamb", "--profile", str(tmp_path / "host.txt"))
    assert [(row["batch"], row["optimizer"]) for row in made] == [(2, "adamw"), (4, "lamb")]
    for row in made:
        # The median step lies near the mean of so few steps only roughly; the units must agree.
        assert 0.1 < row["samples_per_second"] * row["step_time_ms"] / 1e3 / row["batch"] < 10
    assert "run_step" in (tmp_path / "host.txt").read_text()


def session(*words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHON": sys.executable, "SHARDS": str(ROOT / "tests")}
    command = ["bash", str(ROOT / "tests/gpu/session.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


def test_the_session_without_a_folder_prints_its_use() -> None:
    done = session()
    assert done.returncode == 2 and "session.sh OUT" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("half", ["first", "second"])
def test_every_part_of_the_session_lacks_nothing_but_a_gpu(half: str, tmp_path: Path) -> None:
    done = session(str(tmp_path), half)
    assert done.returncode == 0, done.stderr
    logs = {path.stem: path.read_text() + path.with_suffix(".json").read_text() for path in tmp_path.glob("*.log")}
    assert len(logs) >= 4 and (tmp_path / "session.tar.gz").exists()
    for name, text in logs.items():
        assert re.search("device-missing|CUDA|GPU", text) and "option-" not in text, (name, text)
