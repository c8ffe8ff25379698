"""The HTML page of a text classification, and its tables."""

from collections.abc import Sequence
from pathlib import Path

from analysis.metrics.classification import Classification
from analysis.render.classification_figures import classification_figures
from analysis.render.columns import columns
from analysis.render.page import Cards, Figures, Page, Section, Text, write_page
from analysis.render.tables import Block, Facts, Table, texts, write_csv
from analysis.wording import percent
from records.classification import ClassificationResult

_MOST_CONFUSED = 15
_MOST_LABELS, _MOST_SHOWN = 10, 5
"""Labels and errors that a terminal shows."""
_MOST_COLUMNS = 6
_RUN_NAMES = {"instead_of": "replaced the files of run"}


def write_classification_report(result: ClassificationResult, scores: Classification, folder: Path) -> Path:
    """Write the page, its figures and its tables; return the path of the page. Raises StorageError."""
    write_csv(folder / "classification_report.csv", scores.report)
    header = ["true_label", *(f"predicted {label}" for label in scores.labels)]
    rows = [(label, *counts) for label, counts in zip(scores.labels, scores.confusion.tolist(), strict=True)]
    write_csv(folder / "confusion_matrix.csv", [dict(zip(header, row, strict=True)) for row in rows], header)
    headline, _, *tables = classification_blocks(result, scores, page=True)
    sections = [
        Section("", [Text(str(headline), "headline"), Cards([(*card, "") for card in _cards(scores)])], "answer"),
        Section("Input", [Facts(_facts(result))]),
        Section("Figures", [Figures(classification_figures(result, scores))]),
        Section("Each label", tables),
    ]
    return write_page(Page(result.root.name, "bertbench classification", sections), folder)[0]


def classification_blocks(result: ClassificationResult, scores: Classification, *, page: bool = False) -> list[Block]:
    """Return the result in one sentence, scores, each label, and the confusions.

    Args:
        result: what a training left.
        scores: its scores on the test split.
        page: with all labels, not only those with the lowest F1, and more of the errors.
    """
    gain = 100 * (scores.accuracy - scores.majority)
    headline = (
        f"Accuracy {percent(scores.accuracy)} on {scores.texts:,} held-out texts with {len(scores.labels)} labels: "
        f"{abs(gain):.1f} points {'above' if gain >= 0 else 'below'} always predicting the most frequent label"
    )
    rows, title, csv = scores.report, "", "classification_report.csv"
    if not page and len(rows) > _MOST_LABELS:
        rows = sorted((row for row in rows if row["support"]), key=lambda row: row["f1"] or 0.0)[:_MOST_LABELS]
        title = f"the {len(rows)} of {len(scores.labels):,} labels with the lowest F1, of those that occur"
    blocks: list[Block] = [headline, Facts([*_cards(scores), *_facts(result)[:2]])]
    blocks.append(Table("report", columns("label precision recall f1 support predicted"), rows, title, csv))
    return [*blocks, *_confusions(scores, _MOST_CONFUSED if page else _MOST_SHOWN)]


def _confusions(scores: Classification, most: int) -> list[Block]:
    """Return the confusion matrix of a few labels, true labels down, and the most frequent errors."""
    blocks: list[Block] = []
    if len(scores.labels) <= _MOST_COLUMNS:
        lines = [
            [label, *(f"{count:,}" if share != share else f"{count:,} ({percent(share)})"
                      for count, share in zip(counts, shares, strict=True))]
            for label, counts, shares in zip(scores.labels, scores.confusion, scores.normalized, strict=True)
        ]  # fmt: skip
        title = "confusion, texts and share of each row (true labels down, predictions across)"
        blocks.append(texts("confusion", ("", *scores.labels), lines, title))
    names = ("true", "given", "texts", "share")
    rows = [dict(zip(names, one, strict=True)) for one in scores.most_confused(most)]
    shown = columns(" ".join(names), true="true label", given="prediction", share="of that label")
    return [*blocks, Table("confused", shown, rows, "most frequent errors")] if rows else blocks


def _cards(scores: Classification) -> Sequence[tuple[str, str]]:
    names = ("accuracy", "balanced accuracy", "macro F1", "weighted F1", "majority baseline")
    values = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1, scores.weighted_f1, scores.majority)
    return [(name, percent(value)) for name, value in zip(names, values, strict=True)]


def _facts(result: ClassificationResult) -> list[tuple[str, str]]:
    splits = ", ".join(f"{split} {sum(counts.values()):,}" for split, counts in result.distribution.items())
    run = [(_RUN_NAMES.get(name, name.replace("_", " ")), str(value)) for name, value in result.run.items()
           if value is not None]  # fmt: skip
    return [(name, value) for name, value in [("source", result.path.name), ("texts", splits), *run] if value]
