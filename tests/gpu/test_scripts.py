"""The scripts of the GPU session, as far as a CPU can run them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    assert len(backward) == 9 == len({tuple(settings.items()) for settings in backward})


def test_steps_of_several_batches_run_in_one_process(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--preset", "tiny", "--seq-len", "32", "--data", "synthetic", "--seconds", "0.2"]
    made = rows(
        "steps.py", *options, "--batch", "2", "4", "--precision", "fp32", "--profile", str(tmp_path / "host.txt")
    )
    assert [row["batch"] for row in made] == [2, 4]
    for row in made:
        # The median step lies near the mean of so few steps only roughly; the units must agree.
        assert 0.1 < row["samples_per_second"] * row["step_time_ms"] / 1e3 / row["batch"] < 10
    assert "run_step" in (tmp_path / "host.txt").read_text()


def test_the_session_without_a_folder_prints_its_use() -> None:
    done = subprocess.run(["bash", str(ROOT / "tests/gpu/session.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "session.sh OUT" in done.stdout
