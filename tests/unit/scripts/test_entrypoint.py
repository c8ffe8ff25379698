"""docker/entrypoint.sh: a home and a name for any uid, and for --profiling one capability for it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import BASH, ROOT, Host

SHOW = 'echo "$HOME|$USER|$LOGNAME|$1"; exit 5'
# Where they stand in CapEff and the like.
BITS = {"chown": 0, "sys_admin": 21, "perfmon": 38}


def workspace(folder: Path) -> Path:
    """A copy of what the image has in /workspace; returns the entrypoint."""
    docker = folder / "workspace" / "docker"
    docker.mkdir(parents=True)
    (docker.parent / "runs").mkdir()
    for name in ("entrypoint.sh", "greeting.txt"):
        shutil.copy(ROOT / "docker" / name, docker)
    return docker / "entrypoint.sh"


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    return workspace(tmp_path)


def show(host: Host, entrypoint: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Start the entrypoint with a command that shows what it was given."""
    return host.run(entrypoint, BASH, "-c", SHOW, "x", "a b", **extra)


def capabilities(status: str) -> dict[str, int]:
    return {name: int(value, 16) for name, value in re.findall(r"^Cap(\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)}


# ---- home, name, command ----


def test_becomes_the_command_with_its_exit_code(host: Host, entrypoint: Path) -> None:
    outcome = show(host, entrypoint, USER="ada", LOGNAME="lovelace")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (5, f"{host.folder}|ada|lovelace|a b\n", "")


def test_uid_without_a_name_gets_a_home_and_a_name(host: Host, entrypoint: Path) -> None:
    host.program("id", "echo 54321; [[ $1 == -u ]]")
    host.program("getent", "exit 2")
    outcome = show(host, entrypoint, HOME="/")
    home = host.folder / "tmp/home-54321"
    assert outcome.stdout == f"{home}|54321|54321|a b\n"
    assert (outcome.returncode, outcome.stderr) == (5, "")
    assert home.is_dir()


# ---- greeting ----


# ---- another user with one capability ----


@pytest.mark.parametrize(
    ("run_as", "groups"), [("54321:54322:", "54322"), ("54321:54322:54322,54399", "54322 54399")], ids=["one", "two"]
)
@pytest.mark.parametrize("name", BITS)
def test_run_as_really_leaves_exactly_one_capability(open_folder: Path, name: str, run_as: str, groups: str) -> None:
    """Under no-new-privileges, as start_container.sh starts every container."""
    held = capabilities(Path("/proc/self/status").read_text(encoding="utf-8"))
    if not held["Prm"] & held["Bnd"] & 1 << BITS[name]:
        pytest.skip(f"these tests run without CAP_{name.upper()}")
    entrypoint = workspace(open_folder)
    (open_folder / "tmp").mkdir()
    (open_folder / "tmp").chmod(0o1777)
    show = 'id -u; id -g; id -G; echo "$HOME"; env; cat /proc/self/status'
    variables = {"PATH": os.environ["PATH"], "HOME": "/root", "USER": "root", "TMPDIR": f"{open_folder}/tmp"}
    variables |= {"BERTBENCH_RUN_AS": run_as, "BERTBENCH_CAPABILITY": name}
    argv = ["setpriv", "--no-new-privs", "bash", str(entrypoint), "bash", "-c", show]
    outcome = subprocess.run(argv, cwd=open_folder, env=variables, capture_output=True, text=True, timeout=30)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split("\n")[:4] == ["54321", "54322", groups, f"{open_folder}/tmp/home-54321"]
    assert "USER=54321\n" in outcome.stdout
    assert "NoNewPrivs:\t1\n" in outcome.stdout
    assert "BERTBENCH_RUN_AS" not in outcome.stdout
    assert capabilities(outcome.stdout) == dict.fromkeys(("Inh", "Prm", "Eff", "Bnd", "Amb"), 1 << BITS[name])
    assert (open_folder / "tmp/home-54321").stat().st_uid == 54321
    assert "runs cannot be written by uid 54321" in outcome.stderr
