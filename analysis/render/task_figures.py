"""Figures of task data and scores: SQuAD, classifications."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.metrics.classification import Classification, Float64
from analysis.render.figure import Figure, categories, cells, curve, legend, short_label, stacked
from analysis.render.training_figures import Panel, column, lines_figure
from common.scores import score
from records.classification import ClassificationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_RIGHT = {"exact": ("exact match", "blue"), "f1": ("F1", "vermilion"), "oracle": ("every answer right", "grey")}
_SPLITS = {"train": "blue", "validate": "orange", "test": "vermilion"}
_MOST_BARS = 40
_MOST_NUMBERS, _MOST_NAMES = 12, 100
"""Labels up to which the cells of a matrix have numbers, and its axes names."""
_NUMBERED_CELL, _CELL, _LETTER = 0.62, 0.24, 0.075
"""Inches: side of a cell with a number, of one without, width of a letter of a name."""
_FEW = 6
"""Largest number of labels for two matrices side by side."""
_SMOOTH, _LEAST_MEAN = 40, 8
"""Most points of the smoothed loss curve, and fewest updates in the mean of each."""


def precision_recall_figure(curves: Mapping[str, tuple[Sequence[float], Sequence[float], float]], title: str) -> Figure:
    """Return precision by recall: shares of both and average precision in percent, by what counts as right."""

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(title=f"Precision and recall, {short_label(title)}", xlim=(-1.5, 101.5), ylim=(0, 103))
        axes.set(xlabel="recall: correct answers of all answerable questions (%)")
        axes.set(ylabel="precision: correct answers of all given (%)")
        for kind, (precisions, recalls, average) in curves.items():
            name, colour = _RIGHT.get(kind, (short_label(kind), "orange"))
            # The area is that below steps which hold a precision from the recall before up to its own.
            curve(
                axes, 100 * np.asarray(recalls), 100 * np.asarray(precisions),
                f"{name}: {average:.1f} % average precision", colour, drawstyle="steps-pre",
                linestyle="dashed" if kind == "oracle" else "solid",
            )  # fmt: skip
        legend(canvas, axes)

    return Figure(name="precision_recall", title="Precision and recall", draw=draw, size=(6.4, 4.4))


def classification_figures(result: ClassificationResult, scored: Classification) -> list[Figure]:
    """Return the figures of a classification: texts per label, confusion matrices, losses and scores."""
    distribution, source = result.label_distribution, "Texts per label and split."
    if not any(distribution.values()):
        distribution = {"test": {row["label"]: row["support"] for row in scored.report}}
        source = "Texts per label, test split."
    matrices = [_confusion_figure(scored, normalized) for normalized in (False, True)]
    curves = [_curves_figure(result, scored.majority)] if result.curve else []
    return [_distribution_figure(distribution, source), *matrices, *curves]


def _distribution_figure(distribution: Mapping[str, Mapping[str, int]], caption: str) -> Figure:
    totals: Counter[str] = Counter()
    for counts in distribution.values():
        totals.update(counts)
    shown = [label for label, _ in totals.most_common(_MOST_BARS)]
    parts = {
        f"{split}: {sum(counts.values()):,} texts": (
            _SPLITS.get(split, "green"), [counts.get(label, 0) for label in shown]
        )
        for split, counts in distribution.items()
    }  # fmt: skip

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        more = f" (the {len(shown)} most frequent)" if len(totals) > len(shown) else ""
        axes.set(title=f"Texts per label, {len(totals)} labels{more}", xlabel="texts")
        categories(axes, shown)
        stacked(axes, parts)
        axes.set_xlim(left=0)
        legend(canvas, axes)

    size = (8.2, max(2.2, 1.0 + 0.21 * len(shown)))
    return Figure(name="label_distribution", title="Labels", caption=caption, draw=draw, size=size)


def _confusion_figure(scored: Classification, normalized: bool) -> Figure:
    count = len(scored.labels)
    numbered, named = count <= _MOST_NUMBERS, count <= _MOST_NAMES
    names = [short_label(label) for label in scored.labels] if named else []
    side = float(np.clip((_NUMBERED_CELL if numbered else _CELL) * count, 2.4, 13 if named else 7.5))
    side += _LETTER * max(map(len, names), default=4) + 0.6
    what = "share of each row" if normalized else "texts"

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        order = "" if named else f", {count:,} labels in the order of the table"
        axes.set(title=f"Confusion, {what}", xlabel=f"prediction{order}", ylabel="true label")
        values: Float64 = scored.normalized if normalized else scored.confusion.astype(np.float64)
        texts = [["" if np.isnan(value) else f"{100 * value:.1f} %" if normalized else f"{value:,.0f}" for value in row]
                 for row in values.tolist()]  # fmt: skip
        cells(axes, values if normalized else values / (np.nanmax(values) or 1), texts, names, names, numbered=numbered)
        axes.tick_params(axis="x", rotation=0 if numbered and max(map(len, names)) <= 7 else 90)
        axes.tick_params(labelsize=7.5 if count > 30 else 8.5)

    return Figure(
        name=f"confusion_matrix{'_normalized' * normalized}", title="Confusion matrix", draw=draw, half=count <= _FEW,
        caption=f"True labels in rows, predictions in columns: {what}.", size=(side, side),
    )  # fmt: skip


def _curves_figure(result: ClassificationResult, majority: float) -> Figure:
    steps, losses = np.array(result.curve, dtype=float).T
    parts = np.array_split(np.arange(len(steps)), max(1, min(_SMOOTH, len(steps) // _LEAST_MEAN)))
    loss: dict[str, tuple[Any, Any]] = {
        "training, mean": ([steps[part].mean() for part in parts], [losses[part].mean() for part in parts])
    }
    scores: dict[str, tuple[Any, Any]] = {}
    after = column(result.evaluations, "applied_steps")
    for name in ("log_loss", "accuracy", "balanced_accuracy"):
        held_out = column(result.evaluations, name)
        if np.isfinite(held_out).any() and name == "log_loss":
            loss["validation"] = after, held_out
        elif np.isfinite(held_out).any():
            scores[score(name).label] = after, 100 * held_out
    baseline = ("majority baseline", 100 * majority)
    panels: list[Panel] = [
        ("step", "loss (nats)", loss, None),
        ("step", "score on the validation split (%)", scores, baseline),
    ]
    caption = "By optimizer update. The model is not trained on validation texts."
    return lines_figure("loss_and_accuracy", "Loss and accuracy", caption, panels)
