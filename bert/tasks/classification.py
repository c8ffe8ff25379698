"""Tasks on rows of word pieces, and those of them that label whole rows (Devlin et al. 2018, section 4.1).

Imports torch where a task trains.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.batches import PADDINGS, DataSpec, RowBatches, check_rows, lengths_fingerprint, spread
from bert.data.rows import Labels, TokenRows
from bert.data.synthetic import (
    SYNTHETIC,
    Lengths,
    check_distribution,
    is_synthetic,
    lengths_folder,
    random_of,
    synthetic_rows,
)
from bert.model.config import BERT_UNCASED_VOCAB_SIZE, ModelConfig
from bert.model.step import Pass, Step
from bert.tasks.base import (
    FINE_TUNING,
    NO_OPTIONS,
    DataIdentity,
    DataSource,
    Evaluation,
    EvaluationSpec,
    Heads,
    Task,
    classifier,
    pooler,
)
from common.errors import InputError

if TYPE_CHECKING:
    import torch

    from bert.observer import Observer
    from bert.tasks.evaluation import Float32, LabelledRows

Float64 = npt.NDArray[np.float64]
TRAINING, EVALUATION = "training", "evaluation"


class RowData(Task):
    """Rows of word pieces, real or synthetic, of a task that masks none."""

    paddings = PADDINGS
    defaults = FINE_TUNING
    begins_from_encoder = True
    labelled = True
    """Whether rows to train on have a label each; else further columns say what is right."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: tuple[tuple[str, str, int], TokenRows] | None = None

    @abstractmethod
    def rows(self, source: Path, split: str) -> TokenRows:
        """Read rows of a file or folder. Raises InputError: there are none, or damaged ones.

        `split` is TRAINING, EVALUATION, or another that the task knows, such as one to predict.
        """

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect rows to train on with these options."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len, self.name)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        path = (modelled or Path(data)).resolve()
        rows = type(self)(**options).rows(path, TRAINING)
        longest = rows.max_seq_length
        check_rows(rows, str(path), longest, self.labelled)
        if modelled is None:
            return DataSource(str(path), rows.fingerprint, longest, None, rows.vocab_size, len(rows), rows.vocabulary)
        fingerprint = lengths_fingerprint(longest, rows.lengths)
        return DataSource(f"{SYNTHETIC}:{path}", fingerprint, longest, None, rows.vocab_size)

    def rows_of(self, spec: DataSpec, split: str = TRAINING) -> TokenRows:
        """Return the rows of a split of `spec.data`, which the task can use; the latest ones are kept."""
        key = (spec.data, split, spec.seq_len)
        if self._opened is None or self._opened[0] != key:
            rows = self.rows(Path(spec.data), split)
            check_rows(rows, spec.data, spec.seq_len, self.labelled)
            self.check_labels(rows, spec.data)
            self._opened = key, rows
        return self._opened[1]

    def check_labels(self, rows: TokenRows, source: str) -> None:
        """Refuse labels that the task does not have. Raises InputError."""

    def check_judging(self, rows: TokenRows, place: str, seq_len: int, training: TokenRows, source: str) -> None:
        """Refuse rows in a `place` that a model of `seq_len` tokens, trained on rows in `source`, cannot be judged by.

        Raises InputError.
        """
        check_rows(rows, place, seq_len, self.labelled)
        if rows.vocabulary != training.vocabulary:
            wrong = f"the rows in {place} and {source} were prepared with different vocabularies"
            raise InputError("vocabulary-mismatch", f"{wrong}: prepare both with the same vocab.txt and casing")

    def batches(self, spec: DataSpec, split: str = TRAINING) -> RowBatches:
        """Batches of synthetic rows, or of real ones. Raises InputError that names the file at fault."""
        return RowBatches(spec, self.synthetic_rows(spec) if is_synthetic(spec.data) else self.rows_of(spec, split))

    @abstractmethod
    def synthetic_rows(self, spec: DataSpec) -> TokenRows:
        """Return random rows that look like real ones."""

    def identify(self, spec: DataSpec, split: str = TRAINING) -> DataIdentity:
        """Inspect the rows of a run. Raises InputError if they are missing, damaged or do not fit the task."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        return DataIdentity.of(spec.data, self.rows_of(spec, split))


class ClassificationTask(RowData):
    """One label for each row: a task gives `name`, `rows`, `labels`, `prepare_command`, `score` and its names."""

    heads: Heads = "classes"
    commands = MappingProxyType({"predict": ("bert.tasks.commands:RowPredict", "labels of prepared rows, and scores")})
    seq_len = 128

    @property
    @abstractmethod
    def labels(self) -> int:
        """K, the number of classes; 1 for a regression."""

    @property
    def regression(self) -> bool:
        """Whether labels are values instead of classes."""
        return False

    def score(self, logits: "Float32", labels: Labels) -> Mapping[str, float]:
        """Return the scores, by the names in `scores`, of logits [N, K] and labels [N]."""
        raise NotImplementedError

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Check the rows to evaluate on."""
        if not is_synthetic(source):
            self.evaluation_rows(source, seq_len, wanted, self.rows(Path(source), TRAINING))

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """Return the rows to evaluate a run of `seq_len` tokens on, those that are `wanted` or in `source`.

        Raises InputError: there are none with labels, or they do not fit the rows in `source` that are trained on.
        """
        rows = self.rows(Path(wanted or source), EVALUATION)
        self.check_judging(rows, wanted or source, seq_len, training, source)
        return rows

    def loss_label(self) -> str:
        """Label of the loss for classes or for values."""
        return "mean squared error" if self.regression else "cross-entropy"

    def step(self, config: ModelConfig) -> Step:
        """Pooler and classifier."""
        return Step(
            config=config,
            head=(pooler(config), classifier(config, self.labels)),
            head_passes=(Pass(name="cross-entropy", width=self.labels, over="sequences", wide=3),),
        )

    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        from bert.model.heads import BertForSequenceClassification

        return BertForSequenceClassification(config, self.labels, observer, regression=self.regression)

    def synthetic_rows(self, spec: DataSpec) -> TokenRows:
        """Return random rows: all classes are equally likely, values of a regression are uniform on 0 .. 1."""
        rng = random_of(spec)
        rows = synthetic_rows(spec, self.name, partial(self.rows, split=TRAINING), rng)
        labels = rng.random(len(rows), np.float32) if self.regression else rng.integers(0, self.labels, len(rows))
        return replace(rows, labels=labels, columns=self.synthetic_columns(rng, rows.lengths))

    def synthetic_columns(self, rng: np.random.Generator, lengths: Lengths) -> dict[str, npt.NDArray[Any]]:
        """Draw further columns of synthetic rows, [N, ...] for rows of these lengths [N]: none here."""
        return {}

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "LabelledRows":
        """Open the rows to evaluate on; raises as `evaluation_rows`, and InputError for labels that the task lacks."""
        from bert.tasks.evaluation import LabelledRows

        rows = self.evaluation_rows(spec.data, spec.seq_len, wanted.source, self.rows_of(spec))
        self.check_labels(rows, wanted.source or spec.data)
        chosen = spread(len(rows), wanted.samples)

        def score(logits: "Float32") -> Evaluation:
            values = self.score(logits, rows.labels[chosen])
            return Evaluation(values={name: float(value) for name, value in values.items()}, samples=len(logits))

        return LabelledRows(rows, chosen, self.labels, score, spec, f"{rows.fingerprint}/{len(chosen)}")

    def check_labels(self, rows: TokenRows, source: str) -> None:
        """Refuse labels that the task does not have. Raises InputError."""
        labels, high = rows.labels, self.labels - 1
        valid = np.isfinite(labels).all() if self.regression else ((labels >= 0) & (labels <= high)).all()
        if len(labels) and (not valid or np.issubdtype(labels.dtype, np.integer) == self.regression):
            wanted = "finite values (float32)" if self.regression else f"classes 0 to {high} (int64)"
            given = f"the labels in {source} are {labels.dtype} from {labels.min()} to {labels.max()}"
            raise InputError("labels-invalid", f"{given}, {self.name} needs {wanted}: prepare the data again")


def probabilities(logits: "Float32") -> Float64:
    """Return the softmax [N, K] of logits [N, K]."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: Float64 = powers / powers.sum(axis=1, keepdims=True)
    return shares
