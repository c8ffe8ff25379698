"""The HTML page of a text classification, its figures, and its tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.metrics.classification import Classification
from analysis.render import tables
from analysis.render.classification_figures import classification_figures
from analysis.render.page import Block, Cards, Gallery, Page, Prose, Section, write_page
from analysis.render.tables import Facts
from records.classification import ClassificationResult

MOST_CONFUSED = 15
_RUN_NAMES = {"instead_of": "replaced the files of run"}


def write_classification_report(result: ClassificationResult, found: Classification, folder: Path) -> Path:
    """Write the page, its figures and its tables; return the path of the page.

    Raises:
        StorageError: the folder cannot be written.
    """
    tables.write_csv(folder / "classification_report.csv", found.report())
    _write_confusion(found, folder)
    return write_page(classification_page(result, found), folder)[0]


def classification_page(result: ClassificationResult, found: Classification) -> Page:
    """Return the page of a classification."""
    confused = confused_table(found)
    answer: list[Block] = [Prose(headline(found), "headline"), Cards([(*card, "") for card in cards(found)])]
    return Page(
        result.root.name,
        "bertbench classification",
        [
            Section("", answer, "answer"),
            Section("Input", [Facts(facts(result))]),
            Section("Figures", [Gallery(classification_figures(result, found))]),
            Section("Each label", [Prose("Scores on the test split.", "faint"), report_table(found)]),
            Section("Most frequent errors", [confused] if confused.rows else []),
        ],
    )


def _write_confusion(found: Classification, folder: Path) -> None:
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
        f"Accuracy {100 * found.accuracy:.1f} % on {found.texts:,} held-out texts with {len(found.labels)} labels: "
        f"{abs(gain):.1f} points {'above' if gain >= 0 else 'below'} always predicting the most frequent label"
    )


def cards(found: Classification) -> list[tuple[str, str]]:
    """Return the scores as (name, value)."""
    names = ("accuracy", "balanced accuracy", "macro F1", "weighted F1", "majority baseline")
    values = (found.accuracy, found.balanced_accuracy, found.macro_f1, found.weighted_f1, found.majority)
    return [(name, f"{100 * value:.1f} %") for name, value in zip(names, values, strict=True)]


def facts(result: ClassificationResult) -> list[tuple[str, str]]:
    """Return the input and the training settings as (name, value)."""
    splits = ", ".join(f"{split} {sum(counts.values()):,}" for split, counts in result.distribution.items())
    rows = [("source", result.path.name), ("texts", splits)]
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
    return tables.build("report", columns, found.report(), csv="classification_report.csv")


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
