"""bench/measure_throughput_*.sh and profiling/measure_compute_util_*.sh, with a stand-in for `bertbench`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VARIABLES = ("BATCH_SIZES", "DEVICES", "PRECISION", "PRESET", "SEQ_LEN", "IMPLEMENTATIONS", "DATA", "OUT", "PADDING")
COMMON = "--preset base --precisions auto --seq-lens {tokens} --batch-sizes 8 16 32 64"
COMMANDS = {
    "bench/measure_throughput": f"throughput {{task}} {COMMON} --implementations bertbench --data synthetic "
    "--out runs/throughput-{task}",
    "profiling/measure_compute_util": f"profile {{task}} --profiler torch --start 10 --stop 13 {COMMON} "
    "--data synthetic --out runs/compute-util-{task}-torch",
}
SCRIPTS = {
    f"{body}_{task}.sh": command.format(task=task, tokens=tokens)
    for body, command in COMMANDS.items()
    for task, tokens in (("pretrain", 128), ("squad", 384))
}
"""Each with the command that it runs when nothing is set."""
GIVEN = {
    "BATCH_SIZES": "1 2", "DEVICES": "1 4", "PRECISION": "fp16", "PRESET": "tiny", "SEQ_LEN": "64",
    "DATA": "/my data", "OUT": "out", "PADDING": "fixed", "IMPLEMENTATIONS": "hf bertbench",
}  # fmt: skip
# It records its call.
FAKE = """#!/bin/sh
printf '%s ' "$@" >called
exit "${CODE:-0}"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("bench", "profiling", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for script in (*ROOT.glob("bench/measure_*.sh"), *ROOT.glob("profiling/measure_*.sh")):
        shutil.copy(script, tmp_path / script.parent.name)
    fake = tmp_path / ".venv" / "bin" / "bertbench"
    fake.write_text(FAKE, encoding="ascii")
    fake.chmod(0o755)
    return tmp_path


def call(checkout: Path, script: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment = plain | variables
    command = ["bash", script, *words]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def called(checkout: Path) -> str:
    return (checkout / "called").read_text(encoding="utf-8").strip()


def names(script: str) -> list[str]:
    """The variables that a script reads."""
    absent = {"PADDING"} if "pretrain" in script else set()
    absent |= {"IMPLEMENTATIONS"} if "profiling" in script else set()
    return [name for name in VARIABLES if name not in absent]


@pytest.mark.parametrize("script", SCRIPTS)
def test_defaults_are_those_of_the_task(script: str, checkout: Path) -> None:
    assert call(checkout, script).returncode == 0
    assert called(checkout) == SCRIPTS[script]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_variable_and_word_reaches_the_command(script: str, checkout: Path) -> None:
    words = ["nsys", "3", "5"] if "profiling" in script else ["3", "5"]
    done = call(checkout, script, *words, **{name: GIVEN[name] for name in names(script)})
    assert done.returncode == 0, done.stderr
    told = called(checkout)
    options = [
        "--preset tiny", "--precisions fp16", "--seq-lens 64", "--batch-sizes 1 2", "--devices 1 4",
        "--start 3 --stop 5", "--data /my data --out out",
    ]  # fmt: skip
    options += ["--profiler nsys"] if "profiling" in script else ["--implementations hf bertbench"]
    options += ["--padding fixed"] if "squad" in script else []
    assert [option for option in options if f" {option} " not in f" {told} "] == []
    assert told.count("--") == sum(option.count("--") for option in options), "and no other option"


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_every_variable_and_is_no_more_than_the_comment_on_top(script: str, checkout: Path) -> None:
    done = call(checkout, script, "--help")
    assert done.returncode == 0 and [name for name in names(script) if f"  {name} " not in done.stdout] == []
    assert "source" not in done.stdout and "shellcheck" not in done.stdout
