"""The parent of a trial's ranks: a single rank gets what torchrun would tell it, and its end is written down."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.launch.torchrun import ONE_NODE
from bench.launch.world import AGENT_STORE_VARIABLE
from bench.run.agent import _ALONE

ROOT = Path(__file__).parents[3]


def agent(failures: Path, *words: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in _ALONE} | {AGENT_STORE_VARIABLE: "True"}
    argv = [sys.executable, *options, "-m", "bench.run.agent", str(failures), *words]
    return subprocess.run(argv, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_end_of_a_single_rank_is_written_down(tmp_path: Path, program: str, code: int) -> None:
    done = agent(tmp_path / "agent.json", "1", "-c", program)
    (failure,) = json.loads((tmp_path / "agent.json").read_text())["failures"]
    assert done.returncode == 1 and (failure["rank"], failure["exit_code"]) == (0, code)


def test_a_single_rank_that_ends_well_is_no_failure_and_its_parent_imports_no_torch(tmp_path: Path) -> None:
    done = agent(tmp_path / "agent.json", "1", "-c", "print('done')", options=("-X", "importtime"))
    assert done.returncode == 0 and done.stdout == "done\n"
    assert json.loads((tmp_path / "agent.json").read_text())["failures"] == []
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "bench.run.processes" in imported and not [name for name in imported if name.split(".")[0] == "torch"]


def test_a_single_rank_is_told_what_torchrun_tells_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import json, os; print(json.dumps({{name: os.environ[name] for name in {list(_ALONE)}}}))\n")
    alone = json.loads(agent(tmp_path / "a.json", "1", str(program)).stdout)
    options = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *ONE_NODE, str(program)]
    done = subprocess.run(options, cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert alone.pop("MASTER_PORT") == "0" and int(told.pop("MASTER_PORT")) > 0
    assert alone.pop(AGENT_STORE_VARIABLE) == "False", "no torchrun hosts a store for it"
    del told[AGENT_STORE_VARIABLE]
    assert alone == told
