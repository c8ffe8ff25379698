"""The scores of GLUE (Wang et al. 2018, arXiv 1804.07461, table 1), fractions of 1. Imports no torch.

They are those of scikit-learn and SciPy, which the benchmark scores with; both are imported where they are used.
"""

import math
import warnings

import numpy as np
import numpy.typing as npt

from bert.tasks.glue.tasks import GlueSpec

Values = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]


def accuracy(predictions: Classes, labels: Classes) -> float:
    """Share of the rows [N] whose prediction is the label."""
    return float((predictions == labels).mean())


def f1_score(predictions: Classes, labels: Classes) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 where class 1 is neither predicted nor a label."""
    from sklearn import metrics

    return float(metrics.f1_score(labels == 1, predictions == 1, zero_division=0.0))


def matthews(predictions: Classes, labels: Classes) -> float:
    """Matthews' correlation of two classes (Matthews 1975); 0 where all predictions or all labels are the same."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(predictions: Values, labels: Values) -> float:
    """Pearson's correlation; not a number where all predictions or all labels are the same, or there is one row."""
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, labels).statistic) if len(labels) > 1 else math.nan


def spearman(predictions: Values, labels: Values) -> float:
    """Pearson's correlation of the ranks, equal values sharing the mean of theirs (Spearman 1904)."""
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if len(labels) > 1 else math.nan


def scores(spec: GlueSpec, predictions: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> dict[str, float]:
    """Return all scores of a task by name, fractions of 1; the headline is `spec.headline`.

    Where the benchmark has two metrics their mean, which is its score of the task, comes last.

    Args:
        spec: the task.
        predictions: classes, or numbers where the task is a regression [N].
        labels: likewise [N].
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what comes of rows that are all alike is said above
        if spec.is_regression:
            given, right = predictions.astype(np.float64), labels.astype(np.float64)
            found = {"pearson": pearson(given, right), "spearman": spearman(given, right)}
        else:
            classes, truth = predictions.astype(np.int64), labels.astype(np.int64)
            known = {"matthews": matthews, "f1_score": f1_score, "accuracy": accuracy}
            found = {name: known[name](classes, truth) for name in dict.fromkeys((*spec.metrics, "accuracy"))}
    if len(spec.metrics) > 1:
        found["_".join(spec.metrics)] = float(np.mean([found[name] for name in spec.metrics]))
    return found


def score_names(spec: GlueSpec) -> tuple[str, ...]:
    """Return the names of what `scores` finds, in its order."""
    metrics = spec.metrics if spec.is_regression else tuple(dict.fromkeys((*spec.metrics, "accuracy")))
    return (*metrics, *(["_".join(spec.metrics)] if len(spec.metrics) > 1 else []))


def decided(spec: GlueSpec, logits: npt.NDArray[np.floating]) -> npt.NDArray[np.generic]:
    """Return the class with the greatest logit, the first of equal ones, or the number [N] of logits [N, K]."""
    return logits[:, 0].astype(np.float64) if spec.is_regression else np.argmax(logits, axis=1).astype(np.int64)
