"""GLUE's scores, and the files of answers that its server takes. Imports no torch.

Scores are fractions of 1 (Wang et al. 2018, arXiv 1804.07461, table 1): those of scikit-learn and SciPy, which the
benchmark scores with; both are imported where they are used. Files of answers have a header `index<TAB>prediction` and
a line for each row.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.commands import some_of
from bert.tasks.glue.tables import REGRESSION_RANGE, GlueSpec, GlueTable, is_test, label_of, read_lines, row_number
from common.atomic import write_text
from common.errors import InputError
from common.tools import need

Values = npt.NDArray[np.number[Any]]
HEADER = "index\tprediction"


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
