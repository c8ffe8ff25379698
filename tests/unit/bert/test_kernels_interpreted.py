"""The kernels for a GPU compute in Triton's interpreter what float64 gives, on a CPU.

Triton reads at its import whether it interprets, so tests of tests/unit/bert/interpreted run in a process of their own:
one for all of them, since its start takes longer than most of them do.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.triton_needed import need_triton

FILES = sorted(path for path in (Path(__file__).parent / "interpreted").glob("*.py") if path.stem != "conftest")


@pytest.mark.timeout(900)  # all of them in one process, and machines are shared
def test_values_and_gradients() -> None:
    need_triton()
    # tests/slow/test_kernels_interpreted_whole.py runs the others.
    options = ["-n", "0", "-p", "no:cacheprovider", "--durations=10", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, *FILES]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.run(command, env=own | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert re.search(r"\d+ passed", child.stdout) and "skipped" not in child.stdout
    sys.stdout.write(child.stdout)
