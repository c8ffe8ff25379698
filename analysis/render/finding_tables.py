"""Findings as blocks: their tables, how many rows are left out, their sentences; advice."""

from collections.abc import Sequence

from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding
from analysis.render import tables


def table_of(finding: Finding) -> tables.Table:
    """Return the table of a finding."""
    return tables.of_frame(finding.name, finding.table, finding.title)


def finding_blocks(findings: Sequence[Finding]) -> list[tables.Block]:
    """Return each finding as its whole table and its sentence; those without rows as title and sentence."""
    blocks: list[tables.Block] = []
    for finding in findings:
        blocks.append(table_of(finding) if len(finding.table) else tables.Plain(finding.title))
        blocks += [finding.sentence] if finding.sentence else []
    return blocks


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    """Return one line per piece of advice, the first one marked."""
    return [f"{'then' if number else 'do this first'}: {one.text}" for number, one in enumerate(advice)]
