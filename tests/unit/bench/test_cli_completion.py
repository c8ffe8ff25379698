"""The scripts for completion: in bash as it runs them, in the other shells that every option is in them."""

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
from support.refusals import refused

from bench.cli.dispatch import COMMANDS, options_of, result_of
from bench.cli.form import leaves
from bert.model.config import PRESETS
from bert.tasks import usable_tasks

SHELLS = ("bash", "zsh", "fish")
_CHECK = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
# What readline does: the function of `complete` sees the words and the place of the cursor, and leaves COMPREPLY.
_PRESS_TAB = """
source "$1"; shift
function=$(complete -p bertbench | sed -n 's/.*-F \\([^ ]*\\) .*/\\1/p')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function" bertbench "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@functools.cache
def script(shell: str) -> str:
    return result_of(["completion", shell]).raw


@pytest.fixture(scope="module")
def in_bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "bertbench"
    path.write_text(script("bash"), encoding="utf-8")
    return path


def completed(path: Path, words: str) -> list[str]:
    """What bash offers at the end of a command line."""
    command = ["bash", "--norc", "-c", _PRESS_TAB, "bash", str(path), *words.split(" ")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent)
    assert not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("bertbench ", [*COMMANDS]),
        ("bertbench thr", ["throughput"]),
        ("bertbench throughput ", [*usable_tasks()]),
        ("bertbench throughput pretrain --presets ", [*PRESETS]),
        ("bertbench throughput pretrain --presets tiny mi", ["mini"]),
        ("bertbench throughput pretrain --batch-s", ["--batch-sizes", "--batch-size"]),
        ("bertbench throughput pretrain --preset mi", ["mini"]),
        ("bertbench throughput gap --head ", ["concat", "mul", "segment", "span"]),
        ("bertbench train classify --enc", ["--encoding"]),
        ("bertbench eval ", ["squad", "gap", "glue"]),
        ("bertbench data squad --no-", ["--no-lower-case"]),
        ("bertbench submit slurm --cont", ["--container"]),
        ("bertbench report bertb", ["bertbench"]),
        ("bertbench completion ", [*SHELLS]),
    ],
)
def test_bash_completes(in_bash: Path, words: str, offered: list[str]) -> None:
    assert sorted(completed(in_bash, words)) == sorted(offered)


def test_options_of_other_tasks_are_not_offered(in_bash: Path) -> None:
    offered = completed(in_bash, "bertbench throughput pretrain --")
    assert "--presets" in offered and "--head" not in offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_in_the_script(shell: str) -> None:
    text = script(shell)
    for name in COMMANDS:
        assert name in text
        for options in options_of(name).values():
            missing = [leaf.flag for leaf in leaves(options) if not leaf.positional and leaf.flag[2:] not in text]
            assert not missing, (name, missing)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_finds_no_fault_in_the_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script(shell), encoding="utf-8")
    subprocess.run([*_CHECK[shell], str(path)], check=True)


def test_another_shell_is_refused() -> None:
    with refused("option-value"):
        result_of(["completion", "cmd"])
