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
from bert.model.step import Pass, Step, classifier, pooler
from bert.tasks.base import (
    FINE_TUNING,
    NO_OPTIONS,
    BatchStream,
    DataIdentity,
    DataSource,
    Evaluation,
    EvaluationSpec,
    Heads,
    Task,
)
from common.errors import InputError

if TYPE_CHECKING:
    import torch

    from bert.observer import Observer
    from bert.tasks.evaluation import Float32, LabelledRows

TRAINING, EVALUATION = "training", "evaluation"


class RowData(Task):
    """Rows of word pieces, real or synthetic, of a task that masks none."""

    paddings = PADDINGS
    defaults = FINE_TUNING
    begins_from_encoder = True

    @abstractmethod
    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read rows of a file or folder. Raises InputError: there are none, or damaged ones.

        `split` is TRAINING, EVALUATION, or another that the task knows, such as one to predict. `seq_len` is for data
        that are cut when they are read.
        """

    def training_rows(self, source: Path, seq_len: int | None) -> TokenRows:
        """Return rows to train on. Raises InputError: there are none, or damaged ones."""
        return self.rows(source, TRAINING, seq_len)

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect rows to train on with these options."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len, self.name)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        path = (modelled or Path(data)).resolve()
        rows = type(self)(**options).training_rows(path, seq_len)
        longest = rows.max_seq_length
        if modelled is None:
            return DataSource(str(path), rows.fingerprint, longest, None, rows.vocab_size, len(rows), rows.vocabulary)
        fingerprint = lengths_fingerprint(longest, rows.lengths)
        return DataSource(f"{SYNTHETIC}:{path}", fingerprint, longest, None, rows.vocab_size)


def check_judging(rows: TokenRows, place: str, seq_len: int, training: TokenRows, source: str) -> None:
    """Refuse rows in a `place` that a model of `seq_len` tokens, trained on rows in `source`, cannot be judged by."""
    check_rows(rows, place, seq_len)
    if rows.vocabulary != training.vocabulary:
        wrong = f"the rows in {place} and {source} were prepared with different vocabularies"
        raise InputError("vocabulary-mismatch", f"{wrong}: prepare both with the same vocab.txt and casing")


class ClassificationTask(RowData):
    """One label for each row: a task gives `name`, `rows`, `labels`, `prepare_command`, `score` and its names."""

    heads: Heads = "classes"
    commands = MappingProxyType({"predict": ("bert.tasks.commands:RowPredict", "labels of prepared rows, and scores")})
    seq_len = 128

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: tuple[tuple[str, str, int], TokenRows] | None = None

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

    def training_rows(self, source: Path, seq_len: int | None) -> TokenRows:
        """Return rows with labels. Raises InputError: there are none, or damaged ones."""
        rows = super().training_rows(source, seq_len)
        check_rows(rows, str(source), rows.max_seq_length)
        return rows

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Check the rows to evaluate on."""
        if not is_synthetic(source):
            self.evaluation_rows(source, seq_len, wanted, self.rows(Path(source), TRAINING, seq_len))

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """Return the rows to evaluate a run of `seq_len` tokens on, those that are `wanted` or in `source`.

        Raises InputError: there are none with labels, or they do not fit the rows in `source` that are trained on.
        """
        rows = self.rows(Path(wanted or source), EVALUATION, seq_len)
        check_judging(rows, wanted or source, seq_len, training, source)
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

    def batches(self, spec: DataSpec, split: str = TRAINING) -> BatchStream:
        """Synthetic batches, or those of rows. Raises InputError that names the file at fault."""
        rows = self.synthetic_rows(spec) if is_synthetic(spec.data) else self.rows_of(spec, split)
        check_rows(rows, spec.data, spec.seq_len)
        return RowBatches(spec, rows)

    def synthetic_rows(self, spec: DataSpec) -> TokenRows:
        """Return random rows: all classes are equally likely, values of a regression are uniform on 0 .. 1."""
        rng = random_of(spec)
        rows = synthetic_rows(spec, self.name, partial(self.rows, split=TRAINING, seq_len=spec.seq_len), rng)
        labels = rng.random(len(rows), np.float32) if self.regression else rng.integers(0, self.labels, len(rows))
        return replace(rows, labels=labels, columns=self.synthetic_columns(rng, rows.lengths))

    def synthetic_columns(self, rng: np.random.Generator, lengths: Lengths) -> dict[str, npt.NDArray[Any]]:
        """Draw further columns of synthetic rows, [N, ...] for rows of these lengths [N]: none here."""
        return {}

    def identify(self, spec: DataSpec, split: str = TRAINING) -> DataIdentity:
        """Inspect the rows of a run. Raises InputError if they are missing, damaged or do not fit the task."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        return DataIdentity.of(spec.data, self.rows_of(spec, split))

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "LabelledRows":
        """Open the rows to evaluate on; raises as `evaluation_rows`, and InputError for labels that the task lacks."""
        from bert.tasks.evaluation import LabelledRows

        rows = self.evaluation_rows(spec.data, spec.seq_len, wanted.source, self.rows_of(spec, TRAINING))
        self.check_labels(rows, wanted.source or spec.data)
        chosen = spread(len(rows), wanted.samples)

        def score(logits: "Float32") -> Evaluation:
            values = self.score(logits, rows.labels[chosen])
            return Evaluation(values={name: float(value) for name, value in values.items()}, samples=len(logits))

        return LabelledRows(rows, chosen, self.labels, score, spec, f"{rows.fingerprint}/{len(chosen)}")

    def rows_of(self, spec: DataSpec, split: str) -> TokenRows:
        """Return the rows of a split of `spec.data`, with labels that the task has; the latest ones are kept."""
        key = (spec.data, split, spec.seq_len)
        if self._opened is None or self._opened[0] != key:
            rows = self.rows(Path(spec.data), split, spec.seq_len)
            self.check_labels(rows, spec.data)
            self._opened = key, rows
        return self._opened[1]

    def check_labels(self, rows: TokenRows, source: str) -> None:
        """Refuse labels that the task does not have. Raises InputError."""
        labels, high = rows.labels, self.labels - 1
        valid = np.isfinite(labels).all() if self.regression else ((labels >= 0) & (labels <= high)).all()
        if len(labels) and (not valid or np.issubdtype(labels.dtype, np.integer) == self.regression):
            wanted = "finite values (float32)" if self.regression else f"classes 0 to {high} (int64)"
            given = f"the labels in {source} are {labels.dtype} from {labels.min()} to {labels.max()}"
            raise InputError("labels-invalid", f"{given}, {self.name} needs {wanted}: prepare the data again")
