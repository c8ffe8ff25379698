"""Shared by the commands that read profiles: findings as text, JSON or CSV files."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.diagnose.finding import Finding
from analysis.render.terminal import DEFAULT_WIDTH
from common.errors import UsageError
from common.redact import terminal_text

_NARROWEST = 40
_MOST_PROBLEMS = 20


def show(
    findings: Sequence[Finding], problems: Sequence[str], *, as_json: bool, csv: Path | None, rows: int, **about: Any
) -> None:
    """Print findings as tables or JSON, write them as CSV files, name the problems.

    Args:
        findings: what to show.
        problems: what could not be read; to stderr, or into the JSON.
        as_json: print JSON instead of tables.
        csv: folder for one CSV file per finding, made when it is not there; None for none.
        rows: rows of a table to print; 0 for all.
        about: further fields of the JSON document.

    Raises:
        StorageError: a CSV file cannot be written.
        UsageError: `rows` is below 0.
    """
    check_rows(rows)
    written = [] if csv is None else write_csvs(findings, csv)
    if as_json:
        print(json.dumps(document(findings, problems, **about), indent=2, allow_nan=False))
        return
    from analysis.render.findings_text import findings_text

    print(findings_text(findings, terminal_width(), rows or None))
    for problem in problems[:_MOST_PROBLEMS]:
        print(f"bertbench: {terminal_text(problem)}", file=sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        print(f"bertbench: and {len(problems) - _MOST_PROBLEMS:,} more such lines: --json has all", file=sys.stderr)
    if written:
        print(f"\nwrote {len(written)} tables into {csv}")


def check_rows(rows: int) -> None:
    """Raise UsageError for a number of rows below 0."""
    if rows < 0:
        raise UsageError("option-value", f"--rows {rows} is below 0: give how many rows of a table to print, 0 for all")


def terminal_width() -> int:
    """Return how many characters a line may have: the terminal's, or 150 where the output is no terminal."""
    return max(_NARROWEST, shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns)


def document(findings: Sequence[Finding], problems: Sequence[str], **about: Any) -> dict[str, Any]:
    """Return findings as plain JSON values: `findings` by name with title, sentence and rows, `problems`."""
    from analysis.diagnose.finding import plain_rows

    named = {
        finding.name: {"title": finding.title, "sentence": finding.sentence, "rows": plain_rows(finding.table)}
        for finding in findings
    }
    return {**about, "findings": named, "problems": list(problems)}


def write_csvs(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Write every finding that has rows as folder/<name>.csv, full precision; return the files."""
    from analysis.render.tables import write_frame

    written = []
    for finding in findings:
        if not len(finding.table):
            continue
        path = folder / f"{finding.name}.csv"
        write_frame(path, finding.table)
        written.append(path)
    return written
