"""The result of a command, and how it is printed: on the terminal or as --json."""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli.options import Printed, Tables
from bench.cli.progress import note, terminal_text
from common.atomic import storage_errors
from common.errors import BertbenchError, StorageError

if TYPE_CHECKING:
    from analysis.render.tables import Block
    from analysis.views import View

_NARROWEST, _WIDTH_WITHOUT_TERMINAL = 40, 150
_MOST_PROBLEMS = 5
_MOST_FILES = 4
"""Maximum files of a folder to list by name; more are only counted."""
ALL_TABLES = "All tables: --full, --csv DIR, --markdown FILE or --json."


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a command, for programs and for people."""

    document: Any = None
    """Plain JSON values for --json; None if there are none."""
    blocks: "Sequence[Block]" = ()
    """Output on the terminal, in this order."""
    raw: str = ""
    """Unformatted output on stdout for other programs, such as a job script."""
    written: Sequence[Path] = ()
    """Files written, listed below the blocks."""
    notes: Sequence[str] = ()
    """Notes for the user on stderr; the document has its own form of them."""
    problems: Sequence[str] = ()
    """Errors and unreadable input, on stderr, with --json too."""
    failure: BertbenchError | None = None
    """The error that ended the command after it had a result; it sets the exit code."""
    code: int = 0
    """Exit code."""
    at_once: bool = False
    """Whether to exit without Python's cleanup, which threads of a broken process group would block."""


def show(result: Result, as_json: bool) -> int:
    """Print a result and return its exit code. Raises its failure after printing everything else."""
    print(result.raw, end="")
    if not as_json:
        _show_blocks(result)
        for text in dict.fromkeys(result.notes):
            note(text)
    elif result.document is not None:
        print(json.dumps(result.document, indent=2, allow_nan=False))
    problems = list(dict.fromkeys(result.problems))
    more = [f"and {len(problems) - _MOST_PROBLEMS:,} more such lines: --json has all"]
    for text in [*problems[:_MOST_PROBLEMS], *(more if len(problems) > _MOST_PROBLEMS else [])]:
        print(f"bertbench: {terminal_text(text)}", file=sys.stderr)
    if result.failure is not None:
        raise result.failure
    if result.at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result.code)
    return result.code


def _show_blocks(result: Result) -> None:
    from analysis.render.terminal import blocks_text, printable

    if result.blocks:
        print(blocks_text(result.blocks, terminal_width()))
    folders = Counter(path.parent for path in result.written)
    named = [path for path in result.written if folders[path.parent] <= _MOST_FILES]
    lines = [f"wrote {path}" for path in named]
    lines += [f"wrote {count} files into {folder}" for folder, count in folders.items() if count > _MOST_FILES]
    if lines:
        print("\n".join([*[""][: len(result.blocks)], *map(printable, lines)]))


def terminal_width() -> int:
    """Return the line width in characters: that of the terminal, or 150 without one."""
    return max(_NARROWEST, shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 0)).columns)


def of_view(
    view: "View",
    options: Printed,
    title: str = "",
    rest: str = "",
    code: int = 0,
    facts: Sequence[tuple[str, str]] = (),
) -> Result:
    """Return an answer as a result on one screen, or whole for --full; write it for --csv and --markdown.

    `title` is the heading of the Markdown file, `rest` says where everything else is, `facts` are shown below.
    """
    from analysis.render.tables import Facts
    from analysis.render.terminal import blocks_markdown

    tables = options if isinstance(options, Tables) else Tables(markdown=getattr(options, "markdown", None))
    lines_after = min(len(view.problems), _MOST_PROBLEMS)
    blocks = view.blocks if tables.full else view.shown(terminal_width(), lines_after, rest)

    def write() -> Sequence[Path]:
        if tables.markdown is not None:
            with storage_errors(tables.markdown), tables.markdown.open("a", encoding="utf-8") as file:
                file.write(f"### {title}\n\n{blocks_markdown(blocks)}")
        return [] if tables.csv is None else view.write_tables(tables.csv)

    written, failure = when_writable(write)
    return Result(
        document=view.document,
        blocks=[*blocks, *([Facts(facts)] if facts else [])],
        written=written,
        problems=view.problems,
        failure=failure,
        code=code,
    )


def when_writable(write: Callable[[], Sequence[Path]]) -> tuple[Sequence[Path], StorageError | None]:
    """Write files; return them, or the error for Result.failure, so that a full disk does not hide the result."""
    try:
        return write(), None
    except StorageError as error:
        return (), error
