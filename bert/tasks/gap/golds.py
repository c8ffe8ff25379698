"""What is right in a TSV of GAP, to score with, and what its rows are like. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.tasks.gap.examples import FEMININE, LABEL_COLUMNS, MASCULINE, GapExample
from bert.tasks.gap.reading import read_gap, told_flaws
from bert.tasks.gap.scores import OVERALL, Decision, Gold, score
from common.errors import InputError

# Upper ends of what is told apart; close to the quartiles of GAP itself.
_DISTANCES = (2, 5, 10)
_LENGTHS = (60, 70, 85)


@dataclass(frozen=True, slots=True)
class GoldFile:
    """The answers of a file."""

    golds: dict[str, Gold]
    examples: tuple[GapExample, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """The scores of some of the rows."""

    by: str
    """What tells them from others: gender, distance, length."""
    name: str
    rows: int
    accuracy: float
    """Fraction of them of which both decisions are right."""
    f1: float
    """Of both names, in percent."""
    log_loss: float | None
    """In nats; None without probabilities."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_golds(path: Path) -> GoldFile:
    """Read the answers of a TSV of GAP.

    Raises:
        InputError: it is no such file, has no answers, or one of its rows cannot be used; the message has the lines.
    """
    file = read_gap(path)
    if not file.labelled:
        raise InputError(
            "columns-missing", f"{path} has no columns {' and '.join(LABEL_COLUMNS)}: there is nothing to score against"
        )
    repeated = [flaw for flaw in file.flaws if flaw.kind == "repeated ids"]
    flaws = [flaw for flaw in file.flaws if flaw not in repeated]
    if flaws:
        raise InputError(
            "rows-invalid",
            f"{path} cannot be scored against, official scores need all of its rows: {'; '.join(told_flaws(flaws))}",
        )
    golds = {}
    for example in file.examples:
        if example.a_coref is None or example.b_coref is None:
            raise InputError(
                "labels-invalid",
                f"{path}, {example.place}, has no answer: A-coref and B-coref have to be TRUE or FALSE",
            )
        if example.gender is None:
            raise InputError(
                "rows-invalid",
                f"{path}, {example.place}: the pronoun is {example.pronoun.text[:40]!r}, the official scores know he, "
                "his, him, she, her, hers",
            )
        golds[example.id] = Gold(example.a_coref, example.b_coref, example.gender)
    notes = [f"{told}: the first of each counts, as in the official scorer" for told in told_flaws(repeated)]
    return GoldFile(golds, file.examples, tuple(notes))


def slices(
    examples: Sequence[GapExample],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
) -> list[Slice]:
    """Return the scores by gender, by the distance of the nearer name, and by the length of the text; empty ones are
    left out.

    Args:
        examples: rows with answers.
        decisions: what a system says, by id.
        probabilities: as `score` takes them.
    """
    found = []
    for by, name, chosen in _groups():
        golds = {
            example.id: Gold(bool(example.a_coref), bool(example.b_coref), example.gender)
            for example in examples
            if chosen(example)
        }
        if golds:
            scores = score(golds, decisions, probabilities)
            found.append(Slice(by, name, scores.rows, scores.accuracy, scores.tallies[OVERALL].f1, scores.log_loss))
    return found


def distance(example: GapExample) -> int:
    """Return the words between the pronoun and the nearer name."""
    return min(_words_between(example, place) for place in (0, 1))


def length(example: GapExample) -> int:
    """Return the words of the text."""
    return len(example.text.split())


def _words_between(example: GapExample, place: int) -> int:
    name = (example.a, example.b)[place]
    first, second = sorted((name, example.pronoun), key=lambda mention: mention.offset)
    return len(example.text[first.end : second.offset].split())


def _groups() -> list[tuple[str, str, Callable[[GapExample], bool]]]:
    found: list[tuple[str, str, Callable[[GapExample], bool]]] = [
        ("gender", gender, lambda example, gender=gender: example.gender == gender)  # type: ignore[misc]
        for gender in (MASCULINE, FEMININE)
    ]
    for by, measure, ends in (("distance", distance, _DISTANCES), ("length", length, _LENGTHS)):
        for least, most in zip((0, *(end + 1 for end in ends)), (*ends, None), strict=True):
            name = f"{least} to {most} words" if most is not None else f"{least} words or more"

            def chosen(
                example: GapExample,
                measure: Callable[[GapExample], int] = measure,
                least: int = least,
                most: int | None = most,
            ) -> bool:
                return least <= measure(example) and (most is None or measure(example) <= most)

            found.append((by, name, chosen))
    return found
