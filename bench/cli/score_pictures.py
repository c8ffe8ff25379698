"""Pictures of the scores of `bertbench eval TASK --out DIR`, where a task has some."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert.tasks.gap.scores import Scores as GapScores
    from bert.tasks.gap.scores import Slice
    from bert.tasks.squad.scores import Scores as SquadScores


def draw_scores(task: str, document: Mapping[str, Any], drawn: Any, out: Path) -> list[Path]:
    """Draw the pictures of a task's scores; return their paths.

    Args:
        task: a name in bert.tasks.
        document: of the outcome.
        drawn: likewise (bert.tasks.commands.Outcome).
        out: the folder.
    """
    return _DRAWN[task](document, drawn, out) if task in _DRAWN else []


def _draw_squad(document: Mapping[str, Any], found: "SquadScores", out: Path) -> list[Path]:
    from analysis.render import squad_figures as figures

    analysis, title = found.analysis, Path(document["predictions"]).name
    if analysis is None or not analysis.null_odds:
        return []
    best = [figures.Best("exact match", *analysis.best_exact), figures.Best("F1", *analysis.best_f1)]
    sweep = figures.Sweep(analysis.null_odds, analysis.exact, analysis.f1)
    paths = [
        figures.draw_scores_by_threshold(out / "thresholds.png", sweep, best, title),
        figures.draw_null_odds(
            out / "no_answer_scores.png", analysis.with_answer, analysis.without_answer, best, title
        ),
    ]
    if analysis.curves:
        curves = [
            figures.Curve(name, curve.precisions, curve.recalls, curve.average_precision)
            for name, curve in analysis.curves.items()
        ]
        paths.append(figures.draw_precision_recall(out / "precision_recall.png", curves, title))
    return paths


def _draw_gap(document: Mapping[str, Any], drawn: "tuple[GapScores, Sequence[Slice]]", out: Path) -> list[Path]:
    from analysis.render.gap_figures import Bar, Confusion, draw_gap_scores
    from bert.tasks.gap.commands import slice_name, used_answers
    from bert.tasks.gap.scores import ANSWERS, OVERALL

    scores, parts = drawn
    lines, columns = used_answers(scores)
    confusion = Confusion(
        scores.confusion[lines][:, columns], [ANSWERS[line] for line in lines], [ANSWERS[column] for column in columns]
    )
    bars = [Bar(part.by, slice_name(part), part.rows, part.accuracy) for part in parts]
    names_of_files = [Path(document[name]).name for name in ("dataset", "predictions")]
    facts = f"{scores.rows:,} rows, F1 {scores.tallies[OVERALL].f1:.1f} %"
    return [draw_gap_scores(out / "scores.png", confusion, bars, scores.accuracy, names_of_files, facts)]


_DRAWN: Mapping[str, Callable[[Mapping[str, Any], Any, Path], list[Path]]] = {"squad": _draw_squad, "gap": _draw_gap}
