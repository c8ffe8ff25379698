"""bert/run_*.sh show their help, refuse arguments, and name what they need: options are environment variables."""

import os
import subprocess

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


@SCRIPTS
def test_an_argument_is_refused(script: str) -> None:
    done = called(script, "extra")
    assert done.returncode == 2 and "DATA" in done.stdout and "extra" in done.stderr


@SCRIPTS
def test_missing_data_are_named(script: str) -> None:
    done = called(script)
    assert done.returncode == 2 and script in done.stderr and "DATA" in done.stderr


@pytest.mark.parametrize(("name", "value"), [("MAX_SECONDS", "1m"), ("MAX_SECONDS", "08"), ("PHASES", " ")])
def test_values_that_pretraining_cannot_use_are_named(name: str, value: str) -> None:
    done = called("run_pretraining.sh", **{"DATA": "shards", name: value})
    assert done.returncode == 2 and name in done.stderr and "line " not in done.stderr
