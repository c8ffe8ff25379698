"""The result of a command, and the one place that prints it: on the terminal, or as --json."""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import BertbenchError, StorageError
from common.redact import terminal_text

if TYPE_CHECKING:
    from analysis.diagnose.finding import Finding
    from analysis.render.tables import Block
    from bench.cli.options import Tables

_NARROWEST = 40
_DEFAULT_WIDTH = 150
"""Characters of a line where the output is no terminal."""
_MOST_PROBLEMS = 20
_MOST_FILES = 4
"""Files of one folder that are named; more are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a command, for programs and for people."""

    document: Any = None
    """Plain JSON values: what --json prints; None where there is nothing for programs."""
    blocks: "Sequence[Block]" = ()
    """What the terminal shows, in this order."""
    raw: str = ""
    """What stdout gets to the letter, for other programs: a job script."""
    written: Sequence[Path] = ()
    """Files that were made, named below the blocks."""
    notes: Sequence[str] = ()
    """What the user should know besides, on the terminal's stderr; the document has it in its own form."""
    problems: Sequence[str] = ()
    """What went wrong or could not be read, on stderr, with --json too."""
    failure: BertbenchError | None = None
    """What ended the command after there was something to show; it decides the exit code."""
    code: int = 0
    """Exit code."""
    at_once: bool = False
    """Whether the process ends without Python's own ending: threads of a broken process group must not hold it."""


def show(result: Result, as_json: bool) -> int:
    """Print a result and return its exit code. Raises its failure, after everything else was printed."""
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
    """Return how many characters a line may have: the terminal's, or 150 where the output is no terminal."""
    return max(_NARROWEST, shutil.get_terminal_size((_DEFAULT_WIDTH, 0)).columns)


def findings_result(
    findings: "Sequence[Finding]", problems: Sequence[str], options: "Tables", *, code: int = 0, **about: Any
) -> Result:
    """Return findings as a result, their tables written where --csv asks for them.

    Args:
        findings: what to show.
        problems: what could not be read.
        options: how much is shown, and where CSV files go.
        code: exit code.
        about: further fields of the document.

    Raises:
        StorageError: a CSV file cannot be written.
    """
    from analysis.render.finding_tables import finding_blocks

    return Result(
        document=document(findings, problems, **about),
        blocks=finding_blocks(findings, options.rows or None),
        written=() if options.csv is None else write_csvs(findings, options.csv),
        problems=problems,
        code=code,
    )


def when_writable(write: Callable[[], Sequence[Path]]) -> tuple[Sequence[Path], StorageError | None]:
    """Write files; return them, or what went wrong, for Result.failure: a full disk must not hide what was found."""
    try:
        return write(), None
    except StorageError as error:
        return (), error


def document(findings: "Sequence[Finding]", problems: Sequence[str], **about: Any) -> dict[str, Any]:
    """Return findings as plain JSON values: `findings` by name with title, sentence and rows, `problems`."""
    from analysis.diagnose.finding import plain_rows

    named = {
        finding.name: {"title": finding.title, "sentence": finding.sentence, "rows": plain_rows(finding.table)}
        for finding in findings
    }
    return {**about, "findings": named, "problems": list(problems)}


def write_csvs(findings: "Sequence[Finding]", folder: Path) -> list[Path]:
    """Write every finding that has rows as folder/<name>.csv, full precision; return the files."""
    from analysis.render.tables import write_frame

    written = [(folder / f"{finding.name}.csv", finding.table) for finding in findings if len(finding.table)]
    for path, table in written:
        write_frame(path, table)
    return [path for path, _ in written]
