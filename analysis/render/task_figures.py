"""Figures of task data and scores: SQuAD no-answer scores, GAP."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.render.figure import Figure, bars, cells, curve, legend, rule, short_label, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Floats = npt.NDArray[np.float64]


_BINS = 40
_OUTLIERS = 0.5
"""Percent of the scores at either end that may lie beyond the axis."""
_RIGHT = {"exact": ("exact match", "blue"), "f1": ("F1", "vermilion"), "oracle": ("every answer right", "grey")}


def precision_recall_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], float]], title: str = ""
) -> Figure:
    """Return precision by recall: shares of both and average precision in percent, by what counts as right."""

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(title=_titled("Precision and recall", title), xlim=(-1.5, 101.5), ylim=(0, 103))
        axes.set(xlabel="recall: correct answers of all answerable questions (%)")
        axes.set(ylabel="precision: correct answers of all given (%)")
        for kind, (precisions, recalls, average) in curves.items():
            name, colour = _RIGHT.get(kind, (short_label(kind), "orange"))
            # The area is that below steps which hold a precision from the recall before up to its own.
            curve(
                axes, 100 * np.asarray(recalls), 100 * np.asarray(precisions),
                f"{name}: {average:.1f} % average precision", colour, drawstyle="steps-pre",
                linestyle="dashed" if kind == "oracle" else "solid",
            )  # fmt: skip
        legend(canvas, axes)

    return Figure(name="precision_recall", title="Precision and recall", draw=draw, size=(6.4, 4.4))


def null_odds_figure(
    with_answer: Sequence[float], without_answer: Sequence[float], best: Mapping[str, float], title: str = ""
) -> Figure:
    """Return the no-answer scores of questions with and without an answer; one may be empty.

    `best` has the thresholds to mark by the name of the score.
    """
    low, high = _range(np.asarray([*with_answer, *without_answer], dtype=np.float64))
    edges = np.linspace(low, high, _BINS + 1)
    beyond = "" if (low, high) == (0.0, 1.0) else "; outermost bars: and beyond"

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(title=_titled("No-answer scores", title), xlim=(low, high), ylabel="share of these questions (%)")
        axes.set(xlabel=f"no-answer score (higher: no answer is more likely{beyond})")
        tallest = 0.0
        for group, scores, colour in (("with an answer", with_answer, "blue"), ("without", without_answer, "orange")):
            if len(scores):
                # What lies beyond the axis is counted in its first or last bar.
                inside = np.clip(np.asarray(scores, dtype=np.float64), low, high)
                share = 100 * np.histogram(inside, edges)[0] / len(scores)
                tallest = max(tallest, float(share.max()))
                name, width = f"{len(scores):,} questions {group}", float(edges[1] - edges[0])
                bars(axes, (edges[:-1] + edges[1:]) / 2, share, name, colour, thickness=width, across=False, alpha=0.5)
        axes.set_ylim(0, 1.25 * tallest)
        for (kind, threshold), dash in zip(best.items(), ("dashed", "dotted"), strict=False):
            if low <= threshold <= high:
                name = f"best {kind}: {threshold:.3g}"
                rule(axes, "x", threshold, name, "ink", label=name, linestyle=dash)
        legend(canvas, axes)

    return Figure(name="no_answer_scores", title="No-answer scores", draw=draw, size=(6.8, 4.0))


def _titled(what: str, of: str) -> str:
    return f"{what}, {short_label(of)}" if of else what


def _range(scores: Floats) -> tuple[float, float]:
    """Return the limits of the axis: 0 to 1 for probabilities, otherwise without the outermost scores."""
    if scores.min() >= 0 and scores.max() <= 1:
        return 0.0, 1.0
    low, high = (float(end) for end in np.percentile(scores, [_OUTLIERS, 100 - _OUTLIERS]))
    margin = 0.02 * (high - low) or 1.0
    return low - margin, high + margin


Group = tuple[str, str, int, float]
"""Kind of a subset of the rows, its name, its rows, and the accuracy on it, a fraction."""
_GROUPS = ("blue", "green", "orange", "pink", "pale")


def gap_figure(counts: npt.NDArray[np.int64], correct: Sequence[str], given: Sequence[str], groups: Sequence[Group],
               overall: float, heading: str = "") -> Figure:  # fmt: skip
    """Return a confusion matrix, and the accuracy on subsets of the rows.

    Args:
        counts: rows by correct and given answer; at least one line.
        correct: names of the lines.
        given: names of the columns.
        groups: at least one; those of a kind stand next to each other.
        overall: accuracy on all rows, a fraction.
        heading: above both panels.
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    order = list(dict.fromkeys(kind for kind, *_ in groups))
    places = np.arange(len(groups)) + 0.6 * np.array([order.index(kind) for kind, *_ in groups])

    def draw(canvas: "Canvas") -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(1, 1.45))
        canvas.suptitle(heading, x=0.01, ha="left", fontsize=11)
        left.set(title="correct and given answers", xlabel="given answer", ylabel="correct answer")
        texts = [[f"{count:,}\n{100 * share:.0f} %" for count, share in zip(*row, strict=True)]
                 for row in zip(counts.tolist(), shares.tolist(), strict=True)]  # fmt: skip
        cells(left, shares, texts, correct, given)
        right.set(title=f"accuracy, all rows {100 * overall:.1f} %", xlabel="accuracy (%)", xlim=(0, 112))
        right.set_yticks(places, [f"{name} ({rows:,})" for _, name, rows, _ in groups])
        right.set_ylim(places[-1] + 0.6, -0.6)
        right.grid(axis="y", visible=False)
        rule(right, "x", 100 * overall, "all rows", "ink")
        roles = [_GROUPS[order.index(kind) % len(_GROUPS)] for kind, *_ in groups]
        bars(right, places, [100 * accuracy for *_, accuracy in groups], "accuracy", roles, thickness=0.75)
        for place, (*_, accuracy) in zip(places, groups, strict=True):
            words(right, (112, place), f"{100 * accuracy:.1f}", ha="right", va="center")

    return Figure(name="scores", title="GAP scores", draw=draw, size=(9.6, 4.0))
