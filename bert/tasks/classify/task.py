"""Classification of texts of one or more rows; the prediction for a text is the mean over its rows."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.batches import DataSpec, spread
from bert.data.rows import Int64, Labels, TokenRows
from bert.data.synthetic import is_synthetic
from bert.tasks.base import DataSource, Evaluation, EvaluationSpec, TaskOption, Trained
from bert.tasks.classification import EVALUATION, TRAINING, ClassificationTask, Float64, probabilities
from bert.tasks.classify.store import TextSource, open_source, read_split
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.tasks.evaluation import Float32, LabelledRows

TEST = "test"
"""The split that a trained model is judged by."""
_SPLITS = {TRAINING: "train", EVALUATION: "validate", TEST: "test"}
_SYNTHETIC_LABELS = 2


class ClassifyTask(ClassificationTask):
    """One label for each text: texts folded into rows, in the SQLite file of `bertbench data csv`."""

    name = "classify"
    commands = MappingProxyType(
        {
            "data csv": (
                "bert.tasks.classify.commands:Prepare",
                "a CSV of texts with labels -> a SQLite file to train on",
            ),
            "predict": ("bert.tasks.classify.commands:Predict", "labels of the texts of a CSV"),
        }
    )
    options = (TaskOption(name="labels", kind=int, least=2, from_data=True),)
    scores = ("accuracy", "balanced_accuracy", "log_loss")
    deciding_score = "accuracy"
    higher_is_better = True

    @property
    def labels(self) -> int:
        """The number of labels."""
        return int(self.values.get("labels", _SYNTHETIC_LABELS))

    def rows(self, source: Path, split: str) -> TokenRows:
        """Read the rows of a split. Raises InputError: there are none, or damaged ones."""
        return self.texts(open_source(source), split)[0]

    def texts(self, source: TextSource, split: str) -> tuple[TokenRows, Int64]:
        """Read the rows of a split, and the number of each row's text [N]. Raises as `rows` does."""
        rows, texts = read_split(source, _SPLITS[split])
        if not len(rows):
            option = "validation" if split == EVALUATION else split
            raise InputError(
                "data-missing", f"{source.path} has no text to {_SPLITS[split]}: create it with a larger --{option}"
            )
        return rows, texts

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """Return the rows of the validation split. Raises UsageError if other data are wanted."""
        if wanted is not None:
            raise UsageError(
                "option-not-applicable",
                f"--eval-data {wanted}: classify evaluates its validation split; `predict classify` scores other texts",
            )
        return super().evaluation_rows(source, seq_len, None, training)

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """Return the number of labels that the data have. Raises InputError."""
        return {"labels": self.labels if is_synthetic(source.source) else len(open_source(Path(source.source)).labels)}

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes a database."""
        return f"bertbench data csv FILE.csv --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """What the results say, which the training leaves in the database of its texts."""
        return None if is_synthetic(trained.data) else ["bertbench", "report", trained.data]

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "LabelledRows":
        """Open the texts of the validation split, or `wanted.samples` of them; raises as `evaluation_rows`."""
        from bert.tasks.evaluation import LabelledRows

        self.check_evaluation(spec.data, spec.seq_len, wanted.source)
        rows, texts = self.texts(open_source(Path(spec.data)), EVALUATION)
        numbers = np.unique(texts)
        numbers = numbers[spread(len(numbers), wanted.samples)]
        chosen = np.flatnonzero(np.isin(texts, numbers))

        def score(logits: "Float32") -> Evaluation:
            first, shares = text_probabilities(logits, texts[chosen])
            values = class_scores(shares, rows.labels[chosen][first])
            return Evaluation(values=values, samples=len(shares), counts={"rows": len(logits)})

        return LabelledRows(rows, chosen, self.labels, score, spec, f"{rows.fingerprint}/{len(numbers)} texts")


def text_probabilities(logits: "Float32", texts: Int64) -> tuple[Int64, Float64]:
    """Return the first row of each text [T] and its probabilities [T, K]: the mean over its rows.

    `texts` has the number of each row's text [N], ascending.
    """
    _, first, counts = np.unique(texts, return_index=True, return_counts=True)
    return first.astype(np.int64), np.add.reduceat(probabilities(logits), first, axis=0) / counts[:, None]


def class_scores(shares: Float64, labels: Labels) -> dict[str, float]:
    """Return accuracy, balanced accuracy and log loss of probabilities [T, K] and classes [T].

    Balanced accuracy is the mean over the classes that occur of the share of their texts that are found.
    """
    classes = labels.astype(np.int64)
    right = shares.argmax(axis=1) == classes
    of_class = np.bincount(classes, minlength=shares.shape[1])
    right_of_class = np.bincount(classes, weights=right, minlength=shares.shape[1])
    occurs = of_class > 0
    losses = -np.log(np.maximum(shares[np.arange(len(classes)), classes], np.finfo(np.float64).tiny))
    return {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float((right_of_class[occurs] / of_class[occurs]).mean()),
        "log_loss": float(losses.mean()),
    }
