"""The one screen that a command prints of its findings: the answer, what to do first, where the time goes, the rest."""

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.diagnose.advice import Advice
from analysis.diagnose.answer import Answer
from analysis.diagnose.explain import by_weight
from analysis.diagnose.finding import Finding
from analysis.render import tables
from analysis.render.finding_tables import table_of
from analysis.render.terminal import block_texts, printable

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 45
_MOST_FURTHER = 5
_MOST_DETAILS = 10
_MANY_RANKS = 8
"""From this number of ranks on, only the first, the slowest and the fastest are shown."""
_DETAILS = ("top_kernels", "top_operators", "core_utilization", "kernel_totals")
"""Findings whose largest rows are shown, where there are any; otherwise those of the weightiest table."""
_NARROWEST_TEXT, _WIDEST_TEXT, _HEADING_WIDTH, _BETWEEN_COLUMNS = 24, 60, 14, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The parts of a screen."""

    answer: Sequence[str] = ()
    """Sentences, of each at most two lines."""
    advice: Sequence[Advice] = ()
    """The first is shown."""
    ranks: Finding | None = None
    further: Sequence[str] = ()
    """Sentences, of each one line."""
    details: Finding | tables.Table | None = None
    """As many rows as fit, ten at most."""
    rest: str = ""
    """Where everything else is."""

    def blocks(self, width: int, most_lines: int = MOST_LINES) -> list[tables.Block]:
        """Return the screen in at most `most_lines` lines of `width` characters."""
        answer = [line for text in self.answer for line in _lines(text, width, 2)]
        further = [line for text in self.further[:_MOST_FURTHER] for line in _lines(f"  {text}", width, 1)]
        blocks: list[tables.Block] = [tables.Plain("\n".join(answer))] if answer else []
        blocks += [_advice(one, width) for one in self.advice[:1]]
        blocks += [_table(self.ranks, width, len(self.ranks.table))] if self.ranks else []
        blocks += [tables.Plain("\n".join(["Further findings", *further]))] if further else []
        rest = [tables.Plain("\n".join(_lines(self.rest, width, 2)))] if self.rest else []
        if self.details is not None:
            left = most_lines - _height([*blocks, _rows(self.details, width, 0), *rest], width)
            blocks += [_rows(self.details, width, min(_MOST_DETAILS, left))] if left > 0 else []
        return [*blocks, *rest]


def screen_of(findings: Sequence[Finding], advice: Sequence[Advice] = (), rest: str = "") -> Screen:
    """Return the screen of findings: the sentence of the weightiest is the answer.

    Further findings are those whose advice saves most, then the weightiest.

    Args:
        findings: findings to show.
        advice: the largest gain first.
        rest: where everything else is.
    """
    weighty = by_weight(findings)
    answer = next((one for one in weighty if one.sentence), None)
    ranks = next((one for one in weighty if "rank" in one.table and one.table["rank"].is_unique), None)
    others = {one.name: one for one in weighty if one is not ranks and _has_numbers(one.table)}
    details = next((others[name] for name in _DETAILS if name in others), next(iter(others.values()), None))
    further = [one for one in weighty if one.sentence and one is not answer]
    further.sort(key=lambda one: max((advised.saves or 0.0 for advised in one.advice), default=0.0), reverse=True)
    return Screen(
        answer=[answer.sentence] if answer else [],
        advice=advice,
        ranks=None if ranks is None else dataclasses.replace(ranks, table=_ends(ranks.table)),
        further=[one.sentence for one in further],
        details=details,
        rest=rest,
    )


def run_screen(
    answers: Sequence[Answer], results: Sequence[tables.Block], profiles: Sequence[str] = (), rest: str = ""
) -> Screen:
    """Return the screen of a run directory: the answer about the model measured most, and the table of results.

    Args:
        answers: one per model, the one measured most first.
        results: the table of trials first, then what it leaves out.
        profiles: a sentence for each profile.
        rest: where everything else is.
    """
    first = answers[0] if answers else None
    table = next((block for block in results if isinstance(block, tables.Table)), None)
    if table is not None:  # the fastest first, as not all may fit
        rows = sorted(table.rows, key=lambda row: row.get("samples_per_second") or 0.0, reverse=True)
        table = dataclasses.replace(table, rows=rows)
    sentences = [*first.sentences, *(one.headline for one in answers[1:])] if first else []
    return Screen(
        answer=[first.headline, *first.how_good] if first else [],
        advice=first.advice if first else (),
        further=[*profiles, *sentences, *(block for block in results if isinstance(block, str))],
        details=table,
        rest=rest,
    )


def _has_numbers(frame: "pd.DataFrame") -> bool:
    return bool(frame.select_dtypes("number").notna().to_numpy().any())


def _ends(ranks: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table by rank; of many ranks only the first, the slowest and the fastest."""
    times = [name for name in ranks.columns if str(name).endswith("_ms")]
    if len(ranks) < _MANY_RANKS or not times:
        return ranks
    places = {
        "first": 0,
        "slowest": int(ranks[times[0]].to_numpy().argmax()),
        "fastest": int(ranks[times[0]].to_numpy().argmin()),
    }
    shown = ranks.iloc[list(places.values())].copy()
    shown.insert(0, "", list(places))
    return shown


def _rows(details: Finding | tables.Table, width: int, rows: int) -> tables.Table:
    if isinstance(details, tables.Table):
        return dataclasses.replace(details, rows=details.rows[:rows])
    return _table(details, width, rows)


def _table(finding: Finding, width: int, rows: int) -> tables.Table:
    """Return a table with a line per row: long texts are shortened, columns that do not fit are left out."""
    frame = finding.table.head(max(rows, 1)).dropna(axis="columns", how="all")
    table = table_of(dataclasses.replace(finding, table=frame))
    texts = [name for name, numeric in zip(frame.columns, table.numeric, strict=True) if not numeric]
    columns = zip(table.headings, *table.texts(), strict=True)
    widths = [
        max(map(len, [*textwrap.wrap(heading, _HEADING_WIDTH, break_long_words=False), *cells]))
        for heading, *cells in columns
    ]
    least = [min(size, _NARROWEST_TEXT) if name in texts else size for name, size in zip(frame, widths, strict=True)]
    room = [width - 1 - sum(least[:count]) - _BETWEEN_COLUMNS * count for count in range(len(least) + 1)]
    count = max((count for count in range(1, len(room)) if room[count] >= 0), default=1)
    longest = _NARROWEST_TEXT + room[count] // max(1, sum(size > _NARROWEST_TEXT for size in widths[:count]))
    longest = min(longest, _WIDEST_TEXT)
    frame = frame.iloc[:rows, :count].copy()
    for name in frame.columns:
        if name in texts:
            frame[name] = frame[name].map(lambda value: _short(value, longest))
    return dataclasses.replace(table_of(dataclasses.replace(finding, table=frame)), title=finding.title)


def _short(value: object, longest: int) -> object:
    return f"{value[: longest - 3]}..." if isinstance(value, str) and len(value) > longest else value


def _advice(advice: Advice, width: int) -> tables.Facts:
    rows = [("measured", advice.seen), ("gain", advice.gain)]
    facts = [(name, _lines(text, width - len("measured  "), 1)[0]) for name, text in rows]
    facts += [("command", advice.command)] if advice.command else []
    return tables.Facts(facts, _lines(f"Do this first: {advice.remedy}", width, 1)[0])


def _lines(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(printable(text), width, max_lines=most, placeholder=" ...", break_on_hyphens=False)


def _height(blocks: Sequence[tables.Block], width: int) -> int:
    return sum(text.count("\n") + 1 for text in block_texts(blocks, width))
