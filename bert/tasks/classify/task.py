"""Classification of texts of one or more rows; the prediction for a text is the mean over its rows."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from bert.data.loading.order import spread
from bert.data.rows import Int64, Labels, TokenRows
from bert.tasks.base import DataSpec, Evaluation, EvaluationSpec
from bert.tasks.classification import ClassificationTask
from bert.tasks.classify.source import ClassifyData
from bert.tasks.evaluation import Float32, LabelledRows, check_logits
from bert.tasks.row_data import TRAINING

Float64 = npt.NDArray[np.float64]


class LabelledTexts(LabelledRows):
    """Texts with labels, or `samples` of them, spread evenly; their rows are shared by the ranks.

    Args:
        rows: of all texts, with labels.
        texts: number of each row's text [N], ascending.
        classes: K, logits of a row.
        spec: micro batch, rank and number of ranks.
        samples: how many texts are wanted; 0 takes all.
    """

    def __init__(self, rows: TokenRows, texts: Int64, classes: int, spec: DataSpec, samples: int = 0) -> None:
        super().__init__(rows, classes, lambda logits, labels: class_scores(probabilities(logits), labels), spec)
        numbers = np.unique(texts)
        some = numbers[spread(len(numbers), samples)]
        self._chosen = np.flatnonzero(np.isin(texts, some))
        self._texts = texts[self._chosen]
        self.fingerprint = f"{rows.fingerprint}/{len(some)} texts"

    def score(self, total: torch.Tensor) -> Evaluation:
        """Score the logits of all rows. Raises InputError if one is not a finite number."""
        logits = total.numpy().astype(np.float32).reshape(-1, self._classes)
        check_logits(logits)
        first, found = text_probabilities(logits, self._texts)
        values = class_scores(found, self.rows.labels[self._chosen][first])
        return Evaluation(values=values, samples=len(found), counts={"rows": len(logits)})


def probabilities(logits: Float32) -> Float64:
    """Return the softmax [N, K] of logits [N, K]."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    found: Float64 = powers / powers.sum(axis=1, keepdims=True)
    return found


def text_probabilities(logits: Float32, texts: Int64) -> tuple[Int64, Float64]:
    """Return the probabilities of each text: the mean over its rows.

    Args:
        logits: of all rows [N, K].
        texts: number of each row's text [N], ascending.

    Returns:
        First row of each text [T], and the probabilities [T, K].
    """
    _, first, counts = np.unique(texts, return_index=True, return_counts=True)
    return first.astype(np.int64), np.add.reduceat(probabilities(logits), first, axis=0) / counts[:, None]


def class_scores(found: Float64, labels: Labels) -> dict[str, float]:
    """Return accuracy, balanced accuracy and log loss of probabilities [T, K] and classes [T].

    Balanced accuracy is the mean over the classes that occur of the share of their texts that are found.
    """
    classes = labels.astype(np.int64)
    right = found.argmax(axis=1) == classes
    of_class = np.bincount(classes, minlength=found.shape[1])
    right_of_class = np.bincount(classes, weights=right, minlength=found.shape[1])
    occurs = of_class > 0
    losses = -np.log(np.maximum(found[np.arange(len(classes)), classes], np.finfo(np.float64).tiny))
    return {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float((right_of_class[occurs] / of_class[occurs]).mean()),
        "log_loss": float(losses.mean()),
    }


class ClassifyTask(ClassificationTask):
    """One label for each text of a CSV."""

    name = "classify"
    data: ClassifyData = ClassifyData()
    scores: tuple[str, ...] = ("accuracy", "balanced_accuracy", "log_loss")
    deciding_score = "accuracy"
    higher_is_better = True

    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        """Return the scores of rows that are texts of their own."""
        return class_scores(probabilities(logits), labels)

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> LabelledTexts:
        """Open the texts to evaluate on.

        Raises:
            InputError: there are none, they are damaged, longer than those that are trained on, of another vocabulary,
                or have labels that those have not.
            UsageError: they are of the same CSV, divided otherwise.
        """
        training = self.rows(spec, TRAINING)
        rows, texts = self.data.evaluation_texts(spec.data, spec.seq_len, wanted.source, training)
        self.check_labels(rows, wanted.source or spec.data)
        return LabelledTexts(rows, texts, self.labels, spec, wanted.samples)
