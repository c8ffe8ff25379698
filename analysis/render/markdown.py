"""What is shown of results, as GitHub-flavored Markdown: for the summary of a job, a comment or an issue."""

import re
from collections.abc import Sequence

from analysis.render import tables
from analysis.render.terminal import printable

# Escaped by a backslash, which CommonMark (2.4) allows before any ASCII punctuation.
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|~#&$!])")


def blocks_markdown(blocks: Sequence[tables.Block]) -> str:
    """Return blocks as Markdown, a blank line between them; texts from outside are shown as they are."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: tables.Block) -> str:
    if isinstance(block, str):
        return escaped(block)
    if isinstance(block, tables.Table):
        return _table(block)
    if isinstance(block, tables.Plain):
        return "\n".join(f"    {printable(line)}" for line in block.text.split("\n"))
    facts = [f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows]
    return "\n".join([*([f"**{escaped(block.title)}**", ""] if block.title else []), *facts])


def _table(table: tables.Table) -> str:
    rules = ["---:" if numeric else "---" for numeric in table.numeric]
    rows = [[escaped(cell.text) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in ([escaped(one) for one in table.headings], rules, *rows)]
    return "\n".join([*([f"**{escaped(table.title)}**", ""] if table.title else []), *lines])


def escaped(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return _ACTIVE.sub(r"\\\1", printable(text))
