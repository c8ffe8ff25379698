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

from bench.cli.progress import terminal_text
from common.atomic import storage_errors
from common.errors import BertbenchError, StorageError

if TYPE_CHECKING:
    from analysis.diagnose.advice import Advice
    from analysis.diagnose.finding import Finding
    from analysis.render.tables import Block
    from analysis.render.terminal import Screen
    from bench.cli.options import Tables

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


def findings_result(
    findings: "Sequence[Finding]",
    problems: Sequence[str],
    options: "Tables",
    advice: "Sequence[Advice] | None" = None,
    *,
    title: str = "",
    page: str = "",
    code: int = 0,
    **about: Any,
) -> Result:
    """Return findings as a result on one screen, or whole for --full; write them for --csv and --markdown.

    Args:
        findings: findings to show.
        problems: unreadable input.
        options: what to print and to write; the failure of the result is that it cannot be written.
        advice: the largest gain first; None for a command that advises nothing.
        title: heading of the Markdown file.
        page: command that makes a page of them.
        code: exit code.
        about: further fields of the document.
    """
    from analysis.render.tables import advice_lines, finding_blocks
    from analysis.render.terminal import screen_of

    written, left, failure = tables_into(findings, options.csv)
    if advice is not None:
        about["advice"] = [one.to_json() for one in advice]

    def every() -> "list[Block]":
        return [*advice_lines(advice or ()), *finding_blocks(findings)]

    failure = failure or markdown_into(options.markdown, title, every)
    rest = f"{REST} As a page: {page}" if page else REST
    return Result(
        document=document(findings, problems, **about),
        blocks=every() if options.full else on_screen(screen_of(findings, advice or (), rest), problems),
        written=written,
        notes=left,
        problems=problems,
        failure=failure,
        code=code,
    )


REST = "All tables: --full, --csv DIR, --markdown FILE or --json."


def on_screen(screen: "Screen", problems: Sequence[str] = (), lines_after: int = 0) -> "Sequence[Block]":
    """Return the blocks of one screen, less the lines of problems and the lines that are printed after it."""
    from analysis.render.terminal import MOST_LINES

    return screen.blocks(terminal_width(), MOST_LINES - min(len(problems), _MOST_PROBLEMS) - lines_after)


def markdown_into(path: Path | None, title: str, blocks: "Callable[[], Sequence[Block]]") -> StorageError | None:
    """Append blocks to the file of --markdown, below a heading; return why that failed."""
    if path is None:
        return None
    from analysis.render.terminal import blocks_markdown

    def write() -> Sequence[Path]:
        with storage_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(f"### {title}\n\n{blocks_markdown(blocks())}")
        return ()

    return when_writable(write)[1]


def when_writable(write: Callable[[], Sequence[Path]]) -> tuple[Sequence[Path], StorageError | None]:
    """Write files; return them, or the error for Result.failure, so that a full disk does not hide the result."""
    try:
        return write(), None
    except StorageError as error:
        return (), error


def tables_into(
    findings: "Sequence[Finding]", folder: Path | None
) -> tuple[Sequence[Path], Sequence[str], StorageError | None]:
    """Write tables into the folder of --csv; return them, a note on others that are there, and why they cannot be."""
    if folder is None:
        return (), (), None
    written, failure = when_writable(lambda: write_csvs(findings, folder))
    others = [] if failure else sorted(path.name for path in set(folder.glob("*.csv")) - set(written))
    if not others:
        return written, (), failure
    named = ", ".join(others[:_MOST_FILES]) + (" and others" if len(others) > _MOST_FILES else "")
    return written, (f"{folder} also has tables that are not of this result: {named}",), None


def document(findings: "Sequence[Finding]", problems: Sequence[str], **about: Any) -> dict[str, Any]:
    """Return findings as plain JSON values: `findings` by name with title, sentence and rows, `problems`."""
    from analysis.diagnose.finding import plain_rows

    named = {
        finding.name: {"title": finding.title, "sentence": finding.sentence, "rows": plain_rows(finding.table)}
        for finding in findings
    }
    return {**about, "findings": named, "problems": list(problems)}


def write_csvs(findings: "Sequence[Finding]", folder: Path) -> list[Path]:
    """Write every finding with rows to folder/<name>.csv in full precision; return the files."""
    from analysis.render.tables import write_frame

    written = [(folder / f"{finding.name}.csv", finding.table) for finding in findings if len(finding.table)]
    for path, table in written:
        write_frame(path, table)
    return [path for path, _ in written]
