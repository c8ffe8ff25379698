"""profiling/measure_compute_util_*.sh, with a stand-in for `bertbench` that records how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LENGTHS = {"pretrain": "128", "squad": "384"}
VARIABLES = ("BATCH_SIZES", "DEVICES", "PRECISION", "PRESET", "SEQ_LEN", "DATA", "OUT", "PADDING")
FAKE = """#!/bin/sh
printf '%s ' "$@" >called
while [ "$1" != --out ]; do shift; done
mkdir -p "$2" && [ -z "$TABLE" ] || printf 'batch,utilization\\n8,0.5\\n' >"$2/$TABLE"
exit "${CODE:-0}"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("profiling", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for script in (ROOT / "profiling").glob("measure_compute_util*.sh"):
        shutil.copy(script, tmp_path / "profiling")
    fake = tmp_path / ".venv" / "bin" / "bertbench"
    fake.write_text(FAKE, encoding="ascii")
    fake.chmod(0o755)
    return tmp_path


def call(checkout: Path, *words: str, task: str = "pretrain", **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = (
        {name: value for name, value in os.environ.items() if name not in VARIABLES} | {"TABLE": ""} | variables
    )
    command = ["bash", f"profiling/measure_compute_util_{task}.sh", *words]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def called(checkout: Path) -> str:
    return (checkout / "called").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize(("task", "length"), LENGTHS.items())
def test_defaults_are_torch_the_iterations_10_to_13_and_one_device(task: str, length: str, checkout: Path) -> None:
    assert call(checkout, task=task).returncode == 0
    assert called(checkout) == (
        f"profile {task} --profiler torch --start 10 --stop 13 --preset base --precisions auto --seq-lens {length} "
        f"--batch-sizes 8 16 32 64 --data synthetic --out runs/compute-util-{task}-torch"
    )


@pytest.mark.parametrize("task", LENGTHS)
def test_every_variable_and_word_reaches_the_command(task: str, checkout: Path) -> None:
    variables = {"BATCH_SIZES": "1 2", "DEVICES": "1 4", "PRECISION": "fp16", "PRESET": "tiny", "SEQ_LEN": "64"}
    variables |= {"DATA": "/my data", "OUT": "out", "PADDING": "fixed"}
    assert call(checkout, "nsys", "3", "5", task=task, **variables).returncode == 0
    padding = "--padding fixed " if task == "squad" else ""
    assert called(checkout) == (
        f"profile {task} --profiler nsys --start 3 --stop 5 --preset tiny --precisions fp16 --seq-lens 64 "
        f"--batch-sizes 1 2 --devices 1 4 {padding}--data /my data --out out"
    )


@pytest.mark.parametrize(
    ("profiler", "table"),
    [
        ("nsys", "compute_utilization.csv"),
        ("nvprof", "compute_utilization.csv"),
        ("torch", "compute_utilization.csv"),
        ("ncu", "core_utilization.csv"),
    ],
)
def test_the_table_is_printed_at_the_end(profiler: str, table: str, checkout: Path) -> None:
    done = call(checkout, profiler, TABLE=table)
    assert done.returncode == 0
    assert done.stdout.endswith(f"runs/compute-util-pretrain-{profiler}/{table}\nbatch,utilization\n8,0.5\n")


def test_a_sweep_that_failed_in_part_shows_what_there_is_and_keeps_its_code(checkout: Path) -> None:
    done = call(checkout, TABLE="compute_utilization.csv", CODE="3")
    assert done.returncode == 3 and "8,0.5" in done.stdout


def test_a_refusal_is_passed_on_and_an_old_table_is_not_shown(checkout: Path) -> None:
    assert call(checkout, TABLE="compute_utilization.csv").returncode == 0
    done = call(checkout, CODE="2")
    assert done.returncode == 2 and "8,0.5" not in done.stdout


def test_a_table_that_is_missing_is_named(checkout: Path) -> None:
    assert "compute_utilization.csv was not written" in call(checkout, CODE="3").stderr


@pytest.mark.parametrize("words", [["cow"], ["torch", "3"], ["torch", "3", "x"], ["torch", "1", "2", "3"], ["--loud"]])
def test_wrong_words_show_the_usage_and_run_nothing(words: list[str], checkout: Path) -> None:
    done = call(checkout, *words)
    assert done.returncode == 2 and "[nsys|ncu|nvprof|torch] [start] [stop]" in done.stdout
    assert not (checkout / "called").exists()


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize("task", LENGTHS)
def test_help_names_every_variable(task: str, word: str, checkout: Path) -> None:
    done = call(checkout, word, task=task)
    names = [name for name in VARIABLES if task == "squad" or name != "PADDING"]
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in names)
