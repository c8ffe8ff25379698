"""The steps of bench.sh, with a `bertbench` that only records how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT

FAKE = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ $1 != doctor ]]
"""


CASES = [("elsewhere", "mine", "elsewhere/mine"), ("", "runs/x", "runs/x")]


@pytest.mark.parametrize(("folder", "given", "used"), CASES)
def test_each_step_runs_in_a_folder_that_is_relative_to_that_of_the_caller(
    folder: str, given: str, used: str, tmp_path: Path
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(ROOT / "bench" / "bench.sh", tmp_path / "bench")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/bertbench").write_text(FAKE)
    (tmp_path / ".venv/bin/bertbench").chmod(0o755)
    calls = tmp_path / "calls.txt"
    environment = {**os.environ, "OUT": given, "CALLS": str(calls), "ROUNDS": "2"}
    command = ["bash", str(tmp_path / "bench" / "bench.sh")]
    subprocess.run(command, env=environment, cwd=tmp_path / folder, capture_output=True, timeout=60, check=True)
    steps = [line.split() for line in calls.read_text().splitlines() if not line.startswith("doctor")]
    assert [words[0] for words in steps] == ["data", "throughput", "profile", "speed-of-light", "report"]
    assert steps[1][steps[1].index("--rounds") + 1] == "2"
    assert steps[-1] == ["report", used] and (tmp_path / used).is_dir()
