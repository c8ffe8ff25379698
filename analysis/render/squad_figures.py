"""Pictures of SQuAD 2.0: what the no-answer scores of a model are worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.render.drawing import BLUE, GREY, INK, NOTE, ORANGE, STYLE, VERMILION, canvas, save, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 40
_OUTLIERS = 0.5
"""Percent of the scores at either end that may lie beyond the axis."""
_NAMES = {"exact": ("exact match", BLUE), "f1": ("F1", VERMILION), "oracle": ("every answer right", GREY)}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Precision against recall."""

    name: str
    """'exact', 'f1' or 'oracle', what counts as right; another name is shown as it is."""
    precisions: Sequence[float]
    """0 to 1."""
    recalls: Sequence[float]
    """0 to 1, ascending."""
    average_precision: float
    """Area below the steps, in percent."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The scores with each threshold."""

    thresholds: Sequence[float]
    """Ascending; a question whose no-answer score is above the threshold is answered with "no answer"."""
    exact: Sequence[float]
    """Exact match in percent."""
    f1: Sequence[float]
    """F1 in percent."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best of one score."""

    name: str
    """'exact match' or 'F1'."""
    score: float
    """In percent."""
    threshold: float
    """Where."""


def draw_precision_recall(path: Path, curves: Sequence[Curve], title: str = "") -> Path:
    """Draw precision against recall, one curve per way of counting what is right; return `path`.

    Args:
        path: PNG to write.
        curves: at least one.
        title: name of the predictions.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(6.4, 4.4)
        for curve in curves:
            name, colour = _NAMES.get(curve.name, (short_label(curve.name), ORANGE))
            precision, recall = 100 * np.asarray(curve.precisions), 100 * np.asarray(curve.recalls)
            # The area is that below steps which hold a precision from the recall before up to its own.
            dashes = (0, (3, 1.2)) if curve.name == "oracle" else "solid"
            label = f"{name}: {curve.average_precision:.1f} % average precision"
            axis.step(recall, precision, where="pre", color=colour, linewidth=1.8, linestyle=dashes, label=label)
            axis.plot(recall[-1:], precision[-1:], marker="o", markersize=4.5, color=colour, clip_on=False)
        axis.set_xlim(-1.5, 101.5)
        axis.set_ylim(0, 103)
        _percent(axis, "x")
        _percent(axis, "y")
        axis.set_xlabel("recall: right answers of all questions that have one")
        axis.set_ylabel("precision: right answers of all given")
        axis.set_title(_title("Precision and recall", title))
        figure.legend(loc="outside lower left", ncols=1, fontsize=8.5)
        save(figure, path)
    return path


def draw_null_odds(
    path: Path, with_answer: Sequence[float], without_answer: Sequence[float], best: Sequence[Best], title: str = ""
) -> Path:
    """Draw how the no-answer scores of questions with and without an answer are distributed; return `path`.

    Args:
        path: PNG to write.
        with_answer: no-answer scores of questions with an answer; may be empty.
        without_answer: those of questions without one; may be empty, but not both.
        best: thresholds to mark.
        title: name of the predictions.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    low, high = _range(np.asarray([*with_answer, *without_answer], dtype=np.float64))
    edges = np.linspace(low, high, _BINS + 1)
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(6.8, 4.0)
        for name, scores, colour in (("with an answer", with_answer, BLUE), ("without", without_answer, ORANGE)):
            if len(scores):
                # What lies beyond the axis is counted in its first or last bar.
                inside = np.clip(np.asarray(scores, dtype=np.float64), low, high)
                share = 100 * np.histogram(inside, edges)[0] / len(scores)
                label = f"{len(scores):,} questions {name}"
                axis.stairs(share, edges, color=colour, fill=True, alpha=0.35, zorder=1)
                axis.stairs(share, edges, color=colour, linewidth=1.6, label=label, zorder=2)
        axis.set_xlim(low, high)
        axis.set_ylim(0, 1.22 * axis.get_ylim()[1])
        _mark_thresholds(axis, best, low, high)
        _percent(axis, "y")
        axis.grid(axis="x", visible=False)
        beyond = "" if (low, high) == (0.0, 1.0) else "; outermost bars: and beyond"
        axis.set_xlabel(f"no-answer score (higher: none is more likely{beyond})")
        axis.set_ylabel("share of these questions")
        axis.set_title(_title("No-answer scores", title))
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        save(figure, path)
    return path


