"""The official scores of SQuAD 1.1 and 2.0, with the official scripts' order of sums, so that every digit agrees.

Rules: Rajpurkar et al. 2016, section 6.1 (exact match, F1); Rajpurkar et al. 2018, section 5 (questions without
answer). Missing predictions count as 0, all of them too; the script of 1.1 does so, that of 2.0 fails with them.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert.tasks.squad.score_files import Golds
from common.errors import InputError, UsageError

USUAL_THRESHOLD = 1.0
"""A question whose no-answer score is above this counts as answered with "" (the official script's default)."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = {ord(sign): None for sign in string.punctuation}
_BEST = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")


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
    """Its F1, whatever the no-answer score."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Precision against recall while ever more questions are answered, those surest to have an answer first."""

    precisions: tuple[float, ...]
    """0 to 1; one point before any answer, then one per different no-answer score."""
    recalls: tuple[float, ...]
    """0 to 1, for the same points."""
    average_precision: float
    """Area below the steps, in percent."""


@dataclass(frozen=True, slots=True)
class NullAnalysis:
    """Analysis of the no-answer scores."""

    null_odds: tuple[float, ...]
    """All different ones, ascending."""
    exact: tuple[float, ...]
    """Exact match in percent with each of them as the threshold."""
    f1: tuple[float, ...]
    """F1 in percent with each of them as the threshold."""
    best_exact: tuple[float, float]
    """Highest exact match in percent, and its threshold."""
    best_f1: tuple[float, float]
    """Highest F1 in percent, and its threshold."""
    curves: dict[str, Curve]
    """'exact', 'f1', 'oracle' (every answer right); empty if no question has an answer."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the official script prints, and what it was made of."""

    version: str
    """'1.1' or '2.0'."""
    values: dict[str, float]
    """The official names, in the official order; percentages, counts and thresholds."""
    questions: int
    """Questions of the dataset, the denominator."""
    missing: tuple[str, ...]
    """Ids of questions without a prediction; each counts as 0."""
    extra: tuple[str, ...]
    """Ids predicted that no question has; they count nothing."""
    notes: tuple[str, ...]
    """Notes about the inputs, for people."""
    analysis: NullAnalysis | None = None
    """Curves over the no-answer scores (2.0, where they were given)."""

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain JSON values, without the curves."""
        return {
            "version": self.version,
            "scores": self.values,
            "questions": self.questions,
            "missing": list(self.missing),
            "extra": list(self.extra),
            "notes": list(self.notes),
        }


def normalize(text: str) -> str:
    """Lower the case, drop ASCII punctuation, then the words a, an and the; one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float | None = None,
) -> Scores:
    """Score predictions by the rules of the dataset's version.

    Args:
        golds: the dataset.
        predictions: answer by question id.
        null_odds: no-answer score by question id, in the file's order, which decides between equal ones; 2.0 only.
        threshold: a no-answer score above it counts as the answer ""; None = 1.0.

    Raises:
        InputError: there are predictions, and none belongs to the dataset; a predicted question has no no-answer score.
        UsageError: `null_odds` with a dataset of version 1.1, or `threshold` without `null_odds`.
    """
    if null_odds is None and threshold is not None:
        raise UsageError("option-missing", "a threshold needs no-answer scores: also give --na-prob null_odds.json")
    if null_odds is not None and golds.version == "1.1":
        raise UsageError(
            "option-not-applicable",
            "--na-prob is for SQuAD 2.0, but every question of this dataset has an answer: leave it out",
        )
    known = dict.fromkeys(golds.ids)
    missing = tuple(name for name in known if name not in predictions)
    extra = tuple(name for name in predictions if name not in known)
    if predictions and len(missing) == len(known):
        raise InputError(
            "answers-invalid",
            f"none of the {len(predictions):,} predictions matches the dataset's {len(known):,} questions: "
            "give the dataset they were made for",
        )
    notes = list(golds.notes)
    if golds.version == "1.1":
        return Scores("1.1", _score_1(golds, predictions), len(golds.ids), missing, extra, tuple(notes))
    usual = USUAL_THRESHOLD if threshold is None else threshold
    values, analysis = _score_2(golds, predictions, null_odds, usual)
    if null_odds is not None:
        unknown = sum(name not in known for name in null_odds)
        notes += [f"{unknown:,} no-answer score(s) have unknown ids"] * (unknown > 0)
    return Scores("2.0", values, len(known), missing, extra, tuple(notes), analysis)


