"""bert/run_*.sh show their help, refuse arguments, and name what they need: options are environment variables.

Likewise bert/data/create_datasets_from_start.sh, with a stand-in for `bertbench`.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT

SCRIPTS = pytest.mark.parametrize("script", ["run_squad.sh", "run_pretraining.sh"])


def called(script: str, *words: str, **given: str) -> "subprocess.CompletedProcess[str]":
    variables = {**{name: value for name, value in os.environ.items() if name != "DATA"}, **given}
    argv = ["bash", str(ROOT / "bert" / script), *words]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)


@SCRIPTS
def test_help_names_the_variables(script: str) -> None:
    done = called(script, "--help")
    assert done.returncode == 0 and "DATA" in done.stdout and not done.stderr


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder beside a checkout whose `bertbench` prints how it is called."""
    for folder in ("checkout/bert/data", "checkout/.venv/bin", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "bert/data/create_datasets_from_start.sh", tmp_path / "checkout/bert/data")
    fake = tmp_path / "checkout/.venv/bin/bertbench"
    fake.write_text('#!/bin/sh\nprintf "%s " "$@"\n', encoding="ascii")
    fake.chmod(0o755)
    return tmp_path / "elsewhere"


def prepared(elsewhere: Path, **given: str) -> str:
    script = elsewhere.parent / "checkout/bert/data/create_datasets_from_start.sh"
    environment = {"PATH": os.environ["PATH"], **given}
    argv = ["bash", str(script), "out"]
    return subprocess.run(argv, env=environment, cwd=elsewhere, capture_output=True, text=True, check=True).stdout


def test_paths_are_those_of_the_folder_of_the_caller(elsewhere: Path) -> None:
    told = prepared(elsewhere, VOCAB="vocab.txt")
    assert f" --vocab {elsewhere / 'vocab.txt'} " in told and f" --output {elsewhere / 'out'} " in told
