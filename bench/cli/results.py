"""`bertbench results FILE`: results of a text classification, from any one of its files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from bench.cli.options import Printed, run_folder
from bench.cli.result import Result, when_writable

if TYPE_CHECKING:
    from analysis.metrics.classification import Classification
    from analysis.render.tables import Block, Table
    from records.classification import ClassificationResult

_MOST_LABELS = 20
_MOST_CONFUSED = 8
_MOST_COLUMNS = 6
_ENDING = "_results"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultsOptions(Printed):
    """Report the results of a text classifier: label distribution, confusion matrix, precision and recall of each
    label, and the losses and accuracies of the training. Written to the terminal, as pictures, and as one HTML page.

    Examples:
        bertbench results reviews_train_test_stats.json
    """

    file: tyro.conf.Positional[Path]
    """Output of `train classify`: *_train_test_stats.json, *_testset_predictions.csv, *_trained_model or *.sqlite."""
    out: Path | None = None
    """Folder for the page, pictures and tables; default beside FILE: <root>_results."""


OPTIONS = {"results": ResultsOptions}


def run(options: ResultsOptions) -> Result:
    """Read what was left, show it and write the page."""
    from analysis.metrics.classification import classify
    from analysis.render.classification_page import write_classification_report
    from records.classification import read_result

    result = read_result(options.file)
    found = classify(result.pairs, result.labels)
    root = result.root
    folder = run_folder(options.out) if options.out else root.with_name(f"{root.name}{_ENDING}")
    blocks = _blocks(result, found)
    pages, failure = when_writable(lambda: [write_classification_report(result, found, folder)])
    document = {
        "file": str(options.file),
        "run": dict(result.run),
        "label_distribution": result.distribution,
        **found.to_json(),
        "curve": [list(point) for point in result.curve],
        "evaluations": [dict(one) for one in result.evaluations],
        "page": "".join(map(str, pages)),
    }
    return Result(document=None if failure else document, blocks=blocks, written=pages, failure=failure)


def _blocks(result: "ClassificationResult", found: "Classification") -> "list[Block]":
    from analysis.render.classification_page import cards, confused_table, facts, headline, report_table
    from analysis.render.tables import Facts

    blocks: list[Block] = [headline(found), Facts([*cards(found), *facts(result)])]
    report = report_table(found)
    if len(report.rows) > _MOST_LABELS:  # the page has all
        known = [row for row, one in zip(report.rows, found.scores, strict=True) if one.support]
        hardest = sorted(known, key=lambda row: row[3].sort)[:_MOST_LABELS]
        title = f"the {len(hardest)} of {len(report.rows):,} labels with the lowest F1, of those that occur"
        report = replace(report, rows=tuple(hardest), title=title)
    blocks.append(report)
    confused = confused_table(found)
    if len(found.labels) <= _MOST_COLUMNS:
        blocks.append(_matrix(found))
    elif confused.rows:
        blocks.append(replace(confused, rows=confused.rows[:_MOST_CONFUSED], title="most frequent errors"))
    return blocks


def _matrix(found: "Classification") -> "Table":
    """Texts and share of each row, true labels down, predictions across."""
    import numpy as np

    from analysis.render.tables import Cell, Table

    rows = []
    for label, counts, shares in zip(found.labels, found.confusion, found.normalized, strict=True):
        texts = [
            f"{count:,}" if np.isnan(share) else f"{count:,} ({100 * share:.1f} %)"
            for count, share in zip(counts, shares, strict=True)
        ]
        rows.append((Cell(label, label), *(Cell(text, int(count)) for text, count in zip(texts, counts, strict=True))))
    title = "confusion, texts and share of each row (true labels down, predictions across)"
    return Table("confusion", ("", *found.labels), tuple(rows), (False, *(True for _ in found.labels)), title)
