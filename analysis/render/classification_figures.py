"""Figures of a text classification: label distribution, confusion matrix, loss and accuracy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.metrics.classification import Classification, Float64
from analysis.render.figure import Figure, categories, cells, curve, legend, rule, short_label, stacked, whole_ticks
from analysis.render.training_figures import column
from common.scores import score
from records.classification import ClassificationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_SPLITS = {"train": "blue", "validate": "orange", "test": "vermilion"}
_MOST_BARS = 40
_MOST_NUMBERS = 12
"""Labels up to which the cells of a matrix have numbers."""
_MOST_NAMES = 100
_NUMBERED_CELL, _CELL, _LETTER = 0.62, 0.24, 0.075
"""Inches: side of a cell with a number, of one without, width of a letter of a name."""
_FEW = 6
"""Largest number of labels for two matrices side by side."""
_SMOOTH, _LEAST_MEAN = 40, 8
"""Most points of the smoothed loss curve, and fewest updates in the mean of each."""


def classification_figures(result: ClassificationResult, scored: Classification) -> list[Figure]:
    """Return the figures of a classification."""
    distribution, source = result.distribution, "Texts per label and split."
    if not any(distribution.values()):
        distribution = {"test": {row["label"]: row["support"] for row in scored.report}}
        source = "Texts per label, test split."
    shown = [distribution_figure(distribution, source)]
    shown += [confusion_figure(scored, normalized) for normalized in (False, True)]
    if result.curve:
        shown.append(curves_figure(result.curve, result.evaluations, scored.majority))
    return shown


def distribution_figure(distribution: Mapping[str, Mapping[str, int]], caption: str) -> Figure:
    """Return the number of texts per label and split (split -> label -> texts), the most frequent label first."""
    totals: Counter[str] = Counter()
    for counts in distribution.values():
        totals.update(counts)
    shown = [label for label, _ in totals.most_common(_MOST_BARS)]

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        more = f" (the {len(shown)} most frequent)" if len(totals) > len(shown) else ""
        axes.set(title=f"Texts per label, {len(totals)} labels{more}", xlabel="texts")
        categories(axes, shown)
        stacked(
            axes,
            {
                f"{split}: {sum(counts.values()):,} texts": (
                    _SPLITS.get(split, "green"),
                    [counts.get(label, 0) for label in shown],
                )
                for split, counts in distribution.items()
            },
        )
        axes.set_xlim(left=0)
        legend(canvas, axes)

    size = (8.2, max(2.2, 1.0 + 0.21 * len(shown)))
    return Figure(name="label_distribution", title="Labels", caption=caption, draw=draw, size=size)


def confusion_figure(scored: Classification, normalized: bool) -> Figure:
    """Return the confusion matrix, which the predictions must have, as counts or as shares of each row."""
    count = len(scored.labels)
    numbered, named = count <= _MOST_NUMBERS, count <= _MOST_NAMES
    # With too many labels, their names would be illegible.
    names = [short_label(label) for label in scored.labels] if named else []
    side = float(np.clip((_NUMBERED_CELL if numbered else _CELL) * count, 2.4, 13 if named else 7.5))
    beside = _LETTER * max(map(len, names), default=4)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        order = "" if named else f", {count:,} labels in the order of the table"
        axes.set(title="Confusion, share of each row" if normalized else "Confusion, texts")
        axes.set(xlabel=f"prediction{order}", ylabel="true label")
        values: Float64 = scored.normalized if normalized else scored.confusion.astype(np.float64)
        texts = [["" if np.isnan(value) else f"{100 * value:.1f} %" if normalized else f"{value:,.0f}" for value in row]
                 for row in values.tolist()]  # fmt: skip
        shares = values if normalized else values / (np.nanmax(values) or 1)
        cells(axes, shares, texts, names, names, numbered=numbered)
        axes.tick_params(axis="x", rotation=0 if numbered and max(map(len, names)) <= 7 else 90)
        axes.tick_params(labelsize=7.5 if count > 30 else 8.5)

    kind = "Share of each row" if normalized else "Texts"
    return Figure(
        name="confusion_matrix_normalized" if normalized else "confusion_matrix", title="Confusion matrix",
        caption=f"{kind}; true labels in rows, predictions in columns", draw=draw,
        size=(side + beside + 0.6, side + beside + 0.6), half=count <= _FEW,
    )  # fmt: skip


def curves_figure(
    losses: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], majority: float
) -> Figure:
    """Return training loss, validation loss and validation scores by update.

    Args:
        losses: (updates, training loss), at least one.
        evaluations: scores by name, with `applied_steps`.
        majority: accuracy of always predicting the most frequent label of the test split, from 0 to 1.
    """
    steps, values = np.array(losses, dtype=float).T
    parts = np.array_split(np.arange(len(steps)), max(1, min(_SMOOTH, len(steps) // _LEAST_MEAN)))

    def draw(canvas: "Canvas") -> None:
        left, right = canvas.subplots(1, 2)
        left.set(title="Loss", xlabel="updates", ylabel="loss (nats)")
        curve(left, steps, values, "training, each update", "pale", linewidth=0.8, alpha=0.6, titled=0)
        mean_steps, means = ([array[part].mean() for part in parts] for array in (steps, values))
        curve(left, mean_steps, means, "training, mean", "blue")
        right.set(title="Scores on the validation split", xlabel="updates", ylabel="score (%)", ylim=(0, 102))
        rule(right, "y", 100 * majority, "majority baseline", "note", label="majority baseline")
        after = column(evaluations, "applied_steps")
        for axes, name, colour in ((left, "log_loss", "vermilion"), (right, "accuracy", "blue"),
                                   (right, "balanced_accuracy", "green")):  # fmt: skip
            held_out = column(evaluations, name) * (1 if axes is left else 100)
            label = "validation" if axes is left else score(name).label
            if np.isfinite(held_out).any():
                curve(axes, after, held_out, label, colour, marker="o", markersize=4.5, linewidth=1.6)
        left.set_ylim(bottom=0)
        for axes in (left, right):
            whole_ticks(axes)
            legend(axes, axes, loc="best")

    caption = "By optimizer update. The model is not trained on validation texts."
    return Figure(name="loss_and_accuracy", title="Loss and accuracy", caption=caption, draw=draw, size=(9.8, 3.6))
