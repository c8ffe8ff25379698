"""The official scores of GAP, and further scores of predictions. Imports no torch.

Rules: Webster et al. 2018 (arXiv 1810.05201), section 4, as the published scorer has them: each of the two names of a
row is a decision of its own, about which the answer is TRUE or FALSE. A name without a decision counts as a false
negative, whether the pronoun means it or not. Log loss is that of the competition on Kaggle ("Gendered Pronoun
Resolution", evaluation page): the three probabilities of a row are divided by their sum and kept 1e-15 away from 0
and 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.gap.reading import FEMININE, LABEL_COLUMNS, LABELS, MASCULINE, GapExample, in_words, read_gap
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


Gold = tuple[bool, bool, str | None]
"""The answer to one row: whether the pronoun means A, and B; and the gender of the pronoun."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions about names, counted; a name without a decision is a false negative."""

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    true_negatives: int = 0

    @property
    def recall(self) -> float:
        """Return true positives of all that are meant, in percent; 0 if there are none."""
        meant = self.true_positives + self.false_negatives
        return 100.0 * self.true_positives / meant if meant else 0.0

    @property
    def precision(self) -> float:
        """Return the share of true positives among all predicted positives, in percent; 0 if there are none."""
        positives = self.true_positives + self.false_positives
        return 100.0 * self.true_positives / positives if positives else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of recall and precision, in percent; 0 where both are."""
        recall, precision = self.recall, self.precision
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def to_json(self) -> dict[str, float]:
        """Return percentages and counts by name."""
        return {"recall": self.recall, "precision": self.precision, "f1": self.f1, **asdict(self)}


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
    """Rows with probabilities."""
    confusion: npt.NDArray[np.int64]
    """Rows by what is right (LABELS, and both) and what was answered (ANSWERS) [4, 5]."""
    missing: tuple[str, ...] = ()
    """Ids of rows without a decision."""
    extra: tuple[str, ...] = ()
    """Ids decided on that no row has."""

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
        }


def score(
    golds: Mapping[str, Gold],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
) -> Scores:
    """Score decisions as the official scorer does.

    Args:
        golds: what is right, by id; at least one.
        decisions: what a system says, by id; rows without are missing.
        probabilities: of neither, A and B, not negative and of a sum above 0, by id; None if there are none.
    """
    counts = {name: [0, 0, 0, 0] for name in (OVERALL, MASCULINE, FEMININE)}
    confusion = np.zeros((len(ANSWERS) - 1, len(ANSWERS)), np.int64)
    losses = []
    for name, gold in golds.items():
        decision = decisions.get(name, NO_DECISION)
        truth, gender = gold[:2], gold[2]
        for group in (OVERALL, *((gender,) if gender in counts else ())):
            for right, decided in zip(truth, decision, strict=True):
                counts[group][_cell(right, decided)] += 1
        confusion[_answer(truth), _answer(decision)] += 1
        if probabilities is not None and name in probabilities and truth != (True, True):
            losses.append(log_loss(probabilities[name], DECISIONS.index(truth)))
    return Scores(
        tallies={group: Tally(*cells) for group, cells in counts.items()},
        rows=len(golds),
        accuracy=float(np.trace(confusion)) / len(golds),
        log_loss=float(np.mean(losses)) if losses else None,
        probable=len(losses),
        confusion=confusion,
        missing=tuple(name for name in golds if name not in decisions),
        extra=tuple(name for name in decisions if name not in golds),
    )


def log_loss(probabilities: Sequence[float], label: int) -> float:
    """Return the loss of one row in nats, from the probabilities of the classes and the class that is right."""
    share = probabilities[label] / sum(probabilities)
    return float(-np.log(min(max(share, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)))


def decisions_of(ids: Sequence[str], classes: npt.NDArray[np.int64]) -> dict[str, Decision]:
    """Return the decisions that follow from the classes [N] of rows, by id."""
    return {name: DECISIONS[number] for name, number in zip(ids, classes.tolist(), strict=True)}


def _cell(right: bool, decided: bool | None) -> int:
    """Return the field of a Tally that a decision counts in."""
    if decided:
        return 0 if right else 1
    return 2 if right or decided is None else 3


def _answer(decision: Decision) -> int:
    if None in decision:
        return len(ANSWERS) - 1
    return DECISIONS.index(decision) if decision in DECISIONS else ANSWERS.index("both")


def read_golds(path: Path) -> dict[str, GapExample]:
    """Read the rows of a TSV of GAP with answers, by id. Raises InputError: a row cannot be scored."""
    file = read_gap(path)
    if not file.labelled:
        raise InputError("columns-missing", f"{path} lacks the columns {' and '.join(LABEL_COLUMNS)}: give answers")
    if file.left_out:
        raise InputError("rows-invalid", f"{path} has rows that cannot be scored: {in_words(file.left_out)}")
    for example in file.examples:
        if None in (example.a_coref, example.b_coref, example.gender):
            raise InputError(
                "labels-invalid",
                f"{path}, line {example.line} ({example.id}), cannot be scored: A-coref and B-coref must be TRUE or "
                "FALSE, and the pronoun he, his, him, she, her or hers",
            )
    return {example.id: example for example in file.examples}


# Upper ends of the groups; close to the quartiles of GAP itself.
_DISTANCES = (2, 5, 10)
_LENGTHS = (60, 70, 85)


def slices(
    examples: Mapping[str, GapExample],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Return rows, accuracy, F1 and log loss by gender, by the distance of the nearer name, and by the length of the
    text; empty parts are left out."""
    groups: dict[tuple[str, str], dict[str, Gold]] = {
        **{("gender", gender): {} for gender in (MASCULINE, FEMININE)},
        **{("distance", _range(place, _DISTANCES)): {} for place in range(len(_DISTANCES) + 1)},
        **{("length", _range(place, _LENGTHS)): {} for place in range(len(_LENGTHS) + 1)},
    }
    for name, example in examples.items():
        for by, measure, ends in (("distance", distance, _DISTANCES), ("length", length, _LENGTHS)):
            place = sum(measure(example) > end for end in ends)
            groups[by, _range(place, ends)][name] = example.gold
        groups["gender", str(example.gender)][name] = example.gold
    found = []
    for (by, name), members in groups.items():
        if members:
            scores = score(members, decisions, probabilities)
            f1 = scores.tallies[OVERALL].f1
            part = {"rows": scores.rows, "accuracy": scores.accuracy, "f1": f1, "log_loss": scores.log_loss}
            found.append({"by": by, "name": name, **part})
    return found


def distance(example: GapExample) -> int:
    """Return the words between the pronoun and the nearer name."""
    pairs = [sorted((name, example.pronoun), key=lambda mention: mention.offset) for name in (example.a, example.b)]
    return min(len(example.text[first.end : second.offset].split()) for first, second in pairs)


def length(example: GapExample) -> int:
    """Return the words of the text."""
    return len(example.text.split())


def _range(place: int, ends: Sequence[int]) -> str:
    least = 0 if place == 0 else ends[place - 1] + 1
    return f"{least} words or more" if place == len(ends) else f"{least} to {ends[place]} words"
