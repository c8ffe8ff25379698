"""What is shown of results as text: lines for a terminal, and GitHub-flavored Markdown."""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from analysis import wording
from analysis.render import tables

DEFAULT_WIDTH = 150
_WIDEST_TEXT, _NARROWEST_TEXT, _HEADING_WIDTH = 60, 20, 14
_BETWEEN = "  "
# Escaped by a backslash, which CommonMark (2.4) allows before any ASCII punctuation.
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|~#&$!])")


def blocks_text(blocks: Sequence[tables.Block], width: int = DEFAULT_WIDTH) -> str:
    """Return blocks as lines of text, a blank line before each but sentences, which follow what they are about.

    Lines have at most `width` characters, but for Plain and the values of Facts.
    """
    return "\n".join(block_texts(blocks, width))


def block_texts(blocks: Sequence[tables.Block], width: int = DEFAULT_WIDTH) -> Iterator[str]:
    """Yield the lines of `blocks_text` block by block, so that the first can be shown while others are drawn."""
    for number, block in enumerate(blocks):
        between = "\n" if number and not isinstance(block, str) else ""
        yield f"{between}{_block_text(block, width)}"


def _block_text(block: tables.Block, width: int) -> str:
    if isinstance(block, str):
        return "\n".join(wrapped(block, width, subsequent_indent="  ") or [""])
    if isinstance(block, tables.Plain):
        return "\n".join(map(printable, block.text.split("\n")))
    if isinstance(block, tables.Table):
        lines = _table_lines(block, width)
    else:
        widest = max((len(printable(name)) for name, _ in block.rows), default=0)
        lines = [f"{printable(name):<{widest}}  {printable(value)}".rstrip() for name, value in block.rows]
    return "\n".join([*([printable(block.title)] if block.title else []), *lines])


def _table_lines(table: tables.Table, width: int) -> list[str]:
    """Draw a table: numbers whole, texts in what is left. Columns that do not fit are left out from the right."""
    heads = [wrapped(column.label, _HEADING_WIDTH) or [""] for column in table.columns]
    rows = [[printable(text) for text in row] for row in table.texts()]
    whole = [max(1, *map(len, [*head, *cells])) for head, *cells in zip(heads, *rows, strict=True)]
    numeric = [column.value is not None for column in table.columns]

    def widths(most: int) -> list[int]:
        return [size if number else min(size, most) for size, number in zip(whole, numeric, strict=True)]

    ends = [*itertools.accumulate(size + len(_BETWEEN) for size in widths(_NARROWEST_TEXT))]
    count = max(1, sum(end <= width + 1 for end in ends))
    fitting = (most for most in range(_WIDEST_TEXT, _NARROWEST_TEXT, -1)
               if sum(widths(most)[:count]) + len(_BETWEEN) * count <= width + 1)  # fmt: skip
    sizes = widths(next(fitting, _NARROWEST_TEXT))[:count]

    def drawn(cells: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of a row of cells of several lines each, the last ones of all beside each other."""
        return [
            _BETWEEN.join(f"{text:>{size}}" if number else f"{text:<{size}}"
                          for text, size, number in zip(line, sizes, numeric, strict=False)).rstrip()
            for line in itertools.zip_longest(*cells, fillvalue="")
        ]  # fmt: skip

    tallest = max(map(len, heads[:count]))
    lines = drawn([[""] * (tallest - len(head)) + head for head in heads[:count]])
    lines += ["─" * (sum(sizes) + len(_BETWEEN) * (count - 1))]
    for row in rows:
        parts = zip(row, sizes, strict=False)
        if table.brief:
            lines += drawn([[wording.shortened(text, size)] for text, size in parts])
        else:
            lines += drawn([textwrap.wrap(text, size, break_on_hyphens=False) or [""] for text, size in parts])
    left_out = ", ".join(column.label for column in table.columns[count:])
    note = f"columns left out for lack of width (--json and --csv have them): {left_out}"
    return [*([""] if table.title else []), *lines, *(wrapped(note, width) if left_out and not table.brief else [])]


def printable(text: str) -> str:
    """Return the text with a blank for every character that a terminal would act on."""
    return "".join(character if character.isprintable() else " " for character in text)


def wrapped(text: str, width: int, most: int | None = None, subsequent_indent: str = "") -> list[str]:
    """Return a text as lines of at most so many characters, without breaking words; at most `most`, then cut."""
    if most == 1:
        return [wording.shortened(printable(text), width)]
    return textwrap.wrap(
        printable(text), width, max_lines=most, placeholder=" ...", subsequent_indent=subsequent_indent,
        break_on_hyphens=False, break_long_words=most is not None,
    )  # fmt: skip


def blocks_markdown(blocks: Sequence[tables.Block]) -> str:
    """Return blocks as Markdown, a blank line between them; texts from outside are shown as they are."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: tables.Block) -> str:
    if isinstance(block, str):
        return escaped(block)
    if isinstance(block, tables.Plain):
        return "\n".join(f"    {printable(line)}" for line in block.text.split("\n"))
    if isinstance(block, tables.Table):
        rules = ["---" if column.value is None else "---:" for column in block.columns]
        rows = [[*map(escaped, block.headings)], rules, *([*map(escaped, row)] for row in block.texts())]
        lines = [f"| {' | '.join(row)} |" for row in rows]
    else:
        lines = [f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows]
    return "\n".join([*([f"**{escaped(block.title)}**", ""] if block.title else []), *lines])


def escaped(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return _ACTIVE.sub(r"\\\1", printable(text))
