"""Figures of task data and scores: SQuAD no-answer scores, GAP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.render.figure import (
    Axis,
    Bars,
    Dash,
    Figure,
    Line,
    Matrix,
    Panel,
    Rule,
    Series,
    Text,
    short_label,
)

Floats = npt.NDArray[np.float64]


def _outline(
    name: str, edges: npt.NDArray[np.generic], shares: Floats, *, colour: str, dash: Dash = "solid"
) -> Line:  # fmt: skip
    """Return the outline of a histogram, down to 0 at both ends."""
    return Line(
        name=name, x=[edges[0], *edges], y=[0.0, *shares, 0.0], colour=colour, dash=dash, step="after"
    )  # fmt: skip


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
    """The threshold with that score."""


_BINS = 40
_OUTLIERS = 0.5
"""Percent of the scores at either end that may lie beyond the axis."""
_RIGHT = {"exact": ("exact match", "blue"), "f1": ("F1", "vermilion"), "oracle": ("every answer right", "grey")}


def precision_recall_figure(curves: Sequence[Curve], title: str = "") -> Figure:
    """Return precision by recall, one curve per way of counting correct answers.

    Args:
        curves: at least one.
        title: name of the predictions.
    """
    series: list[Series] = []
    for curve in curves:
        name, colour = _RIGHT.get(curve.name, (short_label(curve.name), "orange"))
        precision, recall = 100 * np.asarray(curve.precisions), 100 * np.asarray(curve.recalls)
        label = f"{name}: {curve.average_precision:.1f} % average precision"
        # The area is that below steps which hold a precision from the recall before up to its own.
        dash: Dash = "dashed" if curve.name == "oracle" else "solid"
        series.append(Line(name=label, x=recall, y=precision, colour=colour, dash=dash, step="before"))
        series.append(
            Line(name=label, x=recall[-1:], y=precision[-1:], colour=colour, dash="none", marker="circle", size=4.5,
                 beyond=True, legend=False)
        )  # fmt: skip
    return _of_one_panel(
        "precision_recall",
        "Precision and recall",
        title,
        x=Axis(label="recall: correct answers of all answerable questions", form="percent", low=-1.5, high=101.5),
        y=Axis(label="precision: correct answers of all given", form="percent", low=0, high=103),
        series=series,
        size=(6.4, 4.4),
        legend="below",
        legend_columns=1,
    )


def null_odds_figure(
    with_answer: Sequence[float], without_answer: Sequence[float], best: Sequence[Best], title: str = ""
) -> Figure:
    """Return the distributions of no-answer scores of questions with and without an answer.

    Args:
        with_answer: no-answer scores of questions with an answer; may be empty.
        without_answer: those of questions without one; may be empty, but not both.
        best: thresholds to mark.
        title: name of the predictions.
    """
    low, high = _range(np.asarray([*with_answer, *without_answer], dtype=np.float64))
    edges = np.linspace(low, high, _BINS + 1)
    series: list[Series] = []
    tallest = 0.0
    for group, scores, colour in (("with an answer", with_answer, "blue"), ("without", without_answer, "orange")):
        if len(scores):
            # What lies beyond the axis is counted in its first or last bar.
            inside = np.clip(np.asarray(scores, dtype=np.float64), low, high)
            share = 100 * np.histogram(inside, edges)[0] / len(scores)
            tallest = max(tallest, float(share.max()))
            name = f"{len(scores):,} questions {group}"
            series.append(
                Bars(name=name, colour=colour, opacity=0.35, at=(edges[:-1] + edges[1:]) / 2, end=share,
                     thickness=float(edges[1] - edges[0]), legend=False)
            )  # fmt: skip
            series.append(_outline(name, edges, share, colour=colour))
    beyond = "" if (low, high) == (0.0, 1.0) else "; outermost bars: and beyond"
    return _of_one_panel(
        "no_answer_scores",
        "No-answer scores",
        title,
        x=Axis(label=f"no-answer score (higher: no answer is more likely{beyond})", low=low, high=high, grid=False),
        y=Axis(label="share of these questions", form="percent", low=0, high=1.25 * tallest),
        series=[*series, *_thresholds(best, low, high, 1.25 * tallest)],
        size=(6.8, 4.0),
        legend="below",
    )


def _thresholds(best: Sequence[Best], low: float, high: float, top: float) -> list[Series]:
    found: list[Series] = []
    thresholds = {one.threshold for one in best if low <= one.threshold <= high}
    for row, threshold in enumerate(sorted(thresholds)):
        names = " and ".join(one.name for one in best if one.threshold == threshold)
        left, words = threshold <= (low + high) / 2, f"best {names}: {threshold:.3g}"
        found.append(Rule(name=f"best {names}", axis="x", at=threshold, colour="ink", dash="dashed"))
        found.append(
            Text(name=f"best {names}", x=threshold, y=top * (0.985 - 0.075 * row), colour="note", upright="top",
                 text=words, shift=(4 if left else -4, 0), align="left" if left else "right")
        )  # fmt: skip
    return found


def thresholds_figure(sweep: Sweep, best: Sequence[Best], title: str = "") -> Figure:
    """Return exact match and F1 by no-answer threshold, with the best ones marked.

    Args:
        sweep: at least one threshold.
        best: what to mark.
        title: name of the predictions.
    """
    thresholds = np.asarray(sweep.thresholds, dtype=np.float64)
    low, high = _range(thresholds)
    inside = (thresholds >= low) & (thresholds <= high)
    if not inside.any():
        inside[:] = True
    scores = np.concatenate([np.asarray(sweep.exact)[inside], np.asarray(sweep.f1)[inside]])
    room = max(1.0, 0.06 * float(np.ptp(scores)))
    series: list[Series] = [
        Line(name=name, x=thresholds, y=values, colour=colour, step="after")
        for name, values, colour in (("exact match", sweep.exact, "blue"), ("F1", sweep.f1, "vermilion"))
    ]
    for one, colour in zip(best, ("blue", "vermilion"), strict=False):
        series.append(
            Line(name=f"best {one.name}: {one.score:.2f} % at {one.threshold:.3g}",
                 x=[min(max(one.threshold, low), high)], y=[one.score], colour=colour, dash="none", marker="circle",
                 size=7, beyond=True)
        )  # fmt: skip
    return _of_one_panel(
        "thresholds",
        "Scores by threshold",
        title,
        x=Axis(label="threshold: questions with a higher no-answer score count as unanswered", low=low,
               high=high),
        y=Axis(label="score over all questions", form="percent", low=max(0.0, float(scores.min()) - room),
               high=float(scores.max()) + room),
        series=series,
        size=(6.8, 4.0),
        legend="below",
        legend_columns=2,
    )  # fmt: skip


def _of_one_panel(
    name: str, what: str, of: str, *, x: Axis, y: Axis, series: Sequence[Series], **options: Any
) -> Figure:
    """Return a figure of one panel, whose title names the predictions where `of` does; options are those of Figure."""
    title = f"{what}, {short_label(of)}" if of else what
    return Figure(name=name, title=what, panels=[Panel(title=title, x=x, y=y, series=series)], **options)


def _range(scores: Floats) -> tuple[float, float]:
    """Return the limits of the axis: 0 to 1 for probabilities, otherwise without the outermost scores."""
    if scores.min() >= 0 and scores.max() <= 1:
        return 0.0, 1.0
    low, high = (float(end) for end in np.percentile(scores, [_OUTLIERS, 100 - _OUTLIERS]))
    margin = 0.02 * (high - low) or 1.0
    return low - margin, high + margin


@dataclass(frozen=True, slots=True)
class Confusion:
    """Rows by correct and given answer."""

    counts: npt.NDArray[np.int64]
    """[right, answered]."""
    right: Sequence[str]
    answered: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupAccuracy:
    """The accuracy on a subset of the rows."""

    group: str
    name: str
    rows: int
    accuracy: float
    """A fraction."""


_GROUPS = ("blue", "green", "orange", "pink", "pale")


def gap_figure(
    confusion: Confusion, groups: Sequence[GroupAccuracy], overall: float, names: Sequence[str] = (), facts: str = ""
) -> Figure:
    """Return a confusion matrix, and the accuracy on subsets of the rows.

    Args:
        confusion: at least one line.
        groups: at least one; those of a group stand next to each other.
        overall: accuracy on all rows, a fraction.
        names: of the dataset and the predictions, for the heading.
        facts: what else the heading says.
    """
    shares = confusion.counts / np.maximum(confusion.counts.sum(1, keepdims=True), 1)
    cells = [
        [f"{count:,}\n{100 * share:.0f} %" for count, share in zip(*row, strict=True)]
        for row in zip(confusion.counts.tolist(), shares.tolist(), strict=True)
    ]
    matrix = Matrix(name="confusion", values=shares, labels=cells, most=1, form="percent")
    return Figure(
        name="scores",
        title="GAP scores",
        heading=", ".join(filter(None, [*map(short_label, names), facts])),
        panels=[
            Panel(
                title="correct and given answers",
                x=Axis(label="given answer", ticks=[*enumerate(confusion.answered)]),
                y=Axis(label="correct answer", ticks=[*enumerate(confusion.right)]),
                series=[matrix],
            ),
            _accuracies(groups, overall),
        ],
        columns=2,
        widths=(1, 1.45),
        size=(9.6, 4.0),
        legend="",
    )


def _accuracies(groups: Sequence[GroupAccuracy], overall: float) -> Panel:
    order = list(dict.fromkeys(one.group for one in groups))
    places, place, group = [], 0.0, None
    for one in groups:
        place += 1.6 if group not in (None, one.group) else 1.0
        group = one.group
        places.append(place)
    ticks = [(at, f"{one.name} ({one.rows:,})") for at, one in zip(places, groups, strict=True)]
    bars = Bars(
        name="accuracy", at=places, end=[100 * one.accuracy for one in groups], thickness=0.75, across=True,
        colours=[_GROUPS[order.index(one.group) % len(_GROUPS)] for one in groups],
        # At the edge, where no bar and not the line of all rows cross them.
        labels=[f"{100 * one.accuracy:.1f}" for one in groups], place="edge",
    )  # fmt: skip
    return Panel(
        title=f"accuracy, %; all rows {100 * overall:.1f}",
        x=Axis(low=0, high=112),
        y=Axis(ticks=ticks, low=places[0] - 0.6, high=places[-1] + 0.6, down=True, grid=False),
        series=[bars, Rule(name="all rows", axis="x", at=100 * overall, colour="ink", dash="dashed", width=1.2)],
    )
