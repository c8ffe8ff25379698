"""The kernels for a GPU compute in Triton's interpreter what float64 gives, on a CPU.

Triton reads at its import whether it interprets, so tests of tests/unit/bert/interpreted run in a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernels import need_triton

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["layers", "ends"])
def test_values_and_gradients(name: str) -> None:
    need_triton()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", HERE / f"interpreted/{name}.py"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.run(command, env=own | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert re.search(r"\d+ passed", child.stdout) and "skipped" not in child.stdout
