"""bench/measure_throughput_*.sh, with a stand-in for `bertbench` that records how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VARIABLES = ("BATCH_SIZES", "DEVICES", "PRECISION", "PRESET", "SEQ_LEN", "IMPLEMENTATIONS", "DATA", "OUT", "PADDING")
LENGTHS = {"pretrain": "128", "squad": "384"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("bench", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for script in (ROOT / "bench").glob("measure_throughput*.sh"):
        shutil.copy(script, tmp_path / "bench")
    fake = tmp_path / ".venv" / "bin" / "bertbench"
    fake.write_text("#!/bin/sh\nprintf '%s ' \"$@\" >called\n", encoding="ascii")
    fake.chmod(0o755)
    return tmp_path


def call(checkout: Path, task: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = ["bash", f"bench/measure_throughput_{task}.sh", *words]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def called(checkout: Path) -> str:
    return (checkout / "called").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize(("task", "length"), LENGTHS.items())
def test_defaults_are_those_of_the_task(task: str, length: str, checkout: Path) -> None:
    assert call(checkout, task).returncode == 0
    assert called(checkout) == (
        f"throughput {task} --preset base --precisions auto --seq-lens {length} --batch-sizes 8 16 32 64 "
        f"--implementations bertbench --data synthetic --out runs/throughput-{task}"
    )


def test_every_variable_and_word_reaches_the_command(checkout: Path) -> None:
    variables = {"BATCH_SIZES": "1 2", "DEVICES": "1 4", "PRECISION": "fp16", "PRESET": "tiny", "SEQ_LEN": "64"}
    done = call(
        checkout, "squad", "3", "5", **variables, IMPLEMENTATIONS="hf bertbench", DATA="/my data", OUT="out",
        PADDING="fixed",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert called(checkout) == (
        "throughput squad --preset tiny --precisions fp16 --seq-lens 64 --batch-sizes 1 2 "
        "--implementations hf bertbench --devices 1 4 --padding fixed --start 3 --stop 5 --data /my data --out out"
    )


@pytest.mark.parametrize("task", LENGTHS)
@pytest.mark.parametrize("words", [["3"], ["1", "2", "3"], ["--loud"]])
def test_wrong_words_show_the_usage_and_run_nothing(words: list[str], task: str, checkout: Path) -> None:
    done = call(checkout, task, *words)
    assert done.returncode == 2 and f"bash bench/measure_throughput_{task}.sh [start] [stop]" in done.stdout
    assert not (checkout / "called").exists()


@pytest.mark.parametrize("task", LENGTHS)
def test_help_names_every_variable_and_is_no_more_than_the_comment_on_top(task: str, checkout: Path) -> None:
    done = call(checkout, task, "--help")
    names = [name for name in VARIABLES if task == "squad" or name != "PADDING"]
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in names)
    assert "source" not in done.stdout and "shellcheck" not in done.stdout


def test_the_body_alone_names_the_scripts(checkout: Path) -> None:
    done = subprocess.run(
        ["bash", "bench/measure_throughput.sh"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "measure_throughput_squad.sh" in done.stderr
