"""What is shown of results, as lines of text for a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO

from analysis.render import tables

DEFAULT_WIDTH = 150

_WIDEST_TEXT = 60
_NARROWEST_TEXT = 20
_HEADING_WIDTH = 14
_BETWEEN_COLUMNS = 2


def blocks_text(blocks: Sequence[tables.Block], width: int = DEFAULT_WIDTH) -> str:
    """Return blocks as lines of text, a blank line before each but sentences, which follow what they are about.

    Args:
        blocks: what to show, in this order.
        width: characters per line, which Plain and the values of Facts may exceed.
    """
    return "\n".join(block_texts(blocks, width))


def block_texts(blocks: Sequence[tables.Block], width: int = DEFAULT_WIDTH) -> Iterator[str]:
    """Yield the lines of `blocks_text` block by block, so that the first can be shown while others are drawn."""
    for number, block in enumerate(blocks):
        between = "\n" if number and not isinstance(block, str) else ""
        yield f"{between}{_block_text(block, width)}"


def _block_text(block: tables.Block, width: int) -> str:
    if isinstance(block, str):
        return "\n".join(wrapped(block, width))
    if isinstance(block, tables.Table):
        return _table_text(block, width)
    if isinstance(block, tables.Plain):
        return "\n".join(map(printable, block.text.split("\n")))
    widest = max((len(printable(name)) for name, _ in block.rows), default=0)
    lines = [f"{printable(name):<{widest}}  {printable(value)}".rstrip() for name, value in block.rows]
    return "\n".join([*([printable(block.title)] if block.title else []), *lines])


def _table_text(table: tables.Table, width: int) -> str:
    """A table as lines of text; names from outside can neither style nor break it.

    Headings are broken at blanks. Columns that even so do not fit are left out from the right and named below.
    """
    headings = _broken(table.headings)
    fitting, least = _fitting(table, headings, width)
    rows = [[printable(cell.text) for cell in row[:fitting]] for row in table.rows]
    drawn = _aligned(table, headings[:fitting], least, rows, width) or _folded(
        table, headings[:fitting], least, rows, width
    )
    lines = "\n".join(line.rstrip() for line in drawn).strip("\n").split("\n")
    if fitting < len(headings):
        said = f"columns left out for lack of width (--json and --csv have them): {', '.join(table.headings[fitting:])}"
        lines += textwrap.wrap(printable(said), width, break_on_hyphens=False)
    return "\n".join(lines)


def _aligned(
    table: tables.Table, headings: Sequence[str], least: Sequence[int], rows: Sequence[Sequence[str]], width: int
) -> list[str]:
    """The lines of a table of which no text needs to be folded, as `_folded` draws it; [] for another one."""
    from rich.cells import cell_len

    head = list(zip(*(heading.split("\n") for heading in headings), strict=True))
    columns = zip(*head, *rows, strict=True)
    widest = [max(narrowest, *map(cell_len, texts)) for narrowest, texts in zip(least, columns, strict=False)]
    numeric = table.numeric[: len(widest)]
    whole = 1 + sum(widest) + _BETWEEN_COLUMNS * len(widest)
    long = any(size > _WIDEST_TEXT for size, right in zip(widest, numeric, strict=True) if not right)
    title = printable(table.title)
    if long or not widest or max(whole, cell_len(title)) > width or cell_len(title) > whole:
        return []

    def line(texts: Sequence[str]) -> str:
        cells = []
        for text, size, right in zip(texts, widest, numeric, strict=True):
            shown = text.rstrip() if right else text
            blanks = " " * (size - cell_len(shown))
            cells.append(blanks + shown if right else shown + blanks)
        return " " + (" " * _BETWEEN_COLUMNS).join(cells)

    rule = f" {'─' * (whole - 2)}"
    return (
        [title, "", *map(line, head), rule, *map(line, rows)] if title else [*map(line, head), rule, *map(line, rows)]
    )


def _folded(
    table: tables.Table, headings: Sequence[str], least: Sequence[int], rows: Sequence[Sequence[str]], width: int
) -> list[str]:
    """The lines of a table whose texts are folded where they must."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading = Text(printable(table.title)) if table.title else None
    view = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left", padding=(0, 1, 0, 0))
    for name, numeric, narrowest in zip(headings, table.numeric, least, strict=False):
        view.add_column(
            Text(name),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric,
            max_width=None if numeric else _WIDEST_TEXT,
            min_width=narrowest,
        )
    for row in rows:
        # Text, not str: names from outside must not be read as rich's markup.
        view.add_row(*map(Text, row))
    output = StringIO()
    Console(file=output, width=width, color_system=None, force_terminal=False).print(view)
    return output.getvalue().splitlines()


def printable(text: str) -> str:
    """Return the text with a blank for every character that a terminal would act on."""
    return "".join(character if character.isprintable() else " " for character in text)


def wrapped(line: str, width: int) -> list[str]:
    """Return a sentence as lines of at most so many characters, further ones indented."""
    return textwrap.wrap(
        printable(line), width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    ) or [""]


def _broken(headings: Sequence[str]) -> list[str]:
    """Headings in lines, all of the same number, empty ones first."""
    lines = [
        textwrap.wrap(printable(heading), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
        for heading in headings
    ]
    most = max(map(len, lines), default=0)
    return ["\n".join([""] * (most - len(words)) + words) for words in lines]


def _fitting(table: tables.Table, headings: list[str], width: int) -> tuple[int, list[int]]:
    """How many columns fit, and the least width of each: numbers whole, texts folded at blanks where they must."""
    least = []
    for number, (heading, numeric) in enumerate(zip(headings, table.numeric, strict=True)):
        lines = [*heading.split("\n"), *(row[number].text for row in table.rows)]
        words = lines if numeric else [word for line in lines for word in line.split()]
        longest = max(map(len, words), default=0)
        least.append(longest if numeric else min(longest, _NARROWEST_TEXT))
    used = 0
    for number, wide in enumerate(least):
        used += wide + (_BETWEEN_COLUMNS if number else 0)
        if used > width and number:
            return number, least
    return len(headings), least
