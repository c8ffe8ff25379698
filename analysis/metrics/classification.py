"""Classification metrics: confusion matrix, and precision, recall and F1 of each label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.packages import need
from records.classification import Pairs

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Classification:
    """Predictions compared with true labels."""

    labels: tuple[str, ...]
    """All labels, in order."""
    confusion: Int64
    """Texts by true label (rows) and prediction (columns) [K, K]."""
    report: list[dict[str, Any]]
    """Row per label: label, precision (None if never predicted), recall (None without texts), f1 (None without
    either), support (texts), predicted."""
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
        return int(self.confusion.sum())

    @property
    def normalized(self) -> Float64:
        """Confusion matrix as shares of each row [K, K], NaN in rows of labels without texts."""
        sums = self.confusion.sum(axis=1, keepdims=True)
        shares: Float64 = np.divide(self.confusion, sums, out=np.full(self.confusion.shape, np.nan), where=sums > 0)
        return shares

    def pairs(self) -> list[tuple[str, str, int]]:
        """Return true label, prediction and texts of each pair that occurs, in order."""
        places = np.argwhere(self.confusion).tolist()
        return [(self.labels[true], self.labels[given], int(self.confusion[true, given])) for true, given in places]

    def most_confused(self, count: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent errors: true label, prediction, texts, share of that label's texts."""
        support = {row["label"]: row["support"] for row in self.report}
        wrong = sorted((pair for pair in self.pairs() if pair[0] != pair[1]), key=lambda pair: -pair[2])
        return [(true, given, texts, texts / support[true]) for true, given, texts in wrong[:count]]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; unknown ones are None."""
        names = ("texts", "accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "majority", "report")
        shares = self.normalized.tolist()
        return {
            **{name: getattr(self, name) for name in names},
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
            "confusion_normalized": [[None if np.isnan(one) else one for one in row] for row in shares],
            "confusion_pairs": [list(pair) for pair in self.pairs()],
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
    confusion = np.zeros((len(order), len(order)), dtype=np.int64)
    for (true_label, prediction), count in pairs.items():
        confusion[codes[true_label], codes[prediction]] += count
    true, predicted = np.nonzero(confusion)
    precision, recall, f1, _ = precision_recall_fscore_support(
        true, predicted, labels=range(len(order)), sample_weight=confusion[true, predicted], zero_division=0
    )  # arrays [K]
    support, given = confusion.sum(axis=1), confusion.sum(axis=0)
    report = [
        {
            "label": label,
            "precision": float(precision[code]) if given[code] else None,
            "recall": float(recall[code]) if support[code] else None,
            "f1": float(f1[code]) if support[code] or given[code] else None,
            "support": int(support[code]),
            "predicted": int(given[code]),
        }
        for code, label in enumerate(order)
    ]
    total = int(confusion.sum())
    return Classification(
        labels=order,
        confusion=confusion,
        report=report,
        accuracy=float(confusion.trace() / total),
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
