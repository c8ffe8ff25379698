"""The ranges of one step as an indented table for the terminal."""

import re
from collections.abc import Iterable, Sequence

from analysis import wording
from analysis.metrics.time.ranges import RangeNode
from analysis.render.terminal import DEFAULT_WIDTH, printable

DEFAULT_LIMIT = 3

_INDENT = "  "
_HEADINGS = ("range", "start ms", "ms", "share", "thread")
_NUMBER = re.compile(r"\d+")
_SHORTEST_NAME = 24

Line = tuple[str, str, str, str, str]


def range_tree_text(tree: RangeNode, width: int = DEFAULT_WIDTH, limit: int = DEFAULT_LIMIT) -> str:
    """Return a table of one step's ranges, indented by what contains what.

    Siblings whose names differ in numbers alone (layer.0, layer.1, ...) are folded into one line where there are more
    than `limit`: first and last name, count and mean length; "ms" and "share" are then their sums. What they contain is
    folded the same way.

    Args:
        tree: what range_tree returned.
        width: characters per line; names that do not fit are shortened.
        limit: equal siblings to show one by one; 0 folds nothing.
    """
    lines = list(_lines([tree], 0, limit))
    with_threads = any(line[4] for line in lines)
    rows = [_HEADINGS, *lines]
    numbers = [max(len(row[column]) for row in rows) for column in (1, 2, 3)]
    threads = max(len(row[4]) for row in rows) + 2 if with_threads else 0
    room = max(_SHORTEST_NAME, width - sum(numbers) - 2 * len(numbers) - threads)
    names = min(room, max(len(row[0]) for row in rows))
    text = []
    for row in rows:
        cells = [_shortened(row[0], names).ljust(names)]
        cells += [row[column].rjust(size) for column, size in zip((1, 2, 3), numbers, strict=True)]
        cells += [row[4]] if with_threads else []
        text.append(_INDENT.join(cells).rstrip())
    rule = "-" * max(len(line) for line in text)
    return "\n".join([text[0], rule, *text[1:]])


def _lines(siblings: Sequence[RangeNode], depth: int, limit: int) -> Iterable[Line]:
    for group in _groups(siblings, limit):
        yield _line(group, depth)
        # Children of a folded group stand together, in the order of the first that has them.
        yield from _lines([child for node in group for child in node.children], depth + 1, limit)


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


def _line(group: Sequence[RangeNode], depth: int) -> Line:
    first, last = group[0], group[-1]
    total = sum(node.duration_ms for node in group)
    name = printable(first.name)
    if len(group) > 1:
        names = name if first.name == last.name else f"{name} ... {printable(last.name)}"
        name = f"{names}: {len(group)} x {wording.number(total / len(group))} ms"
    threads = {node.thread for node in group if not node.own_thread}
    thread = f"{len(threads)} threads" if len(threads) > 1 else next(iter(threads), "")
    return (
        _INDENT * depth + name,
        wording.number(first.start_ms),
        wording.number(total),
        wording.percent(sum(node.share for node in group)),
        printable(thread),
    )


def _shortened(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 3]}..."
