"""Classification of texts of one or more rows; the prediction for a text is the mean over its rows."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.lengths import is_synthetic
from bert.data.loading.order import spread
from bert.data.rows import Int64, Labels, TokenRows
from bert.tasks.base import DataSource, DataSpec, Evaluation, EvaluationSpec, Trained
from bert.tasks.classification import ClassificationTask, check_judging
from bert.tasks.classify.store import TextSource, open_source, read_split
from bert.tasks.commands import some_of
from bert.tasks.options import TaskOption
from bert.tasks.row_data import EVALUATION, TRAINING
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.tasks.evaluation import Float32, LabelledRows

Float64 = npt.NDArray[np.float64]
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

    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
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
        """Return the rows of `evaluation_texts`."""
        return self.evaluation_texts(source, seq_len, wanted, training)[0]

    def evaluation_texts(
        self, source: str, seq_len: int, wanted: str | None, training: TokenRows
    ) -> tuple[TokenRows, Int64]:
        """Return the rows to evaluate on, and the number of each row's text [N]; arguments as in `evaluation_rows`.

        Labels of another database have the codes that they have where the model is trained.

        Raises:
            InputError: there are none, they are damaged, longer than those that are trained on, of another vocabulary,
                or have labels that those have not.
            UsageError: they are of the same CSV, divided otherwise: some are trained on.
        """
        place = wanted or source
        opened = open_source(Path(place))
        rows, texts = self.texts(opened, EVALUATION)
        if wanted is not None:
            rows = _as_trained(open_source(Path(source)), opened, rows)
        check_judging(rows, place, seq_len, training, source)
        return rows, texts

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """Return the number of labels that the data have. Raises InputError."""
        return {"labels": self.labels if is_synthetic(source.source) else len(open_source(Path(source.source)).labels)}

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes a database."""
        return f"bertbench data csv FILE.csv --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """What the results say, which the training leaves in the database of its texts."""
        return None if is_synthetic(trained.data) else ["bertbench", "report", trained.data]

    def score(self, logits: "Float32", labels: Labels) -> Mapping[str, float]:
        """Return the scores of rows that are texts of their own."""
        return class_scores(probabilities(logits), labels)

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "LabelledRows":
        """Open the texts to evaluate on, or `wanted.samples` of them; raises as `evaluation_texts`."""
        from bert.tasks.evaluation import LabelledRows

        training = self.rows_of(spec, TRAINING)
        rows, texts = self.evaluation_texts(spec.data, spec.seq_len, wanted.source, training)
        self.check_labels(rows, wanted.source or spec.data)
        numbers = np.unique(texts)
        numbers = numbers[spread(len(numbers), wanted.samples)]
        chosen = np.flatnonzero(np.isin(texts, numbers))

        def score(logits: "Float32") -> Evaluation:
            first, shares = text_probabilities(logits, texts[chosen])
            values = class_scores(shares, rows.labels[chosen][first])
            return Evaluation(values=values, samples=len(shares), counts={"rows": len(logits)})

        return LabelledRows(rows, chosen, self.labels, score, spec, f"{rows.fingerprint}/{len(numbers)} texts")


def _as_trained(trained: TextSource, opened: TextSource, rows: TokenRows) -> TokenRows:
    """Return rows of another database with the codes that their labels have where the model is trained."""
    division, other = (
        {name: value for name, value in source.settings.items() if name != "max_seq_length"}
        for source in (trained, opened)
    )
    if trained.origin["digest"] == opened.origin["digest"] and division != other:
        raise UsageError(
            "option-conflict", f"{opened.path} and {trained.path} split the same CSV differently: create both alike"
        )
    codes = {label: code for code, label in enumerate(trained.labels)}
    met = [opened.labels[code] for code in np.unique(rows.labels).tolist()]
    unknown = [label for label in met if label not in codes]
    if unknown:
        raise InputError(
            "labels-invalid",
            f"{opened.path} has {len(unknown):,} label(s) that {trained.path} lacks, {some_of(unknown)}: remove them",
        )
    table = np.array([codes.get(label, -1) for label in opened.labels], dtype=np.int64)
    return dataclasses.replace(rows, labels=table[rows.labels])


def probabilities(logits: "Float32") -> Float64:
    """Return the softmax [N, K] of logits [N, K]."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: Float64 = powers / powers.sum(axis=1, keepdims=True)
    return shares


def text_probabilities(logits: "Float32", texts: Int64) -> tuple[Int64, Float64]:
    """Return the probabilities of each text: the mean over its rows.

    Args:
        logits: of all rows [N, K].
        texts: number of each row's text [N], ascending.

    Returns:
        First row of each text [T], and the probabilities [T, K].
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
