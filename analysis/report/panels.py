"""The panels of a page: one per finding, with its pictures, what it means, and its table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.findings import Finding
from analysis.report import tables
from analysis.report.drawing import Picture
from analysis.report.findings_tables import table_of
from analysis.report.panel_pictures import draw
from analysis.sources import Source

MOST_ROWS = 200
"""Rows of one table that a page holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One finding on a page."""

    anchor: str
    """Identifier on the page, distinct."""
    title: str
    """Heading."""
    sentence: str
    """What it means and what to try; "" for nothing."""
    pictures: tuple[Picture, ...]
    """Pictures of it, drawn."""
    table: tables.Table | None
    """Its rows, MOST_ROWS at most; None where it has none."""
    left_out: str
    """How many rows are not shown; "" for none."""


def panels(
    source: Source,
    findings: Sequence[Finding],
    folder: Path,
    prefix: str = "",
    measured: Mapping[str, float] | None = None,
) -> list[Panel]:
    """Draw the pictures of a source and return the panels of its findings, in their order.

    Args:
        source: what was read.
        findings: what `explain` said of it.
        folder: where the PNGs go.
        prefix: begins the anchors, where a page shows several sources.
        measured: measured ceilings, the same that `explain` was given.

    Raises:
        StorageError: a picture cannot be written.
    """
    drawn = draw(source, folder, measured)
    return [_panel(finding, drawn.get(finding.name, ()), prefix) for finding in findings]


def _panel(finding: Finding, pictures: Sequence[Picture], prefix: str) -> Panel:
    left = len(finding.table) - MOST_ROWS
    return Panel(
        anchor=f"{prefix}{finding.name}",
        title=finding.title,
        sentence=finding.sentence,
        pictures=tuple(pictures),
        table=table_of(finding, MOST_ROWS) if len(finding.table) else None,
        left_out=f"{left:,} more rows are in {finding.name}.csv" if left > 0 else "",
    )
