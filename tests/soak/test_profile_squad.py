"""`bertbench profile squad` on a features file, and the compiled model of transformers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT, TINY
from support.squad_windows import squad_windows, write_windows

pytestmark = pytest.mark.timeout(1800)
SHORT = ["--start", "2", "--stop", "5", "--batch-sizes", "2"]


def call(command: str, *options: str) -> Any:
    argv = [sys.executable, "-m", "bench.cli.main", command, "squad", *TINY, *SHORT, *options, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_profile_shows_the_span_head_as_a_phase(tmp_path: Path) -> None:
    features = write_windows(tmp_path, squad_windows(30, max_seq_length=32))
    (profile,) = call("profile", "--data", str(features), "--out", str(tmp_path / "run"))["profiles"]
    assert profile["status"] == "ok" and profile["files"]
    ranges = {row["name"]: row for row in profile["findings"]["ranges"]["rows"]}
    assert ranges["bertbench:answer_span"]["count"] == 3 and "bertbench:pooler" not in ranges


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_compiled_model_of_transformers_trains_on_windows_of_changing_lengths(tmp_path: Path) -> None:
    (row,) = call(
        "throughput", "--implementations", "hf-compiled", "--padding", "longest", "--out", str(tmp_path / "run"),
        "--timeout-seconds", "800",
    )["rows"]  # fmt: skip
    assert row["status"] == "ok" and row["steps_measured"] == 3


def test_distilbert_runs_with_both_codes(tmp_path: Path) -> None:
    options = ("--presets", "distilbert", "--implementations", "bertbench", "hf", "--out", str(tmp_path / "run"))
    ours, theirs = call("throughput", *options, "--rounds", "1")["rows"]
    assert ours["parameters"] == theirs["parameters"] + 6 * 768
