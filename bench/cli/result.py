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
from bench.cli.progress import terminal_text
from common.atomic import storage_errors
from common.errors import BertbenchError, StorageError

if TYPE_CHECKING:
    from analysis.render.tables import Block
    from analysis.views import View

_NARROWEST = 40
_DEFAULT_WIDTH = 150
"""Line width in characters without a terminal."""
_MOST_PROBLEMS = 5
_MOST_FILES = 4
"""Maximum files of a folder to list by name; more are only counted."""


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
    sys.stdout.write(result.raw)
    if not as_json:
        _show_blocks(result)
    elif result.document is not None:
        print(json.dumps(result.document, indent=2, allow_nan=False))
    for text in () if as_json else dict.fromkeys(result.notes):
        print(f"note: {terminal_text(text)}", file=sys.stderr)
    problems = list(dict.fromkeys(result.problems))
    for text in problems[:_MOST_PROBLEMS]:
        print(f"bertbench: {terminal_text(text)}", file=sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        print(f"bertbench: and {len(problems) - _MOST_PROBLEMS:,} more such lines: --json has all", file=sys.stderr)
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
        print("\n".join(["", *map(printable, lines)] if result.blocks else map(printable, lines)))


def terminal_width() -> int:
    """Return the line width in characters: that of the terminal, or 150 without one."""
    return max(_NARROWEST, shutil.get_terminal_size((_DEFAULT_WIDTH, 0)).columns)


ALL_TABLES = "All tables: --full, --csv DIR, --markdown FILE or --json."


def of_view(
    view: "View",
    options: Printed,
    title: str = "",
    rest: str = "",
    code: int = 0,
    facts: Sequence[tuple[str, str]] = (),
) -> Result:
    """Return an answer as a result on one screen, or whole for --full; write it for --csv and --markdown.

    Args:
        view: the answer.
        options: what to print and to write; the failure of the result is that it cannot be written.
        title: heading of the Markdown file.
        rest: where a screen says that everything else is.
        code: exit code.
        facts: what to show below: files, further commands.
    """
    from analysis.render.tables import Facts

    tables = options if isinstance(options, Tables) else Tables()
    written, notes, failure = _write_tables(view, tables.csv)
    if (path := tables.markdown) is not None:
        failure = failure or when_writable(lambda: _append(path, f"### {title}\n\n{view.markdown()}"))[1]
    lines = min(len(view.problems), _MOST_PROBLEMS)
    return Result(
        document=view.document,
        blocks=[
            *(view.blocks if tables.full else view.shown(terminal_width(), lines, rest)),
            *([Facts(facts)] if facts else []),
        ],
        written=written,
        notes=notes,
        problems=view.problems,
        failure=failure,
        code=code,
    )


def _append(path: Path, text: str) -> Sequence[Path]:
    with storage_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(text)
    return ()


def when_writable(write: Callable[[], Sequence[Path]]) -> tuple[Sequence[Path], StorageError | None]:
    """Write files; return them, or the error for Result.failure, so that a full disk does not hide the result."""
    try:
        return write(), None
    except StorageError as error:
        return (), error


def _write_tables(view: "View", folder: Path | None) -> tuple[Sequence[Path], Sequence[str], StorageError | None]:
    """Write tables into the folder of --csv; return them, a note on others that are there, and why they cannot be."""
    if folder is None:
        return (), (), None
    written, failure = when_writable(lambda: view.write_tables(folder))
    others = [] if failure else sorted(path.name for path in set(folder.glob("*.csv")) - set(written))
    if not others:
        return written, (), failure
    named = ", ".join(others[:_MOST_FILES]) + (" and others" if len(others) > _MOST_FILES else "")
    return written, (f"{folder} also has tables that are not of this result: {named}",), None
