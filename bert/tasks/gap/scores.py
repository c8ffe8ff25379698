"""The official scores of GAP, and further scores of predictions. Imports no torch.

Rules: Webster et al. 2018 (arXiv 1810.05201), section 4, as the published scorer has them: each of the two names of a
row is a decision of its own, about which the answer is TRUE or FALSE. A name without a decision counts as a false
negative, whether the pronoun means it or not. Log loss is that of the competition on Kaggle ("Gendered Pronoun
Resolution", evaluation page): the three probabilities of a row are divided by their sum and kept 1e-15 away from 0
and 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.gap.reading import FEMININE, LABEL_COLUMNS, LABELS, MASCULINE, GapExample, read_gap, told_flaws
from common.errors import InputError

OVERALL = "overall"
_LEAST_PROBABILITY = 1e-15

Decision = tuple[bool | None, bool | None]
"""Whether the pronoun means A, and B; None if nothing was decided."""
NO_DECISION: Decision = (None, None)
DECISIONS: tuple[Decision, ...] = ((False, False), (True, False), (False, True))
"""By class, in the order of LABELS."""
ANSWERS = (*LABELS, "both", "none")
"""Columns of a confusion matrix: what a system can answer; none where it decided nothing, or only about one name."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The answer to one row, and properties of the row."""

    a_coref: bool
    """Whether the pronoun means A."""
    b_coref: bool
    """Whether the pronoun means B."""
    gender: str | None
    """Of the pronoun: masculine or feminine."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions about names, counted."""

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    """Wrongly said not to be meant, and those without a decision."""
    true_negatives: int = 0
    """Rightly said not to be meant."""

    @property
    def recall(self) -> float:
        """Return true positives of all that are meant, in percent; 0 if there are none."""
        found = self.true_positives + self.false_negatives
        return 100.0 * self.true_positives / found if found else 0.0

    @property
    def precision(self) -> float:
        """Return the share of true positives among all predicted positives, in percent; 0 if there are none."""
        said = self.true_positives + self.false_positives
        return 100.0 * self.true_positives / said if said else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of recall and precision, in percent; 0 where both are."""
        recall, precision = self.recall, self.precision
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def to_json(self) -> dict[str, float]:
        """Return percentages and counts by name."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        return {"recall": self.recall, "precision": self.precision, "f1": self.f1, **counts}


@dataclass(frozen=True, slots=True)
class Scores:
    """How good the decisions are."""

    tallies: Mapping[str, Tally]
    """overall, masculine, feminine."""
    rows: int
    accuracy: float
    """Fraction of the rows of which both decisions are right."""
    log_loss: float | None
    """In nats, over the rows with probabilities; None if there are none."""
    probable: int
    confusion: npt.NDArray[np.int64]
    """Rows by what is right (LABELS, and both) and what was answered (ANSWERS) [4, 5]."""
    missing: tuple[str, ...] = ()
    """Ids of rows without a decision."""
    extra: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Notes about the inputs, for people."""

    @property
    def bias(self) -> float | None:
        """Return F1 of the feminine rows over that of the masculine ones; None if one of them is 0."""
        feminine, masculine = self.tallies[FEMININE].f1, self.tallies[MASCULINE].f1
        return feminine / masculine if feminine and masculine else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **{name: tally.to_json() for name, tally in self.tallies.items()},
            "bias": self.bias,
            "rows": self.rows,
            "accuracy": self.accuracy,
            "log_loss": self.log_loss,
            "rows_with_probabilities": self.probable,
            "confusion": {
                name: dict(zip(ANSWERS, row, strict=True))
                for name, row in zip(ANSWERS[:-1], self.confusion.tolist(), strict=True)
            },
            "missing": list(self.missing),
            "extra": list(self.extra),
            "notes": list(self.notes),
        }


def score(
    golds: Mapping[str, Gold],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
    notes: Sequence[str] = (),
) -> Scores:
    """Score decisions as the official scorer does.

    Args:
        golds: what is right, by id; at least one.
        decisions: what a system says, by id; rows without are missing.
        probabilities: of neither, A and B, not negative and of a sum above 0, by id; None if there are none.
        notes: to be kept with the scores.
    """
    counts = {name: [0, 0, 0, 0] for name in (OVERALL, MASCULINE, FEMININE)}
    confusion = np.zeros((len(ANSWERS) - 1, len(ANSWERS)), np.int64)
    losses = []
    for name, gold in golds.items():
        decision = decisions.get(name, NO_DECISION)
        truth = (gold.a_coref, gold.b_coref)
        for group in (OVERALL, *((gold.gender,) if gold.gender in counts else ())):
            for right, said in zip(truth, decision, strict=True):
                counts[group][_cell(right, said)] += 1
        confusion[_answer(truth), _answer(decision)] += 1
        if probabilities is not None and name in probabilities and truth != (True, True):
            losses.append(log_loss(probabilities[name], DECISIONS.index(truth)))
    return Scores(
        tallies={group: Tally(*found) for group, found in counts.items()},
        rows=len(golds),
        accuracy=float(np.trace(confusion)) / len(golds),
        log_loss=float(np.mean(losses)) if losses else None,
        probable=len(losses),
        confusion=confusion,
        missing=tuple(name for name in golds if name not in decisions),
        extra=tuple(name for name in decisions if name not in golds),
        notes=tuple(notes),
    )


def log_loss(probabilities: Sequence[float], label: int) -> float:
    """Return the loss of one row in nats.

    Args:
        probabilities: of the classes, not negative and of a sum above 0.
        label: the class that is right.
    """
    share = probabilities[label] / sum(probabilities)
    return float(-np.log(min(max(share, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)))


def decisions_of(ids: Sequence[str], classes: npt.NDArray[np.int64]) -> dict[str, Decision]:
    """Return the decisions that follow from the classes [N] of rows, by id."""
    return {name: DECISIONS[number] for name, number in zip(ids, classes.tolist(), strict=True)}


def _cell(right: bool, said: bool | None) -> int:
    if said is None:
        return 2
    if said:
        return 0 if right else 1
    return 2 if right else 3


def _answer(decision: Decision) -> int:
    if None in decision:
        return len(ANSWERS) - 1
    return DECISIONS.index(decision) if decision in DECISIONS else ANSWERS.index("both")


# Upper ends of the groups; close to the quartiles of GAP itself.
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
    """Read the answers of a TSV of GAP."""
    file = read_gap(path)
    if not file.labelled:
        raise InputError(
            "columns-missing", f"{path} lacks the columns {' and '.join(LABEL_COLUMNS)}: give a dataset with answers"
        )
    repeated = [flaw for flaw in file.flaws if flaw.kind == "repeated ids"]
    flaws = [flaw for flaw in file.flaws if flaw not in repeated]
    if flaws:
        raise InputError(
            "rows-invalid",
            f"{path} cannot be used for scoring, as official scores need all of its rows: "
            f"{'; '.join(told_flaws(flaws))}",
        )
    golds = {}
    for example in file.examples:
        if example.a_coref is None or example.b_coref is None:
            raise InputError(
                "labels-invalid",
                f"{path}, {example.place}, has no answer: A-coref and B-coref must be TRUE or FALSE",
            )
        if example.gender is None:
            raise InputError(
                "rows-invalid",
                f"{path}, {example.place}: the pronoun is {example.pronoun.text[:40]!r}, but official scores support "
                "only he, his, him, she, her, hers",
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