def _score_1(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    exact, f1 = 0, 0.0
    for name, answers in zip(golds.ids, golds.answers, strict=True):
        if name in predictions:
            exact_here, f1_here = _best(answers, predictions[name], empty_counts=False)
            exact += exact_here
            f1 += f1_here
    total = len(golds.ids)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def _score_2(
    golds: Golds, predictions: Mapping[str, str], null_odds: Mapping[str, float] | None, threshold: float
) -> tuple[dict[str, float], NullAnalysis | None]:
    answered: dict[str, bool] = {}
    raw: dict[str, tuple[int, float]] = {}
    for name, answers in zip(golds.ids, golds.answers, strict=True):
        answered[name] = bool(answers)
        if name in predictions:
            kept = [answer for answer in answers if normalize(answer)] or [""]
            raw[name] = _best(kept, predictions[name], empty_counts=True)
    final: dict[str, tuple[float, float]] = dict.fromkeys(answered, (0, 0.0))
    final |= raw
    if null_odds is not None:
        without = [name for name in raw if name not in null_odds]
        if without:
            raise InputError(
                "answers-invalid",
                f"{len(without):,} of the {len(raw):,} predicted questions lack a no-answer score, the first is "
                f"{without[0][:60]!r}: give the file of the same prediction",
            )
        for name in raw:
            if null_odds[name] > threshold:
                final[name] = (float(not answered[name]),) * 2
    values: dict[str, float] = {}
    for prefix, names in (
        ("", list(answered)),
        ("HasAns_", [name for name, has in answered.items() if has]),
        ("NoAns_", [name for name, has in answered.items() if not has]),
    ):
        if names:
            values[f"{prefix}exact"] = _percent((final[name][0] for name in names), len(names))
            values[f"{prefix}f1"] = _percent((final[name][1] for name in names), len(names))
            values[f"{prefix}total"] = len(names)
    if null_odds is None:
        return values, None
    ranked = [
        Ranked(null_odds[name], answered[name], predictions[name] != "", *raw[name])
        for name in sorted((name for name in null_odds if name in raw), key=lambda name: null_odds[name])
    ]
    analysis = analyze(ranked, questions=len(answered), answerable=sum(answered.values()))
    values |= zip(_BEST, (*analysis.best_exact, *analysis.best_f1), strict=True)
    values |= {f"pr_{name}_ap": curve.average_precision for name, curve in analysis.curves.items()}
    return values, analysis


def _percent(values: Iterable[float], total: int) -> float:
    # A plain sum: sum() of Python 3.12 rounds less often than the one that made the official figures.
    result = 0.0
    for value in values:
        result += value
    return 100.0 * result / total


def _best(golds: Iterable[str], prediction: str, *, empty_counts: bool) -> tuple[int, float]:
    """Exact match (0 or 1) and F1 of the gold answer that fits best."""
    found = normalize(prediction)
    words = found.split()
    exact, f1 = 0, 0.0
    for gold in dict.fromkeys(golds):
        wanted = normalize(gold)
        if found == wanted:
            exact = 1
        f1 = max(f1, _f1(words, wanted.split(), empty_counts=empty_counts))
    return exact, f1


def _f1(found: list[str], wanted: list[str], *, empty_counts: bool) -> float:
    """F1 of two bags of words; two empty ones agree by the rules of 2.0 and not by those of 1.1."""
    if not found or not wanted:
        return float(empty_counts and found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return (2 * precision * recall) / (precision + recall)


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
