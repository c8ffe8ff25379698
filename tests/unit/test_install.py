"""`make install` that is interrupted or called twice, with a Python whose pip only waits."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT, wait_for

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
# Stands for python3: `-m venv [--clear] FOLDER` makes a pip that records its start and its end.
PYTHON = """#!/usr/bin/env bash
[[ $1 == -m ]] || exit 0
echo "$*" >>venvs.txt
folder=${!#}
mkdir -p "$folder/bin"
cat >"$folder/bin/pip" <<'PIP'
#!/usr/bin/env bash
[[ $1 == install ]] || exit 0
echo "$$" >>begun.txt
for _ in $(seq 200); do [[ ! -e wait ]] || sleep 0.05; done
[[ ! -e fail ]] || exit 1
echo "$$" >>ended.txt
PIP
chmod +x "$folder/bin/pip"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "wait").touch()
    return tmp_path


def install(folder: Path) -> "subprocess.Popen[str]":
    # Of its own group: a signal reaches make alone.
    return subprocess.Popen(
        ["make", "install", "PYTHON=./python"],
        cwd=folder,
        # As a user calls it, not as a part of `make test`.
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def runs(process: str) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_sigterm_to_make_ends_pip_and_the_next_call_starts_anew(folder: Path) -> None:
    first = install(folder)
    wait_for(lambda: bool(lines(folder / "begun.txt")), "pip")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=10)
    assert first.returncode != 0
    (pip,) = lines(folder / "begun.txt")
    wait_for(lambda: not runs(pip), "the end of pip")
    assert not lines(folder / "ended.txt") and not (folder / ".venv/.installed-to-run").exists()
    (folder / "wait").unlink()
    again = install(folder)
    assert again.wait(timeout=30) == 0, again.communicate()
    assert (folder / ".venv/.installed-to-run").exists()
    assert ["--clear" in line for line in (folder / "venvs.txt").read_text().splitlines()] == [False, True]


def test_a_failed_installation_is_repeated_without_clearing(folder: Path) -> None:
    (folder / "wait").unlink()
    (folder / "fail").write_text("")
    failed = install(folder)
    assert failed.wait(timeout=30) != 0
    (folder / "fail").unlink()
    assert install(folder).wait(timeout=30) == 0
    assert "--clear" not in (folder / "venvs.txt").read_text()


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_two_calls_install_one_after_the_other(folder: Path) -> None:
    first = install(folder)
    wait_for(lambda: bool(lines(folder / "begun.txt")), "pip")
    second = install(folder)
    assert second.stdout is not None
    assert "waiting" in second.stdout.readline()
    assert len(lines(folder / "begun.txt")) == 1
    (folder / "wait").unlink()
    assert (first.wait(timeout=30), second.wait(timeout=30)) == (0, 0)
    assert lines(folder / "begun.txt") == lines(folder / "ended.txt")
    assert len(lines(folder / "begun.txt")) == 1, "the second call finds what the first installed"
