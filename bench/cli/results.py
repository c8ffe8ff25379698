"""`bertbench results FILE`: results of a text classification, from any one of its files."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bench.cli.options import Printed, run_folder
from bench.cli.result import Result, when_writable

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
    from analysis.render.classification_page import classification_blocks, write_classification_report
    from records.classification import read_result

    result = read_result(options.file)
    found = classify(result.pairs, result.labels)
    root = result.root
    folder = run_folder(options.out) if options.out else root.with_name(f"{root.name}{_ENDING}")
    blocks = classification_blocks(result, found)
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
