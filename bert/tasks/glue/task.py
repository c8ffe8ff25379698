"""GLUE: nine tasks on sentences and pairs of sentences (Wang et al. 2018, arXiv 1804.07461), scored as there.

Scores are fractions of 1 (table 1): those of scikit-learn and SciPy, which the benchmark scores with; both are imported
where they are used. Files of answers, for the benchmark's server, have a header and a line for each row.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Labels, TokenRows
from bert.data.synthetic import is_synthetic
from bert.tasks.base import DataSource, TaskOption, Trained
from bert.tasks.classification import EVALUATION, TRAINING, ClassificationTask
from bert.tasks.commands import some_of
from bert.tasks.glue.features import open_features
from bert.tasks.glue.tables import (
    REGRESSION_RANGE,
    TASKS,
    TRAIN,
    GlueSpec,
    GlueTable,
    is_test,
    label_of,
    read_lines,
    row_number,
)
from common.atomic import write_text
from common.errors import InputError, UsageError
from common.tools import need

if TYPE_CHECKING:
    from bert.tasks.evaluation import Float32

Values = npt.NDArray[np.number[Any]]
HEADER = "index\tprediction"


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

    def rows(self, source: Path, split: str) -> TokenRows:
        """Read features, of any task where none was named; `split` is training, evaluation, or one of the table's."""
        splits = self.spec.evaluations if split == EVALUATION else (TRAIN if split == TRAINING else split,)
        return open_features(source, *splits, task=self.values.get("task")).rows

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """The task that the features are of, where none was named; cola for synthetic data."""
        if "task" in self.values:
            return self.values
        if is_synthetic(source.source):
            return {"task": "cola"}
        return {"task": open_features(Path(source.source), TRAIN).file.settings["task"]}

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


def check_packages(spec: GlueSpec) -> None:
    """Raise MissingToolError where a package is missing that the scores of a task need."""
    modules = ["scipy"] if spec.is_regression else ["sklearn"] if set(spec.metrics) - {"accuracy"} else []
    need(f"scores of {spec.name}", "scores", *modules)


def score_names(spec: GlueSpec) -> tuple[str, ...]:
    """Return the names of what `scores` finds, in its order: metrics, accuracy of classes, the mean of two metrics."""
    names = dict.fromkeys((*spec.metrics, *([] if spec.is_regression else ["accuracy"])))
    return (*names, *(["_".join(spec.metrics)] if len(spec.metrics) > 1 else []))


def scores(spec: GlueSpec, predictions: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> dict[str, float]:
    """Return the scores of a task by name, fractions of 1, of predictions and labels [N]: classes, or numbers."""
    check_packages(spec)
    kind = np.float64 if spec.is_regression else np.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant inputs have no correlation
        values = {name: _metric(name, predictions.astype(kind), labels.astype(kind)) for name in score_names(spec)[:2]}
    return values | {name: float(np.mean([*values.values()])) for name in score_names(spec)[2:]}


def _metric(name: str, predictions: Values, labels: Values) -> float:
    if name == "accuracy":
        return float((predictions == labels).mean())
    if name in ("pearson", "spearman"):
        from scipy import stats

        correlation = stats.pearsonr if name == "pearson" else stats.spearmanr
        return float(correlation(predictions, labels).statistic) if len(labels) > 1 else math.nan
    from sklearn import metrics

    if name == "matthews":
        return float(metrics.matthews_corrcoef(labels, predictions))
    return float(metrics.f1_score(labels == 1, predictions == 1, zero_division=0.0))


def decided(spec: GlueSpec, logits: npt.NDArray[np.floating]) -> npt.NDArray[np.generic]:
    """Return the class with the greatest logit, the first of equal ones, or the number [N] of logits [N, K]."""
    return logits[:, 0].astype(np.float64) if spec.is_regression else np.argmax(logits, axis=1).astype(np.int64)


def write_answers(
    path: Path, spec: GlueSpec, split: str, index: npt.NDArray[np.int64], predictions: npt.NDArray[np.generic]
) -> None:
    """Write answers in the order of the index; numbers for GLUE's server are put into the range of the labels."""
    low, high = REGRESSION_RANGE if is_test(split) else (-math.inf, math.inf)
    lines = [HEADER]
    for row in np.argsort(index, kind="stable").tolist():
        value = float(predictions[row])
        answer = f"{min(high, max(low, value)):.7g}" if spec.is_regression else spec.classes[int(value)]
        lines.append(f"{int(index[row])}\t{answer}")
    write_text(path, "\n".join(lines) + "\n")


def read_answers(path: Path, spec: GlueSpec) -> dict[int, float]:
    """Return the class, or number, that a file says for each index. Raises InputError."""
    header, *lines = read_lines(path)
    if header != HEADER:
        raise InputError("file-format", f"{path}, line 1: {header[:60]!r} is not {HEADER!r}: give a file of answers")
    answers: dict[int, float] = {}
    for number, line in enumerate(lines, start=2):
        if line.strip():
            index, _, text = line.partition("\t")
            row, value = row_number(index), label_of(spec, text.strip(), anywhere=True)
            if row is None or value is None or row in answers:
                needed = f"a new index, a tab and {spec.name}'s {', '.join(spec.classes) or 'number'}"
                raise InputError("answers-invalid", f"{path}, line {number}: {line[:60]!r} must be {needed}")
            answers[row] = value
    return answers


def pair(table: GlueTable, answers: Mapping[int, float], source: Path) -> tuple[Values, Values]:
    """Return the answers to the rows of a table, and their labels [N]. Raises InputError: an answer is missing."""
    missing = [row.index for row in table.rows if row.index not in answers]
    if missing:
        lacks = f"{len(missing):,} of the {len(table.rows):,} rows of {table.source} (index {some_of(missing)})"
        raise InputError("answers-invalid", f"{source} has no answer for {lacks}: predict the same table")
    predictions, labels = np.array([(answers[row.index], row.label) for row in table.rows], dtype=np.float64).T
    return predictions, labels
