"""The best threshold on no-answer scores, and precision against recall over all of them (SQuAD 2.0).

Rajpurkar et al. 2018, section 5; the arithmetic and its order are those of the official script.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranked:
    """One predicted question."""

    null_odds: float
    answered: bool
    predicted: bool
    """The prediction is not empty."""
    exact: float
    """Its exact match, whatever the no-answer score: 0 or 1."""
    f1: float
    """Its F1, likewise."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Precision against recall while ever more questions are answered, those surest to have an answer first."""

    precisions: tuple[float, ...]
    """0 to 1; one point before any answer, then one per different no-answer score."""
    recalls: tuple[float, ...]
    """0 to 1, likewise."""
    average_precision: float
    """Area below the steps, in percent."""


@dataclass(frozen=True, slots=True)
class NullAnalysis:
    """What the no-answer scores are worth."""

    null_odds: tuple[float, ...]
    """All different ones, ascending."""
    exact: tuple[float, ...]
    """Exact match in percent with each of them as the threshold."""
    f1: tuple[float, ...]
    """F1 in percent, likewise."""
    best_exact: tuple[float, float]
    """Highest exact match in percent, and its threshold."""
    best_f1: tuple[float, float]
    """Highest F1 in percent, and its threshold."""
    curves: dict[str, Curve]
    """'exact', 'f1', 'oracle' (every answer right); empty where no question has an answer."""
    with_answer: tuple[float, ...]
    """No-answer scores of questions with an answer."""
    without_answer: tuple[float, ...]
    """No-answer scores of questions without one."""


def analyze(ranked: Sequence[Ranked], questions: int, answerable: int) -> NullAnalysis:
    """Return thresholds and curves.

    Args:
        ranked: all predicted questions, ascending by no-answer score.
        questions: questions of the dataset.
        answerable: those of them with an answer.
    """
    exact, best_exact = _sweep(ranked, [one.exact for one in ranked], questions)
    f1, best_f1 = _sweep(ranked, [one.f1 for one in ranked], questions)
    curves = {}
    if answerable:
        rights: dict[str, Callable[[Ranked], float]] = {
            "exact": lambda one: one.exact,
            "f1": lambda one: one.f1,
            "oracle": lambda one: float(one.answered),
        }
        curves = {name: _curve(ranked, [right(one) for one in ranked], answerable) for name, right in rights.items()}
    ends = [number for number in range(len(ranked)) if _ends(ranked, number)]
    return NullAnalysis(
        null_odds=tuple(ranked[number].null_odds for number in ends),
        exact=tuple(exact[number] for number in ends),
        f1=tuple(f1[number] for number in ends),
        best_exact=best_exact,
        best_f1=best_f1,
        curves=curves,
        with_answer=tuple(one.null_odds for one in ranked if one.answered),
        without_answer=tuple(one.null_odds for one in ranked if not one.answered),
    )


def _ends(ranked: Sequence[Ranked], number: int) -> bool:
    """Whether a threshold fits after this question: the next one has another no-answer score."""
    return number + 1 == len(ranked) or ranked[number].null_odds != ranked[number + 1].null_odds


def _sweep(
    ranked: Sequence[Ranked], rights: Sequence[float], questions: int
) -> tuple[list[float], tuple[float, float]]:
    """The score when all up to each question are answered, and the best one with its threshold.

    The best is looked for after every question, also between equal no-answer scores, as the official script does.
    """
    current: float = sum(not one.answered for one in ranked)
    best, threshold = current, 0.0
    found = []
    for one, right in zip(ranked, rights, strict=True):
        current += right if one.answered else -1 if one.predicted else 0
        found.append(100.0 * current / questions)
        if current > best:
            best, threshold = current, one.null_odds
    return found, (100.0 * best / questions, threshold)


def _curve(ranked: Sequence[Ranked], rights: Sequence[float], answerable: int) -> Curve:
    right, average = 0.0, 0.0
    precisions, recalls = [1.0], [0.0]
    for number, one in enumerate(ranked):
        if one.answered:
            right += rights[number]
        if _ends(ranked, number):
            precision, recall = right / (number + 1), right / answerable
            average += precision * (recall - recalls[-1])
            precisions.append(precision)
            recalls.append(recall)
    return Curve(tuple(precisions), tuple(recalls), 100.0 * average)
