"""The official scores of GAP, and further scores of predictions. Imports no torch.

Rules: Webster et al. 2018 (arXiv 1810.05201), section 4, as the published scorer has them: each of the two names of a
row is a decision of its own, about which the answer is TRUE or FALSE. A name without a decision counts as a false
negative, whether the pronoun means it or not. Log loss is that of the competition on Kaggle ("Gendered Pronoun
Resolution", evaluation page): the three probabilities of a row are divided by their sum and kept 1e-15 away from 0
and 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from bert.tasks.gap.reading import (
    DECISIONS,
    FEMININE,
    LABELS,
    MASCULINE,
    Decision,
    GapExample,
    Gold,
    in_words,
    read_gap,
)
from common.errors import InputError

OVERALL = "overall"
ANSWERS = (*LABELS, "both", "none")
"""Columns of a confusion matrix: what a system can answer; none where it decided nothing, or only about one name."""
_LEAST_PROBABILITY = 1e-15
_DISTANCES = (2, 5, 10)
"""Upper ends of the parts by distance, and by length: close to the quartiles of GAP itself."""
_LENGTHS = (60, 70, 85)


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions about names: percentages, 0 where they are undefined, and counts."""

    recall: float
    precision: float
    f1: float
    true_positives: int
    false_positives: int
    false_negatives: int
    """Names without a decision included."""
    true_negatives: int

    @classmethod
    def of(cls, true: int, false: int, missed: int, rejected: int) -> "Tally":
        """Return that of so many true and false positives, false and true negatives."""
        recall = 100.0 * true / (true + missed) if true + missed else 0.0
        precision = 100.0 * true / (true + false) if true + false else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        return cls(recall, precision, f1, true, false, missed, rejected)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How good the decisions are."""

    overall: Tally
    masculine: Tally
    feminine: Tally
    bias: float | None
    """F1 of the feminine rows over that of the masculine ones; None if one of them is 0."""
    rows: int
    accuracy: float
    """Fraction of the rows of which both decisions are right."""
    log_loss: float | None
    """In nats, over the rows with probabilities; None if there are none."""
    rows_with_probabilities: int
    confusion: dict[str, dict[str, int]]
    """Rows by what is right (LABELS, and both) and what was answered (ANSWERS)."""
    missing: list[str]
    """Ids of rows without a decision."""
    extra: list[str]
    """Ids decided on that no row has."""


def score(
    golds: Mapping[str, Gold],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
) -> Scores:
    """Score decisions as the official scorer does, all by id: what is right, of at least one row, what a system says,
    and its probabilities of neither, A and B, not negative and of a sum above 0."""
    counts = {name: [0, 0, 0, 0] for name in (OVERALL, MASCULINE, FEMININE)}
    confusion = {right: dict.fromkeys(ANSWERS, 0) for right in ANSWERS[:-1]}
    losses = []
    for name, (truth, gender) in golds.items():
        decision = decisions.get(name, (None, None))
        for right, decided in zip(truth, decision, strict=True):
            cell = (0 if right else 1) if decided else (2 if right or decided is None else 3)
            for group in counts.keys() & {OVERALL, gender}:
                counts[group][cell] += 1
        confusion[_answer(truth)][_answer(decision)] += 1
        if probabilities is not None and name in probabilities and truth in DECISIONS:
            losses.append(log_loss(probabilities[name], DECISIONS.index(truth)))
    overall, masculine, feminine = (Tally.of(*cells) for cells in counts.values())
    return Scores(
        overall=overall,
        masculine=masculine,
        feminine=feminine,
        bias=feminine.f1 / masculine.f1 if feminine.f1 and masculine.f1 else None,
        rows=len(golds),
        accuracy=sum(row[right] for right, row in confusion.items()) / len(golds),
        log_loss=float(np.mean(losses)) if losses else None,
        rows_with_probabilities=len(losses),
        confusion=confusion,
        missing=[name for name in golds if name not in decisions],
        extra=[name for name in decisions if name not in golds],
    )


def log_loss(probabilities: Sequence[float], label: int) -> float:
    """Return the loss of one row in nats, from the probabilities of the classes and the class that is right."""
    share = probabilities[label] / sum(probabilities)
    return float(-np.log(min(max(share, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)))


def _answer(decision: Decision) -> str:
    if decision in DECISIONS:
        return LABELS[DECISIONS.index(decision)]
    return "none" if None in decision else "both"


def read_golds(path: Path) -> dict[str, GapExample]:
    """Read the rows of a TSV of GAP with answers, by id. Raises InputError: a row cannot be scored."""
    file = read_gap(path)
    if file.left_out:
        raise InputError("rows-invalid", f"{path} has rows that cannot be scored: {in_words(file.left_out)}")
    wrong = [example.line for example in file.examples if None in (*example.decision, example.gender)]
    if wrong:
        what = "A-coref and B-coref must be TRUE or FALSE, and the pronoun one of GAP's"
        raise InputError("labels-invalid", f"{path}, line {wrong[0]}, cannot be scored: {what}")
    return {example.id: example for example in file.examples}


def slices(
    examples: Mapping[str, GapExample],
    decisions: Mapping[str, Decision],
    probabilities: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Return rows, accuracy, F1 and log loss by gender, by the distance of the nearer name, and by the length of the
    text; empty parts are left out."""
    rows = examples.values()
    parts = [("gender", gender, [row for row in rows if row.gender == gender]) for gender in (MASCULINE, FEMININE)]
    for by, words, ends in (("distance", distance, _DISTANCES), ("length", length, _LENGTHS)):
        for before, most in pairwise((-1, *ends, math.inf)):
            name = f"{before + 1} words or more" if most == math.inf else f"{before + 1} to {most} words"
            parts.append((by, name, [row for row in rows if before < words(row) <= most]))
    found = []
    for by, name, members in filter(itemgetter(2), parts):
        scores = score({row.id: (row.decision, row.gender) for row in members}, decisions, probabilities)
        values = {"rows": scores.rows, "accuracy": scores.accuracy, "f1": scores.overall.f1}
        found.append({"by": by, "name": name, **values, "log_loss": scores.log_loss})
    return found


def distance(example: GapExample) -> int:
    """Return the words between the pronoun and the nearer name."""
    pronoun, *names = example.mentions
    pairs = [sorted((name, pronoun), key=lambda mention: mention.offset) for name in names]
    return min(len(example.text[first.end : second.offset].split()) for first, second in pairs)


def length(example: GapExample) -> int:
    """Return the words of the text."""
    return len(example.text.split())
