"""Classification metrics: confusion matrix; precision, recall and F1 of each label as scikit-learn defines them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
        return _ratio(self.confusion, self.confusion.sum(axis=1, keepdims=True))

    def most_confused(self, count: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent errors: true label, prediction, texts, share of that label's texts."""
        support = self.confusion.sum(axis=1)
        places = [(true, given) for true, given in np.argwhere(self.confusion).tolist() if true != given]
        most = sorted(places, key=lambda place: -self.confusion[place])[:count]
        texts = [int(self.confusion[place]) for place in most]
        return [
            (self.labels[true], self.labels[given], number, number / int(support[true]))
            for (true, given), number in zip(most, texts, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; unknown ones are None."""
        names = ("texts", "accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "majority", "report")
        shares = self.normalized.tolist()
        return {
            **{name: getattr(self, name) for name in names},
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
            "confusion_normalized": [[None if np.isnan(one) else one for one in row] for row in shares],
        }


def classify(pairs: Pairs, labels: Sequence[str] = ()) -> Classification:
    """Return the metrics of predictions.

    Labels stand in the given order; others that occur come behind them, sorted.
    """
    others = {label for pair in pairs for label in pair} - set(labels)
    order = (*labels, *sorted(others, key=_label_order))
    codes = {label: code for code, label in enumerate(order)}
    confusion = np.zeros((len(order), len(order)), dtype=np.int64)
    for (true_label, prediction), count in pairs.items():
        confusion[codes[true_label], codes[prediction]] += count
    right, support, given = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    precision, recall, f1 = _ratio(right, given), _ratio(right, support), _ratio(2 * right, support + given)
    columns = {"precision": precision, "recall": recall, "f1": f1}
    report = [
        {
            "label": label,
            **{name: None if np.isnan(values[code]) else float(values[code]) for name, values in columns.items()},
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
        accuracy=float(right.sum() / total),
        balanced_accuracy=float(recall[support > 0].mean()),
        macro_f1=float(f1[support + given > 0].mean()),
        weighted_f1=float((np.nan_to_num(f1) * support).sum() / total),
        majority=float(support.max() / total),
    )


def _ratio(parts: Int64, whole: Int64) -> Float64:
    """Return parts / whole, NaN where the whole is 0."""
    shares: Float64 = np.divide(parts, whole, out=np.full(parts.shape, np.nan), where=whole > 0)
    return shares


def _label_order(label: str) -> tuple[int, float, str]:
    """Numbers by their value, then words."""
    try:
        value = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, value, label) if np.isfinite(value) else (1, 0.0, label)
