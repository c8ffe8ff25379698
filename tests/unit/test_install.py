"""`make setup` after one that was interrupted, with a Python that installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT

# Stands for python3: `-m venv [--clear] FOLDER` makes a pip that kills its make, unless there is a file `whole`.
PYTHON = """#!/usr/bin/env bash
[[ $1 == -m ]] || exit 0
echo "$*" >>venvs.txt
mkdir -p .venv/bin
printf '%s\n' '#!/usr/bin/env bash' '[[ -e whole ]] || kill -9 $PPID' >.venv/bin/pip
chmod +x .venv/bin/pip
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_interrupted_installation_begins_with_an_empty_folder(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    # As a user calls it, not as a part of `make test`.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "setup", "PYTHON=./python"]
    assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=30).returncode != 0
    (tmp_path / "whole").touch()
    assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=30).returncode == 0
    assert (tmp_path / "venvs.txt").read_text().splitlines() == ["-m venv .venv", "-m venv --clear .venv"]
