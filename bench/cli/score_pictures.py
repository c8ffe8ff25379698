"""Charts of the scores of `bertbench eval squad --out DIR`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert.tasks.squad.scores import Scores


def draw_scores(document: Mapping[str, Any], scores: "Scores | None", out: Path) -> list[Path]:
    """Draw precision by recall into `out`; return the paths, none for scores without probabilities of no answer.

    Args:
        document: document of the outcome (bert.tasks.commands.Outcome).
        scores: data of the charts, from the same outcome.
        out: folder for the charts.
    """
    from analysis.render.figure import write_png
    from analysis.render.task_figures import precision_recall_figure

    if scores is None or scores.analysis is None or not scores.analysis.null_odds or not scores.analysis.curves:
        return []
    by_name = scores.analysis.curves.items()
    curves = {name: (one.precisions, one.recalls, one.average_precision) for name, one in by_name}
    return [write_png(precision_recall_figure(curves, Path(document["predictions"]).name), out)]
