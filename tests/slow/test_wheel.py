"""The wheel, built from the source distribution, works without the repository: nothing the code reads is missing."""

import csv
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.cli import ROOT, SHORT, TINY
from support.profiles import sample

PACKAGES = ("analysis", "bench", "bert", "common", "records")
# What only a clone has: scripts that run the command, and the guide to them.
_OF_A_CLONE = (".sh", ".md")


def called(*words: str, cwd: Path, timeout: float = 240) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", *PACKAGES, "bertbench.py"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0 or not listed.stdout:
        pytest.skip("this is no checkout of git")
    return listed.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of what the source distribution holds, so that each has all that the next step needs."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    called("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone), cwd=folder)
    build = "import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])"
    called(sys.executable, "-c", build, str(folder), cwd=clone)
    (packed,) = folder.glob("bertbench-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    build = "import setuptools.build_meta as build, sys; build.build_wheel(sys.argv[1])"
    called(sys.executable, "-c", build, str(folder), cwd=source)
    (built,) = folder.glob("bertbench-*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path) -> Path:
    """`bertbench` of an environment with the wheel and, behind it, the packages that tests run with."""
    environment = wheel.parent / "environment"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    called(str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel), cwd=wheel.parent)
    site = called(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=wheel.parent).strip()
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = called(str(python), "-c", "import bench; print(bench.__file__)", cwd=wheel.parent)
    assert where.startswith(site)
    return environment / "bin" / "bertbench"


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in tracked() if not name.endswith(_OF_A_CLONE)}


def test_an_installed_command_measures_reports_and_analyzes(command: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--batch-sizes", "2", "--out", str(run)]
    called(str(command), "throughput", "pretrain", *TINY, *SHORT, *options, cwd=tmp_path)
    called(str(command), "report", str(run), cwd=tmp_path)
    with (run / "report" / "results.csv").open() as rows:
        (row,) = csv.DictReader(rows)
    assert row["status"] == "ok" and float(row["samples_per_second"]) > 0
    assert "<html" in (run / "report" / "report.html").read_text()
    trace = sample("kineto", tmp_path / "trace.json")
    assert json.loads(called(str(command), "analyze", str(trace), "--json", cwd=tmp_path))["findings"]


def test_an_installed_command_finds_its_templates(command: Path, tmp_path: Path) -> None:
    python = str(command.with_name("python"))
    script = called(str(command), "submit", "slurm", "--gpus-per-node", "1", "--", "true", cwd=tmp_path)
    assert "#SBATCH" in script
    loops = (
        "import os, torch; from bert.speed.native import VARIABLE, loops; os.environ[VARIABLE] = '1'; print(loops())"
    )
    assert "CDLL" in called(python, "-c", loops, cwd=tmp_path)
