"""GLUE's data for plans: feature files. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert.data.lengths import is_synthetic
from bert.data.rows import TokenRows
from bert.tasks.base import DataSource, Trained
from bert.tasks.classification_data import ClassificationData
from bert.tasks.glue.features import FORM, training_splits
from bert.tasks.glue.scores import check_packages
from bert.tasks.glue.tasks import TASKS, GlueSpec, task_of
from bert.tasks.options import TaskOption
from bert.tasks.row_data import EVALUATION, TRAINING
from common.errors import InputError, UsageError


class GlueData(ClassificationData):
    """Sentences and pairs of sentences of one of GLUE's tasks."""

    name = "glue"
    trained_by = "bert.tasks.glue.task:GlueTask"
    commands = MappingProxyType(
        {
            "data": ("bert.tasks.glue.commands:Prepare", "GLUE's tables -> features, or plain text"),
            "predict": (
                "bert.tasks.glue.commands:Predict",
                "predictions for a GLUE task, in the format of its server",
            ),
            "eval": ("bert.tasks.glue.commands:Eval", "official scores of predictions for a GLUE task"),
        }
    )
    options = (TaskOption(name="task", kind=str, choices=tuple(TASKS), says="task of the benchmark"),)

    def rows(self, source: Path, split: str, options: Mapping[str, Any], seq_len: int | None = None) -> TokenRows:
        """Read features; `split` is training, evaluation, or one of the task's own."""
        task = options.get("task")
        splits = training_splits(split, task) if split in (TRAINING, EVALUATION) else (split,)
        return FORM.open(source, *splits, group=task).rows

    def labels(self, options: Mapping[str, Any]) -> int:
        """Classes of the task, 1 for a regression; 2, as most have, where no task is named."""
        return TASKS[options["task"]].labels if "task" in options else 2

    def regression(self, options: Mapping[str, Any]) -> bool:
        """Whether the task's labels are numbers (stsb)."""
        return "task" in options and TASKS[options["task"]].is_regression

    def resolve(self, options: Mapping[str, Any], source: DataSource) -> Mapping[str, Any]:
        """The task that the features are of, where none was named; cola for synthetic data."""
        if "task" in options:
            return options
        if is_synthetic(source.source):
            return {**options, "task": "cola"}
        features = FORM.open(Path(source.source), *training_splits(TRAINING))
        return {**options, "task": features.settings.task}

    def evaluation_rows(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any], training: TokenRows
    ) -> TokenRows:
        """As the other tasks do; by default, the dev rows beside the training rows."""
        if wanted is None and Path(source).is_file():
            wanted = str(Path(source).parent)
        check_packages(spec_of(options))
        return super().evaluation_rows(source, seq_len, wanted, options, training)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        return FORM.command(max_seq_length=seq_len)

    def next_command(self, trained: Trained) -> list[str] | None:
        """Answers to all tables of the task beside the one it was trained on, or to those it was evaluated on."""
        if is_synthetic(trained.data):
            return None
        task = str(trained.options["task"])
        features = Path(trained.eval_data or trained.folder())
        try:
            if features.is_dir():
                FORM.find_all(features, task)
        except InputError:
            return None
        return trained.prediction(self.name, "--task", task, "--features", str(features))


def spec_of(options: Mapping[str, Any]) -> GlueSpec:
    """Return the task that resolved options name. Raises UsageError if they name none."""
    if "task" not in options:
        raise UsageError("option-missing", f"no GLUE task was given: give --task {' | '.join(TASKS)}")
    return task_of(options["task"])
