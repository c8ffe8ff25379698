"""Common parts of tasks that classify whole rows or predict a value for them (Devlin et al. 2018, section 4.1)."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.batch import Batch
from bert.data.lengths import Lengths, is_synthetic
from bert.data.loading.batches import RowBatches, check_rows
from bert.data.rows import Labels, TokenRows
from bert.data.synthetic import Content, Slots, SyntheticBatches, row_batch
from bert.model.config import ModelConfig
from bert.model.heads import BertForSequenceClassification
from bert.tasks.base import BatchStream, DataIdentity, DataSpec, EvaluationSpec
from bert.tasks.classification_data import ClassificationData
from bert.tasks.evaluation import Float32, LabelledRows
from bert.tasks.options import check_options, with_defaults
from bert.tasks.row_data import TRAINING
from bert.train.observer import Observer
from common.errors import InputError

_LARGEST_POOL = 256


class ClassificationTask(ABC):
    """One label for each row. A task gives names of scores, `data` and `score`; another model, its own `build_model`.

    Args:
        options: of the task, those that follow from the data too.

    Raises:
        UsageError: an option that it does not have, or not with this value.
    """

    name: str
    data: ClassificationData
    """Where its rows come from, without torch."""
    parts: tuple[str, ...] = ()
    scores: tuple[str, ...]
    deciding_score: str
    higher_is_better: bool
    begins_from_encoder = True

    def __init__(self, **options: Any) -> None:
        known = self.data.options
        self.options = with_defaults(known, check_options(self.name, known, options))
        self._opened: tuple[tuple[str, str, int], TokenRows] | None = None

    @abstractmethod
    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        """Return the scores, by the names in `scores`, of logits [N, K] and labels [N]."""

    @property
    def labels(self) -> int:
        """K, the number of classes; 1 for a regression."""
        return self.data.labels(self.options)

    @property
    def regression(self) -> bool:
        """Whether labels are values instead of classes."""
        return self.data.regression(self.options)

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForSequenceClassification(config, self.labels, observer, regression=self.regression)

    def batches(self, spec: DataSpec, split: str = TRAINING) -> BatchStream:
        """Synthetic batches, or those of rows. Raises InputError that names the file at fault."""
        if not is_synthetic(spec.data):
            rows = self.rows(spec, split)
            check_rows(rows, spec.data, spec.seq_len)
            return RowBatches(spec, rows)
        make = partial(row_batch, labels=self.labels, regression=self.regression, columns=self.synthetic_columns)
        return SyntheticBatches(spec, Content(self.name, _LARGEST_POOL, self._lengths_like, make))

    def synthetic_columns(self, rng: np.random.Generator, lengths: Lengths) -> dict[str, npt.NDArray[Any]]:
        """Draw further columns of synthetic batches, [B, ...] for rows of these lengths [B]: none here."""
        return {}

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy, or mean squared error of a regression; a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def loss_parts(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, which has no parts."""
        return self.loss(model, batch), {}

    def identify(self, spec: DataSpec, split: str = TRAINING) -> DataIdentity:
        """Inspect the rows of a run. Raises InputError if they are missing, damaged or do not fit the task."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        return DataIdentity.of(spec.data, self.rows(spec, split))

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> LabelledRows:
        """Open the rows to evaluate on.

        Raises:
            InputError: there are none with labels of the task, they are damaged, longer than those that are trained on,
                or of another vocabulary.
        """
        training = self.rows(spec, TRAINING)
        rows = self.data.evaluation_rows(spec.data, spec.seq_len, wanted.source, self.options, training)
        self.check_labels(rows, wanted.source or spec.data)
        return LabelledRows(rows, self.labels, self.score, spec, wanted.samples)

    def rows(self, spec: DataSpec, split: str) -> TokenRows:
        """Return the rows of a split of `spec.data`; the latest ones are kept.

        Raises:
            InputError: they are missing, damaged, or have labels that the task has not.
        """
        key = (spec.data, split, spec.seq_len)
        if self._opened is None or self._opened[0] != key:
            found = self.data.rows(Path(spec.data), split, self.options, spec.seq_len)
            self.check_labels(found, spec.data)
            self._opened = key, found
        return self._opened[1]

    def check_labels(self, rows: TokenRows, source: str) -> None:
        """Refuse labels that the task does not have. Raises InputError."""
        labels = rows.labels
        if not len(labels):
            return
        classes = np.issubdtype(labels.dtype, np.integer)
        if classes == self.regression:
            wanted = "values (float32)" if self.regression else "classes (int64)"
            raise InputError(
                "labels-invalid",
                f"task {self.name} needs labels that are {wanted}, but those in {source} are {labels.dtype}",
            )
        if not classes and not np.isfinite(labels).all():
            raise InputError("labels-invalid", f"labels in {source} are not finite numbers: prepare the data again")
        if classes and not 0 <= labels.min() <= labels.max() < self.labels:
            raise InputError(
                "labels-invalid",
                f"the labels in {source} range from {labels.min()} to {labels.max()}, but task {self.name} has 0 to "
                f"{self.labels - 1}: prepare the data again, or start a new run",
            )

    def _lengths_like(self, path: Path, spec: DataSpec, pool_size: int) -> Slots:
        # Only lengths are taken from them: their vocabulary may be any.
        real = replace(spec, data=str(path), vocab_size=sys.maxsize)
        rows = self.data.rows(path, TRAINING, self.options, spec.seq_len)
        return [(lengths, spec.seq_len) for lengths in RowBatches(real, rows).lengths_of_batches(pool_size)]
