"""Commands run in this process: what they come to, and what they print."""

import io
import shlex
import signal
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from analysis.render.tables import Block, Facts
from analysis.render.terminal import DEFAULT_WIDTH, blocks_text
from bench.cli.dispatch import read, result_of
from bench.cli.main import run
from bench.cli.result import Result


@dataclass(frozen=True, slots=True)
class Called:
    """What a command printed."""

    stdout: str
    stderr: str


def called(*words: object, code: int = 0) -> Called:
    """Run a command line as a process would, without the seconds that its start takes; check its exit code.

    What the command starts, such as the ranks of a training, are processes of their own.
    """
    out, err, before = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            found = run([str(word) for word in words])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == code, err.getvalue()
    return Called(out.getvalue(), err.getvalue())


def result(*words: object) -> Result:
    """Run a command. Raises what it refuses, and what ends it after there is something to show."""
    found = result_of([str(word) for word in words])
    if found.failure is not None:
        raise found.failure
    return found


def document(*words: object) -> Any:
    """Run a command with --json and return what it would print."""
    return result(*words, "--json").document


def text(blocks: Sequence[Block], width: int = DEFAULT_WIDTH) -> str:
    """Return blocks as a terminal shows them."""
    return blocks_text(blocks, width)


def facts(blocks: Sequence[Block]) -> list[tuple[str, str]]:
    """Return every fact of some blocks."""
    return [row for block in blocks if isinstance(block, Facts) for row in block.rows]


def parses(command: str) -> None:
    """Fail for a command that `bertbench` would refuse to parse."""
    program, *words = shlex.split(command)
    assert program == "bertbench"
    read(words)
