"""Classification metrics: confusion matrix, and precision, recall and F1 of each label."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.packages import need
from records.classification import Pairs

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
MOST_IN_MATRIX = 1000
"""Largest number of labels that gets a confusion matrix: that of 100,000 would take 80 GB."""


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of one label."""

    label: str
    precision: float | None
    """Share of the texts predicted as this label that have it; None if none is predicted so."""
    recall: float | None
    """Share of the texts with this label that are predicted as it; None if there is no such text."""
    f1: float | None
    """Harmonic mean of the two, 0 if no text is right; None if no text has the label or is predicted as it."""
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
        assert self.has_matrix, "no matrix is kept for this many labels"
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
        wrong = self.cells[self.cells[:, 0] != self.cells[:, 1]]
        found = wrong[np.argsort(-wrong[:, 2], kind="stable")[:count]].tolist()
        return [
            (self.labels[true], self.labels[given], texts, texts / self.scores[true].support)
            for true, given, texts in found
        ]

    def report(self) -> list[dict[str, Any]]:
        """Return the scores of each label by name, plain values."""
        return [asdict(one) for one in self.scores]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; unknown ones are None, as are the matrices of too many labels."""
        return {
            "texts": self.texts,
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "weighted_f1": self.weighted_f1,
            "majority": self.majority,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist() if self.has_matrix else None,
            "confusion_normalized": _without_nan(self.normalized) if self.has_matrix else None,
            "confusion_pairs": [list(pair) for pair in self.pairs()],
            "report": self.report(),
        }


def _without_nan(shares: Float64) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in shares]


def classify(pairs: Pairs, labels: Sequence[str] = ()) -> Classification:
    """Return the metrics of predictions, defined as in scikit-learn's precision_recall_fscore_support.

    Args:
        pairs: at least one with a text.
        labels: in the order wanted; others that occur come behind them, sorted.
    """
    need("classification results", "scores", "sklearn")
    from sklearn.metrics import precision_recall_fscore_support

    met = {label for pair in pairs for label in pair}
    order = (*labels, *sorted(met - set(labels), key=label_order))
    codes = {label: code for code, label in enumerate(order)}
    places = sorted((codes[true], codes[given], count) for (true, given), count in pairs.items() if count)
    cells = np.array(places, dtype=np.int64)
    true, predicted, weights = cells.T
    found = precision_recall_fscore_support(
        true, predicted, labels=range(len(order)), sample_weight=weights, zero_division=0
    )  # four arrays [K]
    support, given = np.zeros((2, len(order)), dtype=np.int64)
    np.add.at(support, true, weights)
    np.add.at(given, predicted, weights)
    scores = tuple(
        LabelScores(
            label=label,
            precision=float(found[0][code]) if given[code] else None,
            recall=float(found[1][code]) if support[code] else None,
            f1=float(found[2][code]) if support[code] or given[code] else None,
            support=int(support[code]),
            predicted=int(given[code]),
        )
        for code, label in enumerate(order)
    )
    f1, occurs, total = np.asarray(found[2]), support > 0, int(weights.sum())
    return Classification(
        labels=order,
        cells=cells,
        scores=scores,
        accuracy=float(weights[true == predicted].sum() / total),
        balanced_accuracy=float(np.asarray(found[1])[occurs].mean()),
        macro_f1=float(f1[occurs | (given > 0)].mean()),
        weighted_f1=float((f1 * support).sum() / total),
        majority=float(support.max() / total),
    )


def label_order(label: str) -> tuple[int, float, str]:
    """Sort key of labels: numbers by their value, then words."""
    try:
        value = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, value, label) if np.isfinite(value) else (1, 0.0, label)
