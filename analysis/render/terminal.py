"""What a terminal shows: blocks as lines of text or Markdown, and the one screen of a command's findings."""

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis import wording
from analysis.render.tables import Block, Facts, Plain, Table, of_frame, plain
from analysis.wording import UNKNOWN

if TYPE_CHECKING:
    from analysis.diagnose.advice import Advice
    from analysis.diagnose.answer import Answer
    from analysis.diagnose.finding import Finding

DEFAULT_WIDTH = 150
_WIDEST_TEXT, _NARROWEST_TEXT, _HEADING_WIDTH = 60, 20, 14
_BETWEEN = "  "
# Escaped by a backslash, which CommonMark (2.4) allows before any ASCII punctuation.
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|~#&$!])")
MOST_LINES = 45
_MOST_FURTHER = 5
_MOST_DETAILS = 10
_MANY_RANKS = 8
"""From this number of ranks on, only the first, the slowest and the fastest are shown."""
_DETAILS = ("top_kernels", "top_operators", "core_utilization", "kernel_totals")
"""Findings whose largest rows are shown, where there are any; otherwise those of the weightiest table."""


def blocks_text(blocks: Sequence[Block], width: int = DEFAULT_WIDTH) -> str:
    """Return blocks as lines of text, a blank line before each but sentences, which follow what they are about.

    Lines have at most `width` characters, but for Plain and the values of Facts.
    """
    texts = (("" if isinstance(block, str) else "\n") + _block_text(block, width) for block in blocks)
    return "\n".join(texts).removeprefix("\n")


def _block_text(block: Block, width: int) -> str:
    if isinstance(block, str):
        return "\n".join(wrapped(block, width, subsequent_indent="  ") or [""])
    if isinstance(block, Plain):
        return "\n".join(map(printable, block.text.split("\n")))
    if isinstance(block, Table):
        lines = _table_lines(block, width)
    else:
        widest = max((len(printable(name)) for name, _ in block.rows), default=0)
        lines = [f"{printable(name):<{widest}}  {printable(value)}".rstrip() for name, value in block.rows]
    return "\n".join([*([printable(block.title)] if block.title else []), *lines])


def _table_lines(table: Table, width: int) -> list[str]:
    """Draw a table: numbers whole, texts in what is left. Columns that do not fit are left out from the right."""
    heads = [wrapped(column.label, _HEADING_WIDTH) or [""] for column in table.columns]
    rows = [[printable(text) for text in row] for row in table.texts()]
    whole = [max(1, *map(len, [*head, *cells])) for head, *cells in zip(heads, *rows, strict=True)]
    numeric = [column.value is not None for column in table.columns]

    for most in range(_WIDEST_TEXT, _NARROWEST_TEXT - 1, -1):
        sizes = [size if number else min(size, most) for size, number in zip(whole, numeric, strict=True)]
        ends = [*itertools.accumulate(size + len(_BETWEEN) for size in sizes)]
        if ends[-1] <= width + 1:
            break
    count = max(1, sum(end <= width + 1 for end in ends))
    sizes = sizes[:count]

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


def blocks_markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown, a blank line between them; texts from outside are shown as they are."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, str):
        return escaped(block)
    if isinstance(block, Plain):
        return "\n".join(f"    {printable(line)}" for line in block.text.split("\n"))
    if isinstance(block, Table):
        rules = ["---" if column.value is None else "---:" for column in block.columns]
        rows = [[*map(escaped, block.headings)], rules, *([*map(escaped, row)] for row in block.texts())]
        lines = [f"| {' | '.join(row)} |" for row in rows]
    else:
        lines = [f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows]
    return "\n".join([*([f"**{escaped(block.title)}**", ""] if block.title else []), *lines])


