"""The one screen that a command prints of its findings: the answer, what to do first, where the time goes, the rest."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.diagnose.advice import Advice
from analysis.diagnose.answer import Answer
from analysis.diagnose.explain import by_weight
from analysis.diagnose.finding import Finding
from analysis.render.tables import Block, Facts, Plain, Table, of_frame, plain
from analysis.render.terminal import block_texts, wrapped
from analysis.wording import UNKNOWN

MOST_LINES = 45
_MOST_FURTHER = 5
_MOST_OF_ANSWER = 3
_MOST_DETAILS = 10
_MANY_RANKS = 8
"""From this number of ranks on, only the first, the slowest and the fastest are shown."""
_DETAILS = ("top_kernels", "top_operators", "core_utilization", "kernel_totals")
"""Findings whose largest rows are shown, where there are any; otherwise those of the weightiest table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The parts of a screen."""

    answer: Sequence[str] = ()
    """Sentences, of each at most two lines."""
    advice: Sequence[Advice] = ()
    """The first is shown."""
    ranks: Table | None = None
    further: Sequence[str] = ()
    """Sentences, of each one line."""
    details: Table | None = None
    """As many rows as fit, ten at most."""
    rest: str = ""
    """Where everything else is."""

    def blocks(self, width: int, most_lines: int = MOST_LINES) -> list[Block]:
        """Return the screen in at most `most_lines` lines of `width` characters."""
        answer = [line for text in self.answer for line in wrapped(text, width, 2)]
        further = [f"  {line}" for text in self.further[:_MOST_FURTHER] for line in wrapped(text, width - 2, 1)]
        blocks: list[Block] = [Plain("\n".join(answer))] if answer else []
        blocks += [_advice(one, width) for one in self.advice[:1]]
        blocks += [_brief(self.ranks, len(self.ranks.rows))] if self.ranks else []
        blocks += [Plain("\n".join(["Further findings", *further]))] if further else []
        rest = [Plain("\n".join(wrapped(self.rest, width, 2)))] if self.rest else []
        for count in range(_MOST_DETAILS, 0, -1):
            shown = [*blocks, *([_brief(self.details, count)] if self.details else []), *rest]
            if sum(text.count("\n") + 1 for text in block_texts(shown, width)) <= most_lines:
                return shown
        return [*blocks, *rest]


def screen_of(findings: Sequence[Finding], advice: Sequence[Advice] = (), rest: str = "") -> Screen:
    """Return the screen of findings: the sentence of the weightiest is the answer.

    Further findings are those whose advice saves most, then the weightiest. `rest` says where everything else is.
    """
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
        rest=rest,
    )


def run_screen(
    answers: Sequence[Answer], results: Sequence[Block], notes: Sequence[str] = (), rest: str = ""
) -> Screen:
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
        answer=[first.headline, *first.good] if first else [],
        advice=first.advice if first else (),
        further=[
            *notes[:1],
            *sentences[:_MOST_OF_ANSWER],
            *notes[1:],
            *sentences[_MOST_OF_ANSWER:],
            *(block for block in results if isinstance(block, str)),
        ],
        details=table,
        rest=rest,
    )


def _ends(ranks: Table) -> Table:
    """Return a table by rank; of many ranks only the first, the slowest and the fastest."""
    time = next((field for column in ranks.columns for field in column.fields if field.endswith("_ms")), None)
    if len(ranks.rows) < _MANY_RANKS or time is None:
        return ranks
    known = [row for row in ranks.rows if row[time] is not None] or ranks.rows[:1]
    slowest, fastest = (end(known, key=lambda row: row[time]) for end in (max, min))
    ends = (("first", ranks.rows[0]), ("slowest", slowest), ("fastest", fastest))
    rows = [{**row, "": name} for name, row in ends]
    return dataclasses.replace(ranks, columns=[plain("", ""), *ranks.columns], rows=rows)


def _brief(table: Table, count: int) -> Table:
    """Return the first rows of a table, with a line for each, without the columns of which none is known."""
    texts = table.texts()[:count]
    columns = [column for column, *cells in zip(table.columns, *texts, strict=True) if {*cells} - {UNKNOWN}]
    return dataclasses.replace(table, columns=columns, rows=table.rows[:count], brief=True)


def _advice(advice: Advice, width: int) -> Facts:
    rows = [("measured", advice.seen), ("gain", advice.gain)]
    facts = [(name, wrapped(text, width - len("measured  "), 1)[0]) for name, text in rows]
    facts += [("command", advice.command)] if advice.command else []
    return Facts(facts, wrapped(f"Do this first: {advice.remedy}", width, 1)[0])
