"""The HTML page of a text classification, its pictures, and its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.classification import Classification, Float64, Int64
from analysis.render import tables
from analysis.render.drawing import (
    BLUE,
    GREEN,
    NOTE,
    ORANGE,
    PALE,
    STYLE,
    VERMILION,
    Picture,
    canvas,
    picture_names,
    save,
    short_label,
)
from analysis.render.page import render_page
from common.atomic import write_text
from common.scores import score
from records.classification import ClassificationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"train": BLUE, "validate": ORANGE, "test": VERMILION}
_MOST_BARS = 40
_MOST_NUMBERS = 12
"""Labels up to which the cells of a matrix have numbers."""
_MOST_NAMES = 100
_NUMBERED_CELL, _CELL, _LETTER = 0.62, 0.24, 0.075
"""Inches: side of a cell with a number, of one without, width of a letter of a name."""
_LETTER_SHARE = 0.62
"""Width of a digit as a share of the size of its font."""
_LONGEST_UPRIGHT = 7
"""Letters of names that fit under a cell beside each other."""
_SMOOTH = 40
"""Points of the smoothed curve of losses at most."""
_LEAST_MEAN = 8
"""Updates that each of them is the mean of at least."""


def draw_distribution(
    path: Path, distribution: Mapping[str, Mapping[str, int]], names: Mapping[str, str] | None = None
) -> Path:
    """Draw how many texts of each split have each label, the most frequent first; return `path`.

    Args:
        path: PNG to write.
        distribution: split -> label -> texts, at least one label.
        names: label -> its name in the picture, where that is another one.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    totals: dict[str, int] = {}
    for counts in distribution.values():
        for label, count in counts.items():
            totals[label] = totals.get(label, 0) + count
    labels = sorted(totals, key=lambda label: -totals[label])
    shown = labels[:_MOST_BARS]
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(8.2, max(2.2, 0.9 + 0.21 * len(shown)))
        left = np.zeros(len(shown))
        for split, counts in distribution.items():
            values = np.array([counts.get(label, 0) for label in shown], dtype=float)
            name = f"{split}: {sum(counts.values()):,} texts"
            axis.barh(range(len(shown)), values, left=left, color=_COLOURS.get(split, GREEN), label=name, height=0.72)
            left += values
        axis.set_yticks(range(len(shown)), [(names or {}).get(label) or short_label(label) for label in shown])
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("texts")
        more = f" (the {len(shown)} most frequent)" if len(labels) > len(shown) else ""
        axis.set_title(f"Texts of each of {len(labels)} labels{more}")
        figure.legend(loc="outside lower left", ncols=3, fontsize=8.5)
        save(figure, path)
    return path


