"""A whole encoder in FP8 in Triton's interpreter, in a process of its own: Triton reads at its import what it does."""

import os
import re
import subprocess
import sys

from support.cli import ROOT
from support.kernels import need_triton


def test_an_encoder_computes_in_fp8_what_it_does_with_separate_casts() -> None:
    need_triton()
    options = ["-n", "0", "-p", "no:cacheprovider", "-k", "an_encoder_computes"]
    file = ROOT / "tests/unit/bert/interpreted/fp8_norms.py"
    command = [sys.executable, "-m", "pytest", *options, file]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.run(command, env=own | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert re.search(r"\b1 passed", child.stdout) and "skipped" not in child.stdout
