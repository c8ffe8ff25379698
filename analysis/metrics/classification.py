"""Classification metrics: confusion matrix, and precision, recall and F1 of each label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.packages import need
from records.classification import Pairs

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
MOST_IN_MATRIX = 1000
"""Largest number of labels that gets a confusion matrix."""


class LabelScores(NamedTuple):
    """Scores of one label."""

    label: str
    precision: float | None
    """None if no text is predicted as this label."""
    recall: float | None
    """None if no text has this label."""
    f1: float | None
    """None if no text has the label or is predicted as it."""
    support: int
    predicted: int


@dataclass(frozen=True, slots=True)
class Classification:
    """Predictions compared with true labels."""

    labels: tuple[str, ...]
    """All labels, in order."""
    cells: Int64
    """Index of the true label, index of the predicted label, number of texts: a row per pair that occurs [C, 3]."""
    scores: tuple[LabelScores, ...]
    accuracy: float
    """Share of the texts that are right."""
    balanced_accuracy: float
    """Mean recall of the labels that occur."""
    macro_f1: float
    """Mean F1 of the labels that occur or are predicted."""
    weighted_f1: float
    """Mean F1, weighted by the number of texts of each label."""
    majority: float
    """Accuracy of always predicting the most frequent label."""

    @property
    def texts(self) -> int:
        """Number of texts."""
        return int(self.cells[:, 2].sum())

    @property
    def has_matrix(self) -> bool:
        """Whether the number of labels allows a confusion matrix."""
        return len(self.labels) <= MOST_IN_MATRIX

    @property
    def confusion(self) -> Int64:
        """Texts by true label (rows) and prediction (columns) [K, K]; only where has_matrix."""
        matrix = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        matrix[self.cells[:, 0], self.cells[:, 1]] = self.cells[:, 2]
        return matrix

    @property
    def normalized(self) -> Float64:
        """Confusion matrix as shares of each row [K, K], NaN in rows of labels without texts; only where has_matrix."""
        matrix = self.confusion
        sums = matrix.sum(axis=1, keepdims=True)
        shares: Float64 = np.divide(matrix, sums, out=np.full(matrix.shape, np.nan), where=sums > 0)
        return shares

    def pairs(self) -> list[tuple[str, str, int]]:
        """Return true label, prediction and texts of each pair that occurs, in order."""
        return [(self.labels[true], self.labels[given], count) for true, given, count in self.cells.tolist()]

    def most_confused(self, count: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent errors: true label, prediction, texts, share of that label's texts."""
        wrong = [pair for pair in self.pairs() if pair[0] != pair[1]]
        support = {one.label: one.support for one in self.scores}
        ranked = sorted(wrong, key=lambda pair: -pair[2])[:count]
        return [(true, given, texts, texts / support[true]) for true, given, texts in ranked]

    def report(self) -> list[dict[str, Any]]:
        """Return the scores of each label by name, plain values."""
        return [one._asdict() for one in self.scores]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; unknown ones are None, as are the matrices of too many labels."""
        names = ("texts", "accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "majority")
        shares = self.normalized.tolist() if self.has_matrix else []
        known = [[None if np.isnan(one) else one for one in row] for row in shares]
        return {
            **{name: getattr(self, name) for name in names},
            "labels": list(self.labels),
            "confusion": self.confusion.tolist() if self.has_matrix else None,
            "confusion_normalized": known or None,
            "confusion_pairs": [list(pair) for pair in self.pairs()],
            "report": self.report(),
        }


def classify(pairs: Pairs, labels: Sequence[str] = ()) -> Classification:
    """Return the metrics of predictions, defined as in scikit-learn's precision_recall_fscore_support.

    Labels stand in the given order; others that occur come behind them, sorted.
    """
    need("classification results", "scores", "sklearn")
    from sklearn.metrics import precision_recall_fscore_support

    others = {label for pair in pairs for label in pair} - set(labels)
    order = (*labels, *sorted(others, key=_label_order))
    codes = {label: code for code, label in enumerate(order)}
    places = sorted((codes[true], codes[given], count) for (true, given), count in pairs.items() if count)
    cells = np.array(places, dtype=np.int64)
    true, predicted, weights = cells.T
    precision, recall, f1, _ = precision_recall_fscore_support(
        true, predicted, labels=range(len(order)), sample_weight=weights, zero_division=0
    )  # arrays [K]
    support, given = (np.bincount(side, weights, len(order)).astype(np.int64) for side in (true, predicted))
    scores = tuple(
        LabelScores(
            label=label,
            precision=float(precision[code]) if given[code] else None,
            recall=float(recall[code]) if support[code] else None,
            f1=float(f1[code]) if support[code] or given[code] else None,
            support=int(support[code]),
            predicted=int(given[code]),
        )
        for code, label in enumerate(order)
    )
    total = int(weights.sum())
    return Classification(
        labels=order,
        cells=cells,
        scores=scores,
        accuracy=float(weights[true == predicted].sum() / total),
        balanced_accuracy=float(recall[support > 0].mean()),
        macro_f1=float(f1[(support > 0) | (given > 0)].mean()),
        weighted_f1=float((f1 * support).sum() / total),
        majority=float(support.max() / total),
    )


def _label_order(label: str) -> tuple[int, float, str]:
    """Numbers by their value, then words."""
    try:
        value = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, value, label) if np.isfinite(value) else (1, 0.0, label)
