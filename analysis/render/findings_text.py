"""Findings for the terminal."""

import textwrap
from collections.abc import Sequence

from analysis.diagnose.finding import Finding
from analysis.render.findings_tables import table_of
from analysis.render.terminal import DEFAULT_WIDTH, printable, render

MOST_ROWS = 20
"""Rows of one table that a terminal shows."""


def findings_text(findings: Sequence[Finding], width: int = DEFAULT_WIDTH, most_rows: int | None = MOST_ROWS) -> str:
    """Return the tables with their headings, each followed by its sentence.

    Args:
        findings: what to show; those without rows show their sentence alone.
        width: characters per line.
        most_rows: rows of a table to show, with a note how many were left out; None for all.
    """
    parts = []
    for finding in findings:
        lines = []
        if len(finding.table):
            lines.append(render(table_of(finding, most_rows), width, finding.title))
            left = 0 if most_rows is None else len(finding.table) - most_rows
            if left > 0:
                lines.append(f"... and {left:,} more rows: --rows 0 shows all, --csv DIR writes them")
        else:
            lines.append(printable(finding.title))
        if finding.sentence:
            lines += textwrap.wrap(printable(finding.sentence), width, break_on_hyphens=False, break_long_words=False)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
