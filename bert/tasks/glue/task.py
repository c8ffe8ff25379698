"""GLUE: nine tasks on sentences and pairs of sentences (Wang et al. 2018, arXiv 1804.07461)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bert.data.rows import Labels, TokenRows
from bert.data.synthetic import is_synthetic
from bert.tasks.base import DataSource, TaskOption, Trained
from bert.tasks.classification import EVALUATION, TRAINING, ClassificationTask
from bert.tasks.glue.features import open_features
from bert.tasks.glue.scores import check_packages, decided, score_names, scores
from bert.tasks.glue.tables import TASKS, TRAIN, GlueSpec
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.tasks.evaluation import Float32


class GlueTask(ClassificationTask):
    """One of the nine, scored as the benchmark does."""

    name = "glue"
    commands = MappingProxyType(
        {
            "data": ("bert.tasks.glue.commands:Prepare", "GLUE's tables -> features"),
            "predict": ("bert.tasks.glue.commands:Predict", "predictions for a GLUE task, in the format of its server"),
            "eval": ("bert.tasks.glue.commands:Eval", "official scores of predictions for a GLUE task"),
        }
    )
    options = (TaskOption(name="task", kind=str, choices=tuple(TASKS), says="task of the benchmark"),)
    higher_is_better = True

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if "task" in self.values:
            self.scores, self.deciding_score = score_names(self.spec), self.spec.headline

    @property
    def spec(self) -> GlueSpec:
        """The task of the benchmark. Raises UsageError if none was given."""
        if "task" not in self.values:
            raise UsageError("option-missing", f"no GLUE task was given: give --task {' | '.join(TASKS)}")
        return TASKS[str(self.values["task"])]

    @property
    def labels(self) -> int:
        """Classes of the task, 1 for a regression."""
        return self.spec.labels

    @property
    def regression(self) -> bool:
        """Whether the task's labels are numbers (stsb)."""
        return self.spec.is_regression

    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read features, of any task where none was named; `split` is training, evaluation, or one of the table's."""
        splits = self.spec.evaluations if split == EVALUATION else (TRAIN if split == TRAINING else split,)
        return open_features(source, *splits, task=self.values.get("task")).rows

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """The task that the features are of, where none was named; cola for synthetic data."""
        if "task" in self.values:
            return self.values
        if is_synthetic(source.source):
            return {"task": "cola"}
        return {"task": open_features(Path(source.source), TRAIN).settings.task}

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """As the other tasks do; by default, the dev rows beside the training rows."""
        check_packages(self.spec)
        beside = str(Path(source).parent) if Path(source).is_file() else None
        return super().evaluation_rows(source, seq_len, wanted or beside, training)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        return f"bertbench data glue --input FOLDER --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """Answers to the tables it was evaluated on, else to all beside the one it was trained on."""
        if is_synthetic(trained.data):
            return None
        return trained.prediction(self.name, "--features", trained.eval_data or str(trained.folder()))

    def score(self, logits: "Float32", labels: Labels) -> Mapping[str, float]:
        """Return the benchmark's scores, fractions, of logits [N, K] and labels [N]."""
        return scores(self.spec, decided(self.spec, logits), labels)
