"""GLUE's scores, and the files of answers that its server takes. Imports no torch.

Scores are fractions of 1 (Wang et al. 2018, arXiv 1804.07461, table 1): those of scikit-learn and SciPy, which the
benchmark scores with; both are imported where they are used. Files of answers have a header `index<TAB>prediction` and
a line for each row.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert.tasks.glue.tables import GlueTable, label_of, read_lines, row_number
from bert.tasks.glue.tasks import REGRESSION_RANGE, GlueSpec
from common.atomic import write_text
from common.errors import InputError
from common.tools import need

Values = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]


def check_packages(spec: GlueSpec) -> None:
    """Raise MissingToolError where a package is missing that the scores of a task need."""
    modules = ["scipy"] if spec.is_regression else ["sklearn"] if set(spec.metrics) - {"accuracy"} else []
    need(f"scores of {spec.name}", "scores", *modules)


def accuracy(predictions: Classes, labels: Classes) -> float:
    """Share of the rows [N] whose prediction is the label."""
    return float((predictions == labels).mean())


def f1_score(predictions: Classes, labels: Classes) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 where class 1 is neither predicted nor a label."""
    from sklearn import metrics

    return float(metrics.f1_score(labels == 1, predictions == 1, zero_division=0.0))


def matthews(predictions: Classes, labels: Classes) -> float:
    """Matthews' correlation of two classes (Matthews 1975); 0 if all predictions or all labels are the same."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(predictions: Values, labels: Values) -> float:
    """Pearson's correlation; not a number where all predictions or all labels are the same, or there is one row."""
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, labels).statistic) if len(labels) > 1 else math.nan


def spearman(predictions: Values, labels: Values) -> float:
    """Pearson's correlation of the ranks, equal values sharing the mean of theirs (Spearman 1904)."""
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if len(labels) > 1 else math.nan


def scores(spec: GlueSpec, predictions: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> dict[str, float]:
    """Return all scores of a task by name, fractions of 1; the headline is `spec.headline`.

    Where the benchmark has two metrics their mean, which is its score of the task, comes last.

    Args:
        spec: the task.
        predictions: classes, or numbers where the task is a regression [N].
        labels: classes or numbers [N].
    """
    check_packages(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant inputs are handled above
        if spec.is_regression:
            given, right = predictions.astype(np.float64), labels.astype(np.float64)
            found = {"pearson": pearson(given, right), "spearman": spearman(given, right)}
        else:
            classes, truth = predictions.astype(np.int64), labels.astype(np.int64)
            known = {"matthews": matthews, "f1_score": f1_score, "accuracy": accuracy}
            found = {name: known[name](classes, truth) for name in dict.fromkeys((*spec.metrics, "accuracy"))}
    if len(spec.metrics) > 1:
        found["_".join(spec.metrics)] = float(np.mean([found[name] for name in spec.metrics]))
    return found


def score_names(spec: GlueSpec) -> tuple[str, ...]:
    """Return the names of what `scores` finds, in its order."""
    metrics = spec.metrics if spec.is_regression else tuple(dict.fromkeys((*spec.metrics, "accuracy")))
    return (*metrics, *(["_".join(spec.metrics)] if len(spec.metrics) > 1 else []))


def decided(spec: GlueSpec, logits: npt.NDArray[np.floating]) -> npt.NDArray[np.generic]:
    """Return the class with the greatest logit, the first of equal ones, or the number [N] of logits [N, K]."""
    return logits[:, 0].astype(np.float64) if spec.is_regression else np.argmax(logits, axis=1).astype(np.int64)


HEADER = ("index", "prediction")
_MOST_NAMED = 5
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Paired:
    """Answers beside the labels of the same rows."""

    predictions: npt.NDArray[np.float64]
    """Class or number of each row [N]."""
    labels: npt.NDArray[np.float64]
    """The right one [N]."""
    extra: tuple[int, ...]
    """Indexes of answers to rows that the table does not have."""


def answer_file(spec: GlueSpec, split: str) -> str:
    """Return the name of the file of a split's answers; that of a test split is the one GLUE's server knows."""
    return spec.submissions.get(split, f"{spec.folder}-{split}.tsv")


def answers_text(spec: GlueSpec, split: str, index: npt.NDArray[np.int64], predictions: npt.NDArray[np.generic]) -> str:
    """Return the file of answers, in the order of the index.

    Classes stand by their names where the task has names. Numbers for GLUE's server are put into the range of the
    labels; those to score are left as they are.
    """
    order = np.argsort(index, kind="stable")
    low, high = REGRESSION_RANGE if split in spec.submissions else (-math.inf, math.inf)
    lines = ["\t".join(HEADER)]
    for row in order.tolist():
        value = float(predictions[row])
        told = f"{min(high, max(low, value)):.7g}" if spec.is_regression else spec.classes[int(value)]
        lines.append(f"{int(index[row])}\t{told}")
    return "\n".join(lines) + "\n"


def write_answers(
    path: Path, spec: GlueSpec, split: str, index: npt.NDArray[np.int64], predictions: npt.NDArray[np.generic]
) -> None:
    """Write answers, atomically. Raises StorageError."""
    write_text(path, answers_text(spec, split, index, predictions))


def read_answers(path: Path, spec: GlueSpec) -> dict[int, float]:
    """Return the class, or number, that a file says for each index."""
    lines = read_lines(path, "a file of answers, as `bertbench predict glue` writes it")
    if tuple(lines[0].split("\t")) != HEADER:
        raise InputError(
            "file-format",
            f"{path}, line 1: {lines[0][:_SHOWN]!r} is not the header of GLUE answers, 'index<TAB>prediction': give "
            "a file of `bertbench predict glue`, or of that form",
        )
    found: dict[int, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        index, separator, text = line.partition("\t")
        row, value = row_number(index), label_of(spec, text.strip(), anywhere=True)
        if not separator or row is None:
            raise InputError(
                "rows-invalid",
                f"{path}, line {number}: {line[:_SHOWN]!r} is not an index and a prediction separated by a tab",
            )
        if value is None:
            answers = ", ".join(spec.classes) or "a number"
            raise InputError(
                "answers-invalid",
                f"{path}, line {number}: {text[:_SHOWN]!r} is not an answer of {spec.name}: {answers}",
            )
        if row in found:
            raise InputError("answers-invalid", f"{path}, line {number}: a second answer for index {row}: remove one")
        found[row] = value
    return found


def pair(table: GlueTable, answers: Mapping[int, float], source: Path) -> Paired:
    """Put answers beside the labels of a table."""
    missing = [row.index for row in table.rows if row.index not in answers]
    if missing:
        shown = ", ".join(map(str, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        raise InputError(
            "answers-invalid",
            f"{source} has no answer for {len(missing):,} of the {len(table.rows):,} rows of {table.source} (index "
            f"{shown}): GLUE's scores need every one; predict the same table",
        )
    known = {row.index for row in table.rows}
    return Paired(
        np.array([answers[row.index] for row in table.rows]),
        np.array([row.label for row in table.rows], dtype=np.float64),
        tuple(sorted(answers.keys() - known)),
    )
