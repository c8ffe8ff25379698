"""Charts of the scores of `bertbench eval TASK --out DIR`, for tasks that have charts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert.tasks.gap.scores import Scores as GapScores
    from bert.tasks.gap.scores import Slice
    from bert.tasks.squad.scores import Scores as SquadScores


def draw_scores(task: str, document: Mapping[str, Any], drawn: Any, out: Path) -> list[Path]:
    """Draw the charts of a task's scores; return their paths.

    Args:
        task: a name in bert.tasks.
        document: document of the outcome (bert.tasks.commands.Outcome).
        drawn: data of the charts, from the same outcome.
        out: folder for the charts.
    """
    return _DRAWN[task](document, drawn, out) if task in _DRAWN else []


def _draw_squad(document: Mapping[str, Any], found: "SquadScores", out: Path) -> list[Path]:
    from analysis.render.figure import write_png
    from analysis.render.task_figures import precision_recall_figure

    analysis = found.analysis
    if analysis is None or not analysis.null_odds or not analysis.curves:
        return []
    curves = {name: (one.precisions, one.recalls, one.average_precision) for name, one in analysis.curves.items()}
    return [write_png(precision_recall_figure(curves, Path(document["predictions"]).name), out)]


def _draw_gap(document: Mapping[str, Any], drawn: "tuple[GapScores, Sequence[Slice]]", out: Path) -> list[Path]:
    from analysis.render.figure import write_png
    from analysis.render.task_figures import gap_figure
    from bert.tasks.gap.commands import slice_name, used_answers
    from bert.tasks.gap.scores import ANSWERS, OVERALL

    scores, parts = drawn
    lines, columns = used_answers(scores)
    counts = scores.confusion[lines][:, columns]
    groups = [(part.by, slice_name(part), part.rows, part.accuracy) for part in parts]
    names_of_files = [Path(document[name]).name for name in ("dataset", "predictions")]
    heading = f"{', '.join(names_of_files)}, {scores.rows:,} rows, F1 {scores.tallies[OVERALL].f1:.1f} %"
    correct, given = [ANSWERS[line] for line in lines], [ANSWERS[column] for column in columns]
    return [write_png(gap_figure(counts, correct, given, groups, scores.accuracy, heading), out)]


_DRAWN: Mapping[str, Callable[[Mapping[str, Any], Any, Path], list[Path]]] = {"squad": _draw_squad, "gap": _draw_gap}
