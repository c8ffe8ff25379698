"""What gpu-acceptance says that every step, or a part, needs is what the commands need: run without all the rest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.absent import without
from support.acceptance_packages import ELSEWHERE, NEEDED, PARTS
from support.cli import ROOT

OPTIONAL = {*PARTS, *ELSEWHERE}
TRIAL = ["--preset", "tiny", "--device", "cpu", "--seq-lens", "64", "--batch-sizes", "4"]
ONE = ["throughput", "pretrain", *TRIAL, "--start", "1", "--stop", "3", "--rounds", "1"]
PROFILE = ["profile", "pretrain", *TRIAL, "--start", "2", "--stop", "4", "--profiler", "torch"]
LIGHT = ["speed-of-light", "pretrain", *TRIAL[:4], "--seq-len", "64", "--batch-size", "4", "--max-seconds", "1"]


def bertbench(absent: set[str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = without(absent, folder / "site", ROOT)
    return subprocess.run(
        [sys.executable, "-m", "bench.cli.main", *words], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip


@pytest.mark.slow
def test_every_part_runs_with_what_it_says_it_needs(tmp_path: Path) -> None:
    run = ["--out", str(tmp_path / "run")]
    done = bertbench(OPTIONAL, tmp_path, *ONE, "--json", *run)
    assert done.returncode == 0 and json.loads(done.stdout)["rows"][0]["status"] == "ok", done.stderr
    for words, needs in (
        ([*PROFILE, "--json", *run], {"pandas"}),
        ([*LIGHT, "--json", *run], {"matplotlib"}),
        (["doctor", "--json"], set()),
        (["report", run[1]], {"pandas", "matplotlib", "jinja2", "markupsafe"}),
    ):
        done = bertbench(OPTIONAL - needs, tmp_path, *words)
        assert done.returncode == 0, f"{words[0]}: {done.stderr[-2000:]}"
        if needs:
            (tmp_path / "other").mkdir(exist_ok=True)
            done = bertbench(OPTIONAL, tmp_path, *words)
            assert done.returncode != 0 and "No module named" in done.stderr, f"{words[0]} needs none of {needs}"


def test_numbers_are_compared_without_a_test_runner(tmp_path: Path) -> None:
    command = [sys.executable, "tests/gpu/correctness.py", "--device", "cpu", "--seconds", "0", "--json"]
    environment = without({*OPTIONAL, "triton"}, tmp_path / "site", ROOT)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280
    )  # fmt: skip
    assert done.returncode == 0 and len(json.loads(done.stdout)["checks"]) > 20, done.stderr[-2000:]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "torch")) for n in sorted(NEEDED)])
def test_without_a_package_that_every_step_needs_nothing_runs(name: str, tmp_path: Path) -> None:
    words = [word.replace("cpu", "cuda") for word in ONE] if name == "pynvml" else ONE
    done = bertbench({name}, tmp_path, *words, "--json", "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    said = done.stderr + done.stdout
    assert f"No module named '{name}'" in said or (name == "pynvml" and "nvidia-ml-py is not installed" in said)