def draw_confusion(path: Path, found: Classification, normalized: bool, shown: Mapping[str, str] | None = None) -> Path:
    """Draw the confusion matrix, in texts or in shares of each row; return `path`.

    Args:
        path: PNG to write.
        found: the predictions, with a matrix.
        normalized: shares instead of texts.
        shown: label -> its name in the picture, where that is another one.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    count = len(found.labels)
    values: Int64 | Float64 = found.normalized if normalized else found.confusion
    names = [(shown or {}).get(label) or short_label(label) for label in found.labels]
    numbers, named = count <= _MOST_NUMBERS, count <= _MOST_NAMES
    upright = numbers and max(map(len, names)) <= _LONGEST_UPRIGHT
    matrix = float(np.clip((_NUMBERED_CELL if numbers else _CELL) * count, 2.4, 13 if named else 7.5))
    beside = _LETTER * max(map(len, names)) if named else 0.3
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(matrix + beside + 1.3, matrix + (0.3 if upright else beside) + 0.8)
        image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1 if normalized else None, aspect="equal")
        axis.grid(visible=False)
        size = 8.5 if count <= 30 else 6
        # Of too many labels the places in the table would say nothing.
        axis.set_xticks(
            range(count if named else 0), names if named else [], rotation=0 if upright else 90, fontsize=size
        )
        axis.set_yticks(range(count if named else 0), names if named else [], fontsize=size)
        if numbers:
            cell = 72 * matrix / count
            _write_numbers(axis, values, normalized, cell, dark=0.55 * (1 if normalized else float(np.nanmax(values))))
        order = "" if named else f", {count:,} labels in the order of the table"
        axis.set_xlabel(f"prediction{order}")
        axis.set_ylabel("true label")
        axis.set_title("Confusion, share of each row" if normalized else "Confusion, texts")
        bar = figure.colorbar(image, ax=axis, shrink=0.7)
        if normalized:
            bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        bar.outline.set_visible(False)
        save(figure, path)
    return path


def _write_numbers(axis: "Axes", values: Int64 | Float64, normalized: bool, cell: float, dark: float) -> None:
    """Write each number into its cell, of `cell` points; above `dark` in white."""
    numbers = [(place, value) for place, value in np.ndenumerate(values) if not np.isnan(value)]
    texts = [f"{100 * value:.1f} %" if normalized else f"{value:,}" for _, value in numbers]
    size = min(8.5, 0.92 * cell / (_LETTER_SHARE * max(map(len, texts))))
    for ((row, column), value), text in zip(numbers, texts, strict=True):
        colour = "white" if value > dark else NOTE if value else PALE
        axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)


def draw_curves(
    path: Path, curve: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], majority: float
) -> Path:
    """Draw training and validation loss, and the scores on the validation split, over the updates; return `path`.

    Args:
        path: PNG to write.
        curve: (updates, training loss), at least one.
        evaluations: scores by name, with `applied_steps`.
        majority: accuracy of the most frequent label in the test split, from 0 to 1.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (losses, scores) = canvas(9.8, 3.6, 1, 2)
        steps, values = np.array(curve, dtype=float).T
        losses.plot(steps, values, color=PALE, linewidth=0.8, label="training, each update")
        smooth_steps, smooth = _smoothed(steps, values)
        losses.plot(smooth_steps, smooth, color=BLUE, linewidth=1.8, label="training, mean")
        _plot(losses, evaluations, "log_loss", VERMILION, "validation")
        losses.set_ylim(bottom=0)
        losses.set_xlabel("updates")
        losses.set_title("Loss, nats")
        losses.legend(fontsize=8.5)
        for name, colour in (("accuracy", BLUE), ("balanced_accuracy", GREEN)):
            _plot(scores, evaluations, name, colour, score(name).label)
        scores.axhline(100 * majority, color=NOTE, linewidth=1, linestyle=(0, (3, 2)))
        scores.annotate(
            "always the most frequent label", (0.01, 100 * majority), (0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=8, color=NOTE,
        )  # fmt: skip
        scores.set_ylim(0, 102)
        scores.set_xlim(losses.get_xlim())
        scores.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        scores.set_xlabel("updates")
        scores.set_title("Scores on the validation split")
        if scores.get_legend_handles_labels()[0]:
            scores.legend(fontsize=8.5, loc="lower right")
        save(figure, path)
    return path


def _plot(axis: "Axes", evaluations: Sequence[Mapping[str, Any]], name: str, colour: str, label: str) -> None:
    found = [(one["applied_steps"], one[name]) for one in evaluations if one.get(name) is not None]
    if found:
        steps, values = np.array(found, dtype=float).T
        factor = 1 if name == "log_loss" else 100
        axis.plot(steps, factor * values, color=colour, marker="o", markersize=4.5, linewidth=1.6, label=label)


def _smoothed(steps: Float64, values: Float64) -> tuple[Float64, Float64]:
    """Means of equal parts of the curve."""
    parts = np.array_split(np.arange(len(steps)), max(1, min(_SMOOTH, len(steps) // _LEAST_MEAN)))
    return np.array([steps[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


MOST_CONFUSED = 15
_RUN_NAMES = {"instead_of": "files were before of run"}
_FEW = 6
"""Labels up to which two matrices stand beside each other."""
PAGE = "report.html"


def write_page(result: ClassificationResult, found: Classification, folder: Path) -> Path:
    """Write the page, which holds its pictures, and the pictures and tables themselves; return the page.

    Raises:
        StorageError: the folder cannot be written.
    """
    report, confused = report_table(found), confused_table(found)
    tables.write_csv(folder / "classification_report.csv", found.report())
    _write_confusion(found, folder)
    names = picture_names(found.labels)
    legend = [(f"{name} in the pictures", label) for label, name in names.items() if name != short_label(label)]
    context = {
        "title": result.root.name,
        "headline": headline(found),
        "cards": cards(found),
        "facts": [*facts(result), *legend],
        "pictures": _pictures(result, found, folder, names),
        "report": report,
        "confused": confused,
    }
    path = folder / PAGE
    write_text(path, render_page("classification.html", context))
    return path


def _write_confusion(found: Classification, folder: Path) -> None:
    """Write the confusion matrix as a table; of too many labels the pairs that occur."""
    matrix, pairs = folder / "confusion_matrix.csv", folder / "confusion_pairs.csv"
    if not found.has_matrix:
        names = ("true_label", "prediction", "texts")
        tables.write_csv(pairs, [dict(zip(names, pair, strict=True)) for pair in found.pairs()], names)
        return
    header = ["true_label", *(f"predicted {label}" for label in found.labels)]
    rows = zip(found.labels, found.confusion.tolist(), strict=True)
    tables.write_csv(matrix, [dict(zip(header, (label, *counts), strict=True)) for label, counts in rows], header)


def headline(found: Classification) -> str:
    """Return the result in one sentence."""
    gain = 100 * (found.accuracy - found.majority)
    return (
        f"{100 * found.accuracy:.1f} % of {found.texts:,} held-out texts are given their label, one of "
        f"{len(found.labels)}: {abs(gain):.1f} points {'more' if gain >= 0 else 'less'} than by the most frequent label"
    )


def cards(found: Classification) -> list[tuple[str, str]]:
    """Return the scores as (name, value)."""
    names = ("accuracy", "balanced accuracy", "macro F1", "weighted F1", "most frequent label alone")
    values = (found.accuracy, found.balanced_accuracy, found.macro_f1, found.weighted_f1, found.majority)
    return [(name, f"{100 * value:.1f} %") for name, value in zip(names, values, strict=True)]


def facts(result: ClassificationResult) -> list[tuple[str, str]]:
    """Return what was read, and how it was trained, as (name, value)."""
    splits = ", ".join(f"{split} {sum(counts.values()):,}" for split, counts in result.distribution.items())
    rows = [("read from", result.path.name), ("texts", splits)]
    rows += [
        (_RUN_NAMES.get(name, name.replace("_", " ")), str(value))
        for name, value in result.run.items()
        if value is not None
    ]
    return [(name, value) for name, value in rows if value]


def report_table(found: Classification) -> tables.Table:
    """Return precision, recall and F1 of each label."""
    columns = [
        tables.plain("label", "label"),
        tables.measured("precision", "precision", wording.percent),
        tables.measured("recall", "recall", wording.percent),
        tables.measured("F1", "f1", wording.percent),
        tables.measured("texts", "support", wording.count),
        tables.measured("predicted", "predicted", wording.count),
    ]
    return tables.build("report", columns, found.report())


def confused_table(found: Classification) -> tables.Table:
    """Return the most frequent errors."""
    columns = [
        tables.plain("true label", "true"),
        tables.plain("prediction", "given"),
        tables.measured("texts", "texts", wording.count),
        tables.measured("of that label", "share", wording.percent),
    ]
    names = ("true", "given", "texts", "share")
    rows: Sequence[dict[str, Any]] = [dict(zip(names, one, strict=True)) for one in found.most_confused(MOST_CONFUSED)]
    return tables.build("confused", columns, rows)


def _pictures(
    result: ClassificationResult, found: Classification, folder: Path, names: Mapping[str, str]
) -> list[Picture]:
    shown = []
    distribution = result.distribution
    source = "texts of each split by label"
    if not any(distribution.values()):
        distribution = {"test": {one.label: one.support for one in found.scores}}
        source = "texts of the test split by label"
    path = draw_distribution(folder / "label_distribution.png", distribution, names)
    shown.append(Picture(path, "Labels", source))
    matrices = ((False, "confusion_matrix"), (True, "confusion_matrix_normalized"))
    for normalized, name in matrices if found.has_matrix else ():
        path = draw_confusion(folder / f"{name}.png", found, normalized, names)
        caption = "shares of each row" if normalized else "texts"
        caption = f"{caption}: true labels down, predictions across"
        shown.append(Picture(path, "Confusion matrix", caption, half=len(found.labels) <= _FEW))
    if result.curve:
        path = draw_curves(folder / "loss_and_accuracy.png", result.curve, result.evaluations, found.majority)
        shown.append(Picture(path, "Loss and accuracy", "over the updates; validation texts are never trained on"))
    return shown
