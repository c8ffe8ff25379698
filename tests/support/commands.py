"""Commands run in this process: what they come to, without printing it."""

from collections.abc import Sequence
from typing import Any

from analysis.render.tables import Block, Facts
from analysis.render.terminal import DEFAULT_WIDTH, blocks_text
from bench.cli.dispatch import result_of
from bench.cli.result import Result


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