def escaped(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return _ACTIVE.sub(r"\\\1", printable(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The parts of a screen."""

    opening: Sequence[Block] = ()
    """What comes first, whole."""
    answer: Sequence[str] = ()
    """Sentences, of each at most two lines."""
    advice: "Sequence[Advice]" = ()
    """The first is shown."""
    ranks: Table | None = None
    further: Sequence[str] = ()
    """Sentences, of each one line."""
    details: Table | None = None
    """As many rows as fit, ten at most."""
    closing: Sequence[Block] = ()
    """What comes last, whole."""

    def blocks(self, width: int, most_lines: int = MOST_LINES, rest: str = "") -> list[Block]:
        """Return the screen in at most `most_lines` lines of `width` characters; `rest` says where all else is."""
        answer = [line for text in self.answer for line in wrapped(text, width, 2)]
        further = [f"  {line}" for text in self.further[:_MOST_FURTHER] for line in wrapped(text, width - 2, 1)]
        blocks = [*self.opening, *([Plain("\n".join(answer))] if answer else [])]
        blocks += [_advice(one, width) for one in self.advice[:1]]
        blocks += [_brief(self.ranks, len(self.ranks.rows))] if self.ranks else []
        blocks += [Plain("\n".join(["Further findings", *further]))] if further else []
        closing = [*([Plain("\n".join(wrapped(rest, width, 2)))] if rest else []), *self.closing]
        for count in range(_MOST_DETAILS, 0, -1):
            shown = [*blocks, *([_brief(self.details, count)] if self.details else []), *closing]
            if blocks_text(shown, width).count("\n") < most_lines:
                return shown
        return [*blocks, *closing]


def screen_of(findings: "Sequence[Finding]", advice: "Sequence[Advice]" = ()) -> Screen:
    """Return the screen of findings: the sentence of the weightiest is the answer.

    Further findings are those whose advice saves most, then the weightiest.
    """
    from analysis.diagnose.explain import by_weight

    weighty = by_weight(findings)
    answer = next((one for one in weighty if one.sentence), None)
    by_rank = [one for one in weighty if "rank" in one.table and len(one.table)]
    ranks = next((one for one in by_rank if one.table["rank"].is_unique), None)
    numbers = [one for one in weighty if one.table.select_dtypes("number").notna().to_numpy().any()]
    others = {one.name: one for one in numbers if one is not ranks}
    details = next((others[name] for name in _DETAILS if name in others), next(iter(others.values()), None))
    further = [one for one in weighty if one.sentence and one is not answer]
    further.sort(key=lambda one: max((advised.saves or 0.0 for advised in one.advice), default=0.0), reverse=True)
    return Screen(
        answer=[answer.sentence] if answer else [],
        advice=advice,
        ranks=None if ranks is None else _ends(of_frame(ranks.name, ranks.table, ranks.title)),
        further=[one.sentence for one in further],
        details=None if details is None else of_frame(details.name, details.table.head(_MOST_DETAILS), details.title),
    )


def run_screen(answers: "Sequence[Answer]", results: Sequence[Block], notes: Sequence[str] = ()) -> Screen:
    """Return the screen of a run directory: the answer about the model measured most, and the table of results.

    `results` has the table of trials first, then what it leaves out; `notes` are the cautions, or a sentence for each
    profile, of which the first stands before the sentences of the answer.
    """
    first = answers[0] if answers else None
    table = next((block for block in results if isinstance(block, Table)), None)
    if table is not None:  # the fastest first, as not all may fit
        rows = sorted(table.rows, key=lambda row: row.get("samples_per_second") or 0.0, reverse=True)
        table = dataclasses.replace(table, rows=rows)
    sentences = [*first.sentences, *(one.headline for one in answers[1:])] if first else []
    return Screen(
        answer=[first.headline, *first.facts] if first else [],
        advice=first.advice if first else (),
        further=[*notes[:1], *sentences, *notes[1:], *(block for block in results if isinstance(block, str))],
        details=table,
    )


def _ends(ranks: Table) -> Table:
    """Return a table by rank; of many ranks only the first, the slowest and the fastest."""
    time = next((field for column in ranks.columns for field in column.fields if field.endswith("_ms")), None)
    if len(ranks.rows) < _MANY_RANKS or time is None:
        return ranks
    ordered = sorted((row for row in ranks.rows if row[time] is not None), key=lambda row: row[time]) or ranks.rows
    ends = {"first": ranks.rows[0], "slowest": ordered[-1], "fastest": ordered[0]}
    rows = [{**row, "": name} for name, row in ends.items()]
    return dataclasses.replace(ranks, columns=[plain("", ""), *ranks.columns], rows=rows)


def _brief(table: Table, count: int) -> Table:
    """Return the first rows of a table, with a line for each, without the columns of which none is known."""
    texts = table.texts()[:count]
    columns = [column for column, *cells in zip(table.columns, *texts, strict=True) if {*cells} - {UNKNOWN}]
    return dataclasses.replace(table, columns=columns, rows=table.rows[:count], brief=True)


def _advice(advice: "Advice", width: int) -> Facts:
    rows = [("measured", advice.seen), ("gain", advice.gain)]
    facts = [(name, wrapped(text, width - len("measured  "), 1)[0]) for name, text in rows]
    facts += [("command", advice.command)] if advice.command else []
    return Facts(facts, wrapped(f"Do this first: {advice.remedy}", width, 1)[0])
