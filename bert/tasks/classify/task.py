"""Classification of texts of one or more rows; the prediction for a text is the mean over its rows."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.lengths import is_synthetic
from bert.data.loading.order import spread
from bert.data.rows import Int64, Labels, Ragged, TokenRows
from bert.tasks.base import DataSource, DataSpec, Evaluation, EvaluationSpec, Trained
from bert.tasks.classification import ClassificationTask, check_judging
from bert.tasks.classify.store import TextSet, TextSource, is_database, open_source, read_split
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
_MOST_NAMED = 5


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
        opened, found = self.texts(source, split)
        return token_rows(opened, found, split)

    def texts(self, source: Path, split: str) -> tuple[TextSource, TextSet]:
        """Read the rows of a split with the numbers of their texts. Raises as `rows` does."""
        if source.is_file() and not is_database(source):
            word = shlex.quote(str(source))
            raise InputError(
                "data-unprepared",
                f"{source} is not a SQLite file of `data csv`: run `bertbench data csv {word} --vocab VOCAB.txt`",
            )
        opened = open_source(source)
        found = read_split(opened, _SPLITS[split])
        if not len(found.lengths):
            option = {TEST: " with a larger --test", EVALUATION: " with a larger --validation"}.get(split, "")
            raise InputError("data-missing", f"{source} has no text to {_SPLITS[split]}: create it again{option}")
        return opened, found

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
        opened, found = self.texts(Path(place), EVALUATION)
        if wanted is not None:
            found = _as_trained(open_source(Path(source)), opened, found)
        rows = token_rows(opened, found, EVALUATION)
        check_judging(rows, place, seq_len, training, source)
        return rows, found.texts

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


def _as_trained(trained: TextSource, opened: TextSource, found: TextSet) -> TextSet:
    division, other = (
        {name: value for name, value in source.settings.items() if name != "max_seq_length"}
        for source in (trained, opened)
    )
    if trained.origin.get("digest") == opened.origin.get("digest") and division != other:
        raise UsageError(
            "option-conflict", f"{opened.path} and {trained.path} split the same CSV differently: create both alike"
        )
    codes = {label: code for code, label in enumerate(trained.labels)}
    met = [opened.labels[code] for code in np.unique(found.labels).tolist()]
    unknown = [label for label in met if label not in codes]
    if unknown:
        shown = ", ".join(repr(label[:40]) for label in unknown[:_MOST_NAMED]) + ", ..." * (len(unknown) > _MOST_NAMED)
        raise InputError(
            "labels-invalid",
            f"{opened.path} has {len(unknown):,} label(s) that {trained.path} lacks ({shown}): remove these texts",
        )
    table = np.array([codes.get(label, -1) for label in opened.labels], dtype=np.int64)
    return dataclasses.replace(found, labels=table[found.labels])


def rows_fingerprint(source: TextSource, split: str) -> str:
    """Return TokenRows.fingerprint of a split."""
    return f"{source.fingerprint}/{split}"


def token_rows(source: TextSource, found: TextSet, split: str) -> TokenRows:
    """Return rows of a database as batches are made of them."""
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    return TokenRows(
        ids=Ragged(found.ids, offsets),
        second=found.lengths,
        labels=found.labels,
        fingerprint=rows_fingerprint(source, split),
        vocab_size=len(source.vocabulary.pieces),
        vocabulary=source.vocabulary.fingerprint,
        pad_id=source.vocabulary.pad_id,
        max_seq_length=source.max_seq_length,
    )


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