def draw_scores_by_threshold(path: Path, sweep: Sweep, best: Sequence[Best], title: str = "") -> Path:
    """Draw exact match and F1 against the threshold on the no-answer score, the best ones marked; return `path`.

    Args:
        path: PNG to write.
        sweep: at least one threshold.
        best: what to mark.
        title: name of the predictions.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    low, high = _range(np.asarray(sweep.thresholds, dtype=np.float64))
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(6.8, 4.0)
        for name, values, colour in (("exact match", sweep.exact, BLUE), ("F1", sweep.f1, VERMILION)):
            axis.step(sweep.thresholds, values, where="post", color=colour, linewidth=1.8, label=name)
        axis.set_xlim(low, high)
        inside = _between(sweep, low, high)
        room = max(1.0, 0.06 * float(np.ptp(inside)))
        axis.set_ylim(max(0.0, float(inside.min()) - room), float(inside.max()) + room)
        for one, colour in zip(best, (BLUE, VERMILION), strict=False):
            place = min(max(one.threshold, low), high)
            label = f"best {one.name}: {one.score:.2f} % at {one.threshold:.3g}"
            axis.plot(
                [place],
                [one.score],
                linestyle="none",
                marker="o",
                markersize=7,
                color=colour,
                markeredgecolor="white",
                zorder=3,
                label=label,
            )
        _percent(axis, "y")
        axis.set_xlabel("threshold: a question with a higher no-answer score counts as not answered")
        axis.set_ylabel("score over all questions")
        axis.set_title(_title("Scores by threshold", title))
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        save(figure, path)
    return path


def _title(what: str, name: str) -> str:
    return f"{what}, {short_label(name)}" if name else what


def _range(scores: Floats) -> tuple[float, float]:
    """Ends of the axis: 0 to 1 for probabilities, otherwise where all but the outermost scores are."""
    if scores.min() >= 0 and scores.max() <= 1:
        return 0.0, 1.0
    low, high = (float(end) for end in np.percentile(scores, [_OUTLIERS, 100 - _OUTLIERS]))
    margin = 0.02 * (high - low) or 1.0
    return low - margin, high + margin


def _between(sweep: Sweep, low: float, high: float) -> Floats:
    thresholds = np.asarray(sweep.thresholds, dtype=np.float64)
    inside = (thresholds >= low) & (thresholds <= high)
    if not inside.any():
        inside[:] = True
    found: Floats = np.concatenate([np.asarray(sweep.exact)[inside], np.asarray(sweep.f1)[inside]])
    return found


def _mark_thresholds(axis: "Axes", best: Sequence[Best], low: float, high: float) -> None:
    top = axis.get_ylim()[1]
    thresholds = {one.threshold for one in best if low <= one.threshold <= high}
    for row, threshold in enumerate(sorted(thresholds)):
        names = " and ".join(one.name for one in best if one.threshold == threshold)
        axis.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (3, 2)))
        right = threshold > (low + high) / 2
        axis.annotate(
            f"best {names}: {threshold:.3g}",
            (threshold, top * (0.985 - 0.075 * row)),
            (-4 if right else 4, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top",
            fontsize=8.5,
            color=NOTE,
        )


def _percent(axis: "Axes", which: str) -> None:
    target = axis.xaxis if which == "x" else axis.yaxis
    target.set_major_formatter(lambda value, _: f"{value:g} %")
