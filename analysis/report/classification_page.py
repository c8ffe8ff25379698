"""The HTML page of a text classification, its pictures, and its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.metrics.classification import Classification
from analysis.report import tables
from analysis.report.classification_figures import draw_confusion, draw_curves, draw_distribution
from analysis.report.drawing import Picture, picture_names, short_label
from analysis.report.page import render_page
from common.atomic import write_text
from records.classification import ClassificationResult

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
        tables.measured("precision", "precision", tables.percent),
        tables.measured("recall", "recall", tables.percent),
        tables.measured("F1", "f1", tables.percent),
        tables.measured("texts", "support", tables.count),
        tables.measured("predicted", "predicted", tables.count),
    ]
    return tables.build("report", columns, found.report())


def confused_table(found: Classification) -> tables.Table:
    """Return the most frequent errors."""
    columns = [
        tables.plain("true label", "true"),
        tables.plain("prediction", "given"),
        tables.measured("texts", "texts", tables.count),
        tables.measured("of that label", "share", tables.percent),
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
