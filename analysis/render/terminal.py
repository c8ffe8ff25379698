"""What is shown of results, as lines of text for a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO

from analysis.render import tables

DEFAULT_WIDTH = 150
_WIDEST_TEXT, _NARROWEST_TEXT, _HEADING_WIDTH = 60, 20, 14


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
    """Draw a table. Columns that do not fit are left out from the right and named below."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = Text(printable(table.title)) if table.title else None
    view = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    texts = [[printable(text) for text in row] for row in table.texts()]
    left_out: list[str] = []
    used = 0
    for place, column in enumerate(table.columns):
        heading = "\n".join(
            textwrap.wrap(printable(column.label), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
        )
        least = _least_width(heading, [row[place] for row in texts], column.value is not None)
        used += least + 2 * bool(place)
        if left_out or (used > width and place):
            left_out.append(column.label)
            continue
        view.add_column(
            Text(heading),
            justify="left" if column.value is None else "right",
            vertical="bottom",
            overflow="fold",
            no_wrap=column.value is not None,
            max_width=_WIDEST_TEXT if column.value is None else None,
            min_width=least,
        )
    for row in texts:
        # Text, not str: names from outside must not be read as rich's markup.
        view.add_row(*map(Text, row[: len(row) - len(left_out)]))
    output = StringIO()
    Console(file=output, width=width, color_system=None, force_terminal=False).print(view)
    lines = "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n").split("\n")
    if left_out:
        note = f"columns left out for lack of width (--json and --csv have them): {', '.join(left_out)}"
        lines += textwrap.wrap(printable(note), width, break_on_hyphens=False)
    return "\n".join(lines)


def _least_width(heading: str, texts: Sequence[str], numeric: bool) -> int:
    """Return the least width of a column: numbers whole, texts folded at blanks where they must."""
    lines = [*heading.split("\n"), *texts]
    if numeric:
        return max(map(len, lines))
    return min(_NARROWEST_TEXT, max((len(word) for line in lines for word in line.split()), default=0))


def printable(text: str) -> str:
    """Return the text with a blank for every character that a terminal would act on."""
    return "".join(character if character.isprintable() else " " for character in text)


def wrapped(line: str, width: int) -> list[str]:
    """Return a sentence as lines of at most so many characters, further ones indented."""
    return textwrap.wrap(
        printable(line), width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    ) or [""]
