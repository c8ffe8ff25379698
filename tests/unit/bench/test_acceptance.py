"""gpu-acceptance on a machine without a GPU: what it says, and that its steps are commands that exist."""

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests/gpu/acceptance.py"


def acceptance() -> object:
    spec = util.spec_from_file_location("acceptance", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2 and "needs a CUDA device" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_a_folder_it_says_how_to_call_it() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), ""], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "OUT=<folder>" in done.stderr


def test_every_profiler_and_no_unknown_command_is_in_it(tmp_path: Path) -> None:
    from bench.cli.main import COMMANDS
    from bench.profilers import PROFILERS

    steps = acceptance().steps(tmp_path)  # type: ignore[attr-defined]
    commands = [command[3] for _, command, _ in steps if command[2] == "bench.cli.main"]
    assert set(commands) <= set(COMMANDS)
    profilers = {command[command.index("--profiler") + 1] for _, command, _ in steps if "--profiler" in command}
    assert profilers == set(PROFILERS) - {"nvprof"}, "nvprof cannot run on the GPUs of today"


def test_a_failing_step_is_a_row_and_a_missing_tool_is_no_failure(tmp_path: Path) -> None:
    run_step = acceptance().run_step  # type: ignore[attr-defined]
    code = "import sys; sys.stderr.write('nsys is not on PATH: install it'); sys.exit(2)"
    assert run_step("a", [sys.executable, "-c", code], 30, tmp_path)["outcome"] == "absent"
    assert run_step("b", [sys.executable, "-c", "raise SystemExit(3)"], 30, tmp_path)["outcome"] == "failed"
    good = run_step("c", [sys.executable, "-c", "print('{\"x\": 1}')"], 30, tmp_path)
    assert (good["outcome"], good["figures"]) == ("ok", {"x": 1})
    assert run_step("d", [sys.executable, "-c", "import time; time.sleep(30)"], 2, tmp_path)["outcome"] == "timeout"
    assert run_step("e", ["none"], 0.5, tmp_path)["outcome"] == "not reached"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_every_sweep_is_refused_for_want_of_a_gpu_alone(tmp_path: Path) -> None:
    steps = acceptance().steps(tmp_path)  # type: ignore[attr-defined]
    sweeps = [command for _, command, _ in steps if set(command) & {"throughput", "speed-of-light"}]
    assert len(sweeps) == 4
    for command in sweeps:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2 and "no GPU can be used" in done.stderr and len(done.stderr.splitlines()) == 1, (
            done.stderr
        )
