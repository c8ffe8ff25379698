"""`make install` that fails, was interrupted or is called twice, with a Python that installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
# Stands for python3: `-m venv [--clear] FOLDER` makes a pip that takes a second.
PYTHON = """#!/usr/bin/env bash
[[ $1 == -m ]] || exit 0
echo "$*" >>venvs.txt
folder=${!#}
mkdir -p "$folder/bin"
printf '%s\n' '#!/usr/bin/env bash' 'sleep 0.3' '[[ ! -e fail ]]' >"$folder/bin/pip"
chmod +x "$folder/bin/pip"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def install(folder: Path) -> "subprocess.Popen[bytes]":
    # As a user calls it, not as a part of `make test`.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.Popen(["make", "install", "PYTHON=./python"], cwd=folder, env=environment)


def test_an_interrupted_installation_starts_with_an_empty_folder(folder: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv/.installing").touch()
    assert install(folder).wait(timeout=30) == 0
    assert "--clear" in (folder / "venvs.txt").read_text()
    assert (folder / ".venv/.installed-to-run").exists() and not (folder / ".venv/.installing").exists()


def test_a_failed_installation_is_repeated_without_clearing(folder: Path) -> None:
    (folder / "fail").touch()
    assert install(folder).wait(timeout=30) != 0
    (folder / "fail").unlink()
    assert install(folder).wait(timeout=30) == 0
    assert "--clear" not in (folder / "venvs.txt").read_text()


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_the_second_of_two_calls_uses_what_the_first_installed(folder: Path) -> None:
    both = install(folder), install(folder)
    assert [call.wait(timeout=30) for call in both] == [0, 0]
    assert (folder / "venvs.txt").read_text().splitlines() == ["-m venv .venv"]
