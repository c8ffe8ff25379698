"""Findings as blocks: their tables, how many rows are left out, their sentences; advice; one step's ranges."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from analysis import wording
from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding
from analysis.metrics.time.ranges import RangeNode
from analysis.render import tables
from analysis.render.columns import columns

_LONGEST_RANGE = 60


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


def range_tree_table(tree: RangeNode, limit: int = 3) -> tables.Table:
    """Return one step's ranges, indented by nesting; more than `limit` siblings whose names differ in numbers alone
    (layer.0, layer.1, ...) are one line with their count, mean and summed length. 0 folds nothing.
    """
    rows = list(_range_rows([tree], 0, limit))
    threads = "thread" if any(row["thread"] for row in rows) else ""
    return tables.Table("ranges", columns(f"range start_ms ms share {threads}"), rows)


def _range_rows(siblings: Sequence[RangeNode], depth: int, limit: int) -> Iterable[dict[str, Any]]:
    kinds = [(re.sub(r"\d+", "#", node.name), node.own_thread) for node in siblings]
    places = list(range(len(siblings)))
    many = {kind for kind in kinds if limit and kinds.count(kind) > limit}
    places.sort(key=lambda place: kinds.index(kinds[place]) if kinds[place] in many else place)
    for _, group in groupby(places, lambda place: kinds[place] if kinds[place] in many else place):
        nodes = [siblings[place] for place in group]
        yield _range_row(nodes, depth)
        # Children of a folded group stand together, in the order of the first that has them.
        yield from _range_rows([child for node in nodes for child in node.children], depth + 1, limit)


def _range_row(group: Sequence[RangeNode], depth: int) -> dict[str, Any]:
    first, last = group[0], group[-1]
    total = sum(node.duration_ms for node in group)
    name = first.name
    if len(group) > 1:
        names = name if name == last.name else f"{name} ... {last.name}"
        name = f"{names}: {len(group)} x {wording.number(total / len(group))} ms"
    name = f"{'  ' * depth}{name}"
    threads = {node.thread for node in group if not node.own_thread}
    return {
        "range": name if len(name) <= _LONGEST_RANGE else f"{name[: _LONGEST_RANGE - 3]}...",
        "start_ms": first.start_ms,
        "ms": total,
        "share": sum(node.share for node in group),
        "thread": f"{len(threads)} threads" if len(threads) > 1 else next(iter(threads), ""),
    }
