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
    if isinstance(block, tables.Plain):
        return "\n".join(f"    {printable(line)}" for line in block.text.split("\n"))
    if isinstance(block, tables.Table):
        rules = ["---" if column.value is None else "---:" for column in block.columns]
        headings = [escaped(column.label) for column in block.columns]
        rows = [headings, rules, *([escaped(text) for text in row] for row in block.texts())]
        lines = [f"| {' | '.join(row)} |" for row in rows]
    else:
        lines = [f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows]
    return "\n".join([*([f"**{escaped(block.title)}**", ""] if block.title else []), *lines])


def escaped(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return _ACTIVE.sub(r"\\\1", printable(text))
