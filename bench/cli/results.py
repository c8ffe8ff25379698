"""`bertbench results FILE`: what a text classification has come to, from any one of the files it left."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from analysis.render.terminal import printable, render
from bench.cli.findings_output import terminal_width
from bench.cli.options import parse, run_folder

if TYPE_CHECKING:
    from analysis.metrics.classification import Classification
    from records.classification import ClassificationResult

_MOST_LABELS = 20
_MOST_CONFUSED = 8
_MOST_COLUMNS = 6
_ENDING = "_results"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultsOptions:
    """Say how well labels of texts are found: distribution of the labels, confusion matrix, precision and recall of
    each label, losses and accuracies of the training; printed, as pictures, and as one HTML page.
    """

    file: tyro.conf.Positional[Path]
    """*_train_test_stats.json, *_testset_predictions.csv, *_trained_model or the *.sqlite of `train classify`."""
    out: Path | None = None
    """Folder for page, pictures and tables; default beside FILE: <root>_results."""
    json: bool = False
    """Print everything as JSON."""


OPTIONS = {"results": ResultsOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the page is written."""
    options = parse(ResultsOptions, argv, "bertbench results")
    from analysis.metrics.classification import classify
    from records.classification import read_result

    result = read_result(options.file)
    found = classify(result.pairs, result.labels)
    if not options.json:  # before anything is written: a full disk must not hide them
        print("\n".join(_lines(result, found, terminal_width())))
    from analysis.render.classification_page import write_page

    root = result.root
    folder = run_folder(options.out) if options.out else root.with_name(f"{root.name}{_ENDING}")
    page = write_page(result, found, folder)
    if options.json:
        document = {
            "file": str(options.file),
            "run": dict(result.run),
            "label_distribution": result.distribution,
            **found.to_json(),
            "curve": [list(point) for point in result.curve],
            "evaluations": [dict(one) for one in result.evaluations],
            "page": str(page),
        }
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(f"page        {printable(str(page))}")
    return 0


def _lines(result: "ClassificationResult", found: "Classification", width: int) -> list[str]:
    from analysis.render.classification_page import cards, confused_table, facts, headline, report_table

    lines = [headline(found), ""]
    lines += [f"{name:<26} {printable(value)}" for name, value in (*cards(found), *facts(result))]
    report = report_table(found)
    if len(report.rows) > _MOST_LABELS:  # the page has all
        known = [row for row, one in zip(report.rows, found.scores, strict=True) if one.support]
        hardest = sorted(known, key=lambda row: row[3].sort)[:_MOST_LABELS]
        lines += ["", f"the {len(hardest)} of {len(report.rows):,} labels with the lowest F1, of those that occur"]
        report = type(report)(report.name, report.headings, tuple(hardest), report.numeric)
    lines += ["", render(report, width)]
    if len(found.labels) <= _MOST_COLUMNS:
        lines += ["", *_matrix(found)]
    confused = confused_table(found)
    if len(found.labels) > _MOST_COLUMNS and confused.rows:
        some = type(confused)(confused.name, confused.headings, confused.rows[:_MOST_CONFUSED], confused.numeric)
        lines += ["", "most frequent errors", render(some, width)]
    return [*lines, ""]


def _matrix(found: "Classification") -> list[str]:
    import numpy as np

    names = [printable(label)[:14] for label in found.labels]
    width = max(16, *map(len, names)) + 2
    lines = ["confusion, texts and share of each row (true labels down, predictions across)"]
    lines.append(" " * width + "".join(f"{name:>{width}}" for name in names))
    for name, counts, shares in zip(names, found.confusion, found.normalized, strict=True):
        cells = [
            f"{count:,}" if np.isnan(share) else f"{count:,} ({100 * share:.1f} %)"
            for count, share in zip(counts, shares, strict=True)
        ]
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return lines
