"""Findings as tables to show: how a column's name says its unit and form."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding, plain_value
from analysis.metrics.time.ranges import RangeNode
from analysis.render import tables

# Ends of column names -> what the heading says after the name.
_UNITS = {
    "_gb_s": "GB/s",
    "_gib_s": "GiB/s",
    "_ns": "ns",
    "_us": "µs",
    "_ms": "ms",
    "_s": "s",
    "_percent": "%",
    "_watts": "W",
    "_mhz": "MHz",
    "_celsius": "°C",
    "_joules": "J",
}
# Names of kernels and messages of rules can be very long; JSON and CSV have them whole, and a page on hovering.
_LONGEST_NAME = 118
_NUMBER = re.compile(r"\d+")
_LONGEST_RANGE = 60
_SHARES = ("share", "utilization", "efficiency", "fraction", "attainable")


def table_of(finding: Finding, most_rows: int | None = None) -> tables.Table:
    """Return a finding's table as cells to show; numbers in three digits, shares as percentages, bytes in units.

    Args:
        finding: what an analysis said.
        most_rows: rows to show; None for all.
    """
    frame = finding.table if most_rows is None else finding.table.head(most_rows)
    columns = [_Column(str(name), frame[name]) for name in frame.columns]
    rows = zip(*(column.cells() for column in columns), strict=True) if columns else iter(())
    return tables.Table(
        name=finding.name,
        headings=tuple(column.heading for column in columns),
        rows=tuple(tuple(row) for row in rows),
        numeric=tuple(column.numeric for column in columns),
    )


def finding_blocks(findings: Sequence[Finding]) -> list[tables.Block]:
    """Return each finding as its whole table and its sentence; those without rows as title and sentence."""
    blocks: list[tables.Block] = []
    for finding in findings:
        if len(finding.table):
            blocks.append(dataclasses.replace(table_of(finding), title=finding.title))
        else:
            blocks.append(tables.Plain(finding.title))
        blocks += [finding.sentence] * bool(finding.sentence)
    return blocks


class _Column:
    """One column: its heading, and how its values are written."""

    def __init__(self, name: str, values: Iterable[Any]) -> None:
        self._values = [plain_value(value) for value in values]
        known = [value for value in self._values if value is not None]
        self.numeric = bool(known) and all(isinstance(value, int | float) and value is not True for value in known)
        self.numeric = self.numeric and not all(isinstance(value, bool) for value in known)
        self._is_name = name in ("name", "message")
        self.heading, self._form = _heading(name), _form(name, known)

    def cells(self) -> list[tables.Cell]:
        """Return one cell per row."""
        return [self._cell(value) for value in self._values]

    def _cell(self, value: Any) -> tables.Cell:
        if value is None or value == "":
            return tables.Cell(wording.UNKNOWN, -math.inf if self.numeric else "")
        if self.numeric:
            return tables.Cell(self._form(value), float(value))
        if isinstance(value, bool):
            return tables.Cell("yes" if value else "", "1" if value else "0")
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if self._is_name and len(text) > _LONGEST_NAME:
            return tables.Cell(f"{text[: _LONGEST_NAME - 3]}...", text, text)
        return tables.Cell(text, text)


def _heading(name: str) -> str:
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return f"{_words(name.removesuffix(ending))} {unit}"
    return _words(name)


def _words(name: str) -> str:
    return name.replace("_", " ").strip()


def _form(name: str, known: list[Any]) -> Callable[[Any], str]:
    if name.endswith(_SHARES) or "utilization" in name:
        return wording.percent
    if name == "bytes" or name.endswith("_bytes"):
        return wording.traffic
    if name.endswith("_flops"):
        return wording.flops
    if all(isinstance(value, int) for value in known):
        return wording.count
    return wording.number


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    """Return one line per piece of advice, the first one marked."""
    return [f"{'then' if number else 'do this first'}: {one.text}" for number, one in enumerate(advice)]


def range_tree_table(tree: RangeNode, limit: int = 3) -> tables.Table:
    """Return one step's ranges, indented by what contains what.

    Siblings whose names differ in numbers alone (layer.0, layer.1, ...) are folded into one line where there are more
    than `limit`: first and last name, count and mean length; "ms" and "share" are then their sums. What they contain is
    folded the same way.

    Args:
        tree: what range_tree returned.
        limit: equal siblings to show one by one; 0 folds nothing.
    """
    columns = [
        tables.plain("range", "range"),
        tables.measured("start ms", "start_ms"),
        tables.measured("ms", "ms"),
        tables.measured("share", "share", wording.percent),
        tables.Column("thread", lambda row: row["thread"], lambda row: str(row["thread"]), False),
    ]
    rows = list(_range_rows([tree], 0, limit))
    return tables.build("ranges", columns if any(row["thread"] for row in rows) else columns[:-1], rows)


def _range_rows(siblings: Sequence[RangeNode], depth: int, limit: int) -> Iterable[dict[str, Any]]:
    for group in _groups(siblings, limit):
        yield _range_row(group, depth)
        # Children of a folded group stand together, in the order of the first that has them.
        yield from _range_rows([child for node in group for child in node.children], depth + 1, limit)


def _groups(siblings: Sequence[RangeNode], limit: int) -> list[list[RangeNode]]:
    """Equal siblings together where there are more than `limit`, at the place of the first; the others alone."""
    equal: dict[tuple[str, bool], list[RangeNode]] = {}
    for node in siblings:
        equal.setdefault(_kind(node), []).append(node)
    groups = []
    for node in siblings:
        members = equal[_kind(node)]
        if not limit or len(members) <= limit:
            groups.append([node])
        elif members[0] is node:
            groups.append(members)
    return groups


def _kind(node: RangeNode) -> tuple[str, bool]:
    return _NUMBER.sub("#", node.name), node.own_thread


def _range_row(group: Sequence[RangeNode], depth: int) -> dict[str, Any]:
    first, last = group[0], group[-1]
    total = sum(node.duration_ms for node in group)
    name = first.name
    if len(group) > 1:
        names = name if first.name == last.name else f"{name} ... {last.name}"
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
