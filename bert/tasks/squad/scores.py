"""The official scores of SQuAD 1.1 and 2.0, with the official scripts' order of sums, so that every digit agrees.

Rules: Rajpurkar et al. 2016, section 6.1 (exact match, F1); Rajpurkar et al. 2018, section 5 (questions without
answer). Missing predictions count as 0, all of them too; the script of 1.1 does so, that of 2.0 fails with them.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert.tasks.squad.reading import Golds
from common.errors import InputError, UsageError

USUAL_THRESHOLD = 1.0
"""A question whose no-answer score is above this counts as answered with "" (the official script's default)."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = {ord(sign): None for sign in string.punctuation}


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
    curves: dict[str, Curve] = field(default_factory=dict)
    """'exact', 'f1', 'oracle' (every answer right); empty without no-answer scores, or questions with an answer."""

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain JSON values, without the curves."""
        about = {"version": self.version, "scores": self.values, "questions": self.questions}
        return {**about, "missing": list(self.missing), "extra": list(self.extra)}


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

    Predictions and `null_odds`, the no-answer scores (2.0 only), are by question id, the latter in the file's order,
    which decides between equal ones; one above the `threshold` (None is 1.0) counts as the answer "". Raises InputError
    (no prediction belongs to the dataset, or one has no no-answer score), UsageError (`null_odds` with a dataset of
    version 1.1, or `threshold` without them).
    """
    if null_odds is None and threshold is not None:
        raise UsageError("option-missing", "--threshold needs no-answer scores: also give --na-prob null_odds.json")
    if null_odds is not None and golds.version == "1.1":
        raise UsageError("option-not-applicable", "--na-prob is for SQuAD 2.0, this dataset is 1.1: leave it out")
    known = dict.fromkeys(golds.ids)
    missing = tuple(name for name in known if name not in predictions)
    extra = tuple(name for name in predictions if name not in known)
    if predictions and len(missing) == len(known):
        raise InputError(
            "answers-invalid",
            f"none of the {len(predictions):,} predictions matches the dataset's {len(known):,} questions: "
            "give the dataset they were made for",
        )
    if golds.version == "1.1":
        return Scores("1.1", _score_1(golds, predictions), len(golds.ids), missing, extra)
    values, curves = _score_2(golds, predictions, null_odds, USUAL_THRESHOLD if threshold is None else threshold)
    return Scores("2.0", values, len(known), missing, extra, curves)


def _score_1(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    found = [
        _best(answers, predictions[name], empty_counts=False)
        for name, answers in zip(golds.ids, golds.answers, strict=True)
        if name in predictions
    ]
    exact, f1 = (_percent((one[place] for one in found), len(golds.ids)) for place in (0, 1))
    return {"exact_match": exact, "f1": f1}


def _score_2(
    golds: Golds, predictions: Mapping[str, str], null_odds: Mapping[str, float] | None, threshold: float
) -> tuple[dict[str, float], dict[str, Curve]]:
    answered: dict[str, bool] = {}
    raw: dict[str, tuple[int, float]] = {}
    for name, answers in zip(golds.ids, golds.answers, strict=True):
        answered[name] = bool(answers)
        if name in predictions:
            worded = [answer for answer in answers if normalize(answer)] or [""]
            raw[name] = _best(worded, predictions[name], empty_counts=True)
    final: dict[str, tuple[float, float]] = {**dict.fromkeys(answered, (0, 0.0)), **raw}
    without = [name for name in raw if name not in null_odds] if null_odds is not None else []
    if without:
        raise InputError(
            "answers-invalid",
            f"{len(without):,} of the {len(raw):,} predicted questions lack a no-answer score, the first is "
            f"{without[0][:60]!r}: give the file of the same prediction",
        )
    for name in raw:
        if null_odds is not None and null_odds[name] > threshold:
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
        return values, {}
    ranked = sorted((name for name in null_odds if name in raw), key=null_odds.__getitem__)
    odds = [null_odds[name] for name in ranked]
    has_answer = [answered[name] for name in ranked]
    none_answered = sum(not has for has in has_answer)
    for place, measure in enumerate(("exact", "f1")):
        gains = [raw[name][place] if answered[name] else -bool(predictions[name]) for name in ranked]
        best, best_threshold = _best_threshold(none_answered, gains, odds)
        values[f"best_{measure}"], values[f"best_{measure}_thresh"] = 100.0 * best / len(answered), best_threshold
    answerable = sum(answered.values())
    if not answerable:
        return values, {}
    exact, f1 = ([raw[name][place] for name in ranked] for place in (0, 1))
    rights: dict[str, Sequence[float]] = {"exact": exact, "f1": f1, "oracle": has_answer}
    curves = {name: _curve(odds, has_answer, right, answerable) for name, right in rights.items()}
    values |= {f"pr_{name}_ap": curve.average_precision for name, curve in curves.items()}
    return values, curves


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


def _best_threshold(begin: float, gains: Sequence[float], odds: Sequence[float]) -> tuple[float, float]:
    """Return the best score, and the no-answer score up to which questions are answered for it.

    The best is looked for after every question, also between equal no-answer scores, as the official script does.
    `begin` is the score when no question is answered, `gains` what answering each adds, by ascending no-answer score.
    """
    current = best = begin
    threshold = 0.0
    for gain, score_here in zip(gains, odds, strict=True):
        current += gain
        if current > best:
            best, threshold = current, score_here
    return best, threshold


def _curve(odds: Sequence[float], has_answer: Sequence[bool], rights: Sequence[float], answerable: int) -> Curve:
    right, average = 0.0, 0.0
    precisions, recalls = [1.0], [0.0]
    for number, (has, right_here) in enumerate(zip(has_answer, rights, strict=True), start=1):
        if has:
            right += right_here
        if number == len(odds) or odds[number - 1] != odds[number]:
            precision, recall = right / number, right / answerable
            average += precision * (recall - recalls[-1])
            precisions.append(precision)
            recalls.append(recall)
    return Curve(tuple(precisions), tuple(recalls), 100.0 * average)
