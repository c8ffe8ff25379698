"""Losses, their parts and evaluation scores of a training, and how each is shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["nats", "fraction", "percent", ""]


@dataclass(frozen=True, slots=True)
class Score:
    """How a number is shown."""

    label: str
    unit: Unit = ""
    """nats; fraction, up to 1 (correlations from -1) and shown in percent; percent, from 0 to 100; or none."""
    headline: bool = True
    """Whether it is shown where space is limited."""

    def text(self, value: float | None) -> str:
        """Return a value as people read it."""
        if value is None or not math.isfinite(value):
            return "not finite"
        if self.unit == "fraction":
            return f"{100 * value:.1f} %"
        return f"{value:.2f}" if self.unit == "percent" else f"{value:.4f}"


_KNOWN = {
    "mlm_loss": Score("MLM loss", "nats"),
    "mlm_accuracy": Score("MLM accuracy", "fraction"),
    "nsp_loss": Score("NSP loss", "nats", headline=False),
    "nsp_accuracy": Score("NSP accuracy", "fraction"),
    "exact": Score("exact match", "percent"),
    "f1": Score("F1", "percent"),
    "HasAns_exact": Score("exact match, answerable", "percent", headline=False),
    "HasAns_f1": Score("F1, answerable", "percent"),
    "NoAns_exact": Score("exact match, unanswerable", "percent", headline=False),
    "NoAns_f1": Score("F1, unanswerable", "percent"),
    "best_exact": Score("exact match, best threshold", "percent", headline=False),
    "best_exact_thresh": Score("threshold of it", headline=False),
    "best_f1": Score("F1, best threshold", "percent", headline=False),
    "best_f1_thresh": Score("threshold of that", headline=False),
    "gap_f1": Score("GAP F1", "percent"),
    "accuracy": Score("accuracy", "fraction"),
    "f1_score": Score("F1", "fraction"),
    "macro_f1": Score("macro F1", "fraction"),
    "matthews": Score("Matthews correlation", "fraction"),
    "pearson": Score("Pearson correlation", "fraction"),
    "spearman": Score("Spearman correlation", "fraction"),
    "pearson_spearman": Score("mean of Pearson and Spearman", "fraction", headline=False),
    "f1_score_accuracy": Score("mean of F1 and accuracy", "fraction", headline=False),
    "mean_squared_error": Score("mean squared error", headline=False),
}
"""By the names of bert.tasks; others are shown under the names they have, by their endings."""

_NO_SCORES = ("seconds", "time_ns", "applied_steps")


def score(name: str) -> Score:
    """Return how a number of this name is shown, known or not."""
    unit: Unit = "nats" if name.endswith("_loss") else "fraction" if name.endswith("_accuracy") else ""
    return _KNOWN.get(name, Score(name.replace("_", " "), unit))


def loss_unit(made_of: str) -> Unit:
    """Return the unit of a training loss, by what it is made of."""
    return "" if made_of == "mean squared error" else "nats"


def scores_in(fields: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the scores among the fields of an evaluation: floats, None if one was not finite."""
    scores = {name: value for name, value in fields.items() if name not in _NO_SCORES}
    return {name: value for name, value in scores.items() if value is None or isinstance(value, float)}


def in_words(name: str, value: float | None) -> str:
    """Return a score with its label, such as "F1 88.44"."""
    return f"{score(name).label} {score(name).text(value)}"


def evaluation_text(fields: Mapping[str, Any]) -> str:
    """Return the fields of an evaluation in words."""
    shown = [in_words(name, value) for name, value in scores_in(fields).items() if score(name).headline]
    return ", ".join([*shown, f"on {fields['samples']:,} samples"])
