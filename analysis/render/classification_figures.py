"""Figures of a text classification: label distribution, confusion matrix, loss and accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.metrics.classification import Classification, Float64
from analysis.render.figure import (
    Axis,
    Figure,
    Line,
    Matrix,
    Panel,
    Rule,
    Series,
    Text,
    categories,
    short_label,
    stacked,
)
from common.scores import score
from records.classification import ClassificationResult

_SPLITS = {"train": "blue", "validate": "orange", "test": "vermilion"}


_MOST_BARS = 40


_MOST_NUMBERS = 12
"""Labels up to which the cells of a matrix have numbers."""


_MOST_NAMES = 100


_NUMBERED_CELL, _CELL, _LETTER = 0.62, 0.24, 0.075
"""Inches: side of a cell with a number, of one without, width of a letter of a name."""


_LONGEST_UPRIGHT = 7
"""Longest name that stands horizontally under a cell, in letters."""


_SMOOTH = 40
"""Most points of the smoothed loss curve."""


_LEAST_MEAN = 8
"""Fewest updates in the mean of each of these points."""


_FEW = 6
"""Largest number of labels for two matrices side by side."""


Names = Mapping[str, str]


def distribution_figure(distribution: Mapping[str, Mapping[str, int]], caption: str, names: Names) -> Figure:
    """Return the number of texts per label and split, the most frequent label first.

    Args:
        distribution: split -> label -> texts, at least one label.
        caption: caption of the figure.
        names: label -> name in figures, if it differs.
    """
    totals: dict[str, int] = {}
    for counts in distribution.values():
        for label, count in counts.items():
            totals[label] = totals.get(label, 0) + count
    labels = sorted(totals, key=lambda label: -totals[label])
    shown = labels[:_MOST_BARS]
    series, left = [], np.zeros(len(shown))
    for split, counts in distribution.items():
        right = left + np.array([counts.get(label, 0) for label in shown], dtype=float)
        series.append(stacked(f"{split}: {sum(counts.values()):,} texts", _SPLITS.get(split, "green"), left, right))
        left = right
    more = f" (the {len(shown)} most frequent)" if len(labels) > len(shown) else ""
    return Figure(
        name="label_distribution",
        title="Labels",
        caption=caption,
        panels=[
            Panel(
                title=f"Texts per label, {len(labels)} labels{more}",
                x=Axis(label="texts"),
                y=categories([names.get(label) or short_label(label) for label in shown]),
                series=series,
            )
        ],
        size=(8.2, max(2.2, 0.9 + 0.21 * len(shown))),
        legend="below",
        legend_columns=3,
    )


def confusion_figure(found: Classification, normalized: bool, names: Names) -> Figure:
    """Return the confusion matrix, as counts or as shares of each row.

    Args:
        found: the predictions, with a matrix.
        normalized: shares instead of counts.
        names: label -> name in figures, if it differs.
    """
    count = len(found.labels)
    values: Float64 = 100 * found.normalized if normalized else found.confusion.astype(np.float64)
    shown = [names.get(label) or short_label(label) for label in found.labels]
    numbered, named = count <= _MOST_NUMBERS, count <= _MOST_NAMES
    upright = numbered and max(map(len, shown)) <= _LONGEST_UPRIGHT
    matrix = float(np.clip((_NUMBERED_CELL if numbered else _CELL) * count, 2.4, 13 if named else 7.5))
    beside = _LETTER * max(map(len, shown)) if named else 0.3
    # With too many labels, their names would be illegible.
    ticks = [*enumerate(shown)] if named else []
    order = "" if named else f", {count:,} labels in the order of the table"
    cells = Matrix(
        name="confusion",
        values=values,
        labels=[[_cell(value, normalized) for value in row] for row in values.tolist()] if numbered else (),
        most=100 if normalized else float(np.nanmax(values)),
        key=True,
        form="percent" if normalized else "",
    )
    return Figure(
        name="confusion_matrix_normalized" if normalized else "confusion_matrix",
        title="Confusion matrix",
        caption=f"{'Share of each row' if normalized else 'Texts'}; true labels in rows, predictions in columns",
        panels=[
            Panel(
                title="Confusion, share of each row" if normalized else "Confusion, texts",
                x=Axis(label=f"prediction{order}", ticks=ticks, steep=not upright, small=count > 30),
                y=Axis(label="true label", ticks=ticks, small=count > 30),
                series=[cells],
                square=True,
            )
        ],
        size=(matrix + beside + 1.3, matrix + (0.3 if upright else beside) + 0.8),
        legend="",
        half=count <= _FEW,
    )


def _cell(value: float, normalized: bool) -> str:
    if np.isnan(value):
        return ""
    return f"{value:.1f} %" if normalized else f"{value:,.0f}"


def curves_figure(
    curve: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], majority: float
) -> Figure:
    """Return training loss, validation loss and validation scores by update.

    Args:
        curve: (updates, training loss), at least one.
        evaluations: scores by name, with `applied_steps`.
        majority: accuracy of always predicting the most frequent label of the test split, from 0 to 1.
    """
    steps, values = np.array(curve, dtype=float).T
    smooth_steps, smooth = _smoothed(steps, values)
    losses: list[Series] = [
        Line(name="training, each update", x=steps, y=values, colour="pale", width=0.8),
        Line(name="training, mean", x=smooth_steps, y=smooth),
        *_evaluated(evaluations, "log_loss", "vermilion", "validation"),
    ]
    most = "majority baseline"
    scores: list[Series] = [
        *_evaluated(evaluations, "accuracy", "blue", score("accuracy").label),
        *_evaluated(evaluations, "balanced_accuracy", "green", score("balanced_accuracy").label),
        Rule(name=most, axis="y", at=100 * majority, colour="note", dash="dashed"),
        Text(name=most, x=float(steps[0]), y=100 * majority, text=most, shift=(0, 3), upright="bottom", colour="note"),
    ]
    ends = (float(steps.min()) - 0.5, float(steps.max()) + 0.5)
    updates = Axis(label="updates", whole=True, low=ends[0], high=ends[1])
    return Figure(
        name="loss_and_accuracy",
        title="Loss and accuracy",
        caption="By optimizer update. The model is not trained on validation texts.",
        panels=[
            Panel(title="Loss, nats", x=updates, y=Axis(low=0), series=losses, legend="inside"),
            Panel(
                title="Scores on the validation split",
                x=updates,
                y=Axis(form="percent", low=0, high=102),
                series=scores,
                legend="inside",
            ),
        ],
        columns=2,
        size=(9.8, 3.6),
    )


def _evaluated(evaluations: Sequence[Mapping[str, Any]], name: str, colour: str, label: str) -> list[Line]:
    found = [(one["applied_steps"], one[name]) for one in evaluations if one.get(name) is not None]
    if not found:
        return []
    steps, values = np.array(found, dtype=float).T
    factor = 1 if name == "log_loss" else 100
    return [Line(name=label, x=steps, y=factor * values, colour=colour, marker="circle", size=4.5, width=1.6)]


def _smoothed(steps: Float64, values: Float64) -> tuple[Float64, Float64]:
    parts = np.array_split(np.arange(len(steps)), max(1, min(_SMOOTH, len(steps) // _LEAST_MEAN)))
    return np.array([steps[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


def classification_figures(result: ClassificationResult, found: Classification, names: Names) -> list[Figure]:
    """Return the figures of a classification; `names` maps labels to their names in figures."""
    distribution, source = result.distribution, "Texts per label and split."
    if not any(distribution.values()):
        distribution = {"test": {one.label: one.support for one in found.scores}}
        source = "Texts per label, test split."
    shown = [distribution_figure(distribution, source, names)]
    if found.has_matrix:
        shown += [confusion_figure(found, normalized, names) for normalized in (False, True)]
    if result.curve:
        shown.append(curves_figure(result.curve, result.evaluations, found.majority))
    return shown
