"""Data of tasks that label whole rows, for plans. Imports no torch."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert.data.lengths import is_synthetic
from bert.data.loading.batches import check_rows
from bert.data.rows import TokenRows
from bert.model.config import ModelConfig
from bert.model.step import Pass, Step, classifier, pooler
from bert.tasks.base import NO_OPTIONS, Heads, Trained
from bert.tasks.row_data import EVALUATION, TRAINING, RowData
from common.errors import InputError


def check_judging(rows: TokenRows, place: str, seq_len: int, training: TokenRows, source: str) -> None:
    """Refuse rows on which the trained model cannot be evaluated.

    Args:
        rows: those to evaluate on.
        place: where they lie.
        seq_len: maximum tokens of a row of the run.
        training: those that are trained on.
        source: where those lie.
    """
    check_rows(rows, place, seq_len)
    if rows.vocabulary != training.vocabulary:
        raise InputError(
            "vocabulary-mismatch",
            f"the rows in {place} and {source} were prepared with different vocabularies: their ids mean different "
            "words; prepare both with the same vocab.txt and casing",
        )


class ClassificationData(RowData):
    """Labeled rows, real or synthetic.

    A task gives `name`, `rows`, `labels` and `prepare_command`; what differs from the rest it overrides.
    """

    trained_by: str
    """"module:class" of the ClassificationTask."""
    heads: Heads = "classes"
    commands: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "predict": ("bert.tasks.commands:RowPredict", "labels of prepared rows"),
            "eval": ("bert.tasks.commands:RowEval", "scores of such labels"),
        }
    )
    seq_len = 128

    @abstractmethod
    def labels(self, options: Mapping[str, Any]) -> int:
        """Return K, the number of classes with these resolved options; 1 for a regression."""

    def regression(self, options: Mapping[str, Any]) -> bool:
        """Whether labels are values instead of classes."""
        return False

    @abstractmethod
    def prepare_command(self, seq_len: int) -> str:
        """The command that prepares data of this length."""

    def training_rows(self, source: Path, options: Mapping[str, Any], seq_len: int | None) -> TokenRows:
        """Return rows with labels. Raises InputError: there are none, or damaged ones."""
        rows = super().training_rows(source, options, seq_len)
        check_rows(rows, str(source), rows.max_seq_length)
        return rows

    def check_evaluation(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        """Inspect the rows to evaluate on.

        Raises:
            InputError: there are none with labels, they are longer than those that are trained on, or of another
                vocabulary.
        """
        if is_synthetic(source):
            return
        self.evaluation_rows(source, seq_len, wanted, options, self.rows(Path(source), TRAINING, options, seq_len))

    def evaluation_rows(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any], training: TokenRows
    ) -> TokenRows:
        """Return the rows to evaluate on; arguments and what it raises as `check_evaluation` has them.

        `training` are the rows that are trained on.
        """
        place = wanted or source
        rows = self.rows(Path(place), EVALUATION, options, seq_len)
        check_judging(rows, place, seq_len, training, source)
        return rows

    def next_command(self, trained: Trained) -> list[str] | None:
        """Return the command that converts the checkpoint; tasks with a prediction command return that."""
        return trained.conversion()

    def loss_label(self, options: Mapping[str, Any] = NO_OPTIONS) -> str:
        """Label of the loss for classes or for values."""
        return "mean squared error" if self.regression(options) else "cross-entropy"

    def step(self, config: ModelConfig, options: Mapping[str, Any] = NO_OPTIONS) -> Step:
        """Pooler and classifier."""
        labels = self.labels(options)
        return Step(
            config=config,
            head=(pooler(config), classifier(config, labels)),
            head_passes=(Pass(name="cross-entropy", width=labels, over="sequences", wide=3),),
        )
