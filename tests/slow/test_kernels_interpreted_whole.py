"""The longer tests of tests/unit/bert/interpreted, in a process of their own, as Triton needs."""

import os
import re
import subprocess
import sys

import pytest
from support.cli import ROOT
from support.triton_needed import need_triton


@pytest.mark.soak
def test_more_shapes_types_and_a_whole_encoder() -> None:
    need_triton()
    files = sorted(path for path in (ROOT / "tests/unit/bert/interpreted").glob("*.py") if path.stem != "conftest")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", "slow", *files]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.run(command, env=own | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    passed = re.search(r"\b(\d+) passed", child.stdout)
    assert passed and int(passed[1]) >= 12 and "skipped" not in child.stdout
