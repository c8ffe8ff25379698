"""Figures of trainings: loss, learning rate and evaluations of one, and comparisons of several."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.comparison.trainings import SCORE, Course
from analysis.render.figure import (
    CYCLE,
    Figure,
    Numbers,
    clock_unit,
    curve,
    legend,
    rule,
    short_label,
    whole_ticks,
)
from analysis.wording import Row
from common.scores import Score, loss_unit, score, scores_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Array = npt.NDArray[np.float64]
Lines = Mapping[str, tuple[Numbers, Numbers]]
Panel = tuple[str, str, Lines, tuple[str, float] | None]

_HELD_OUT = ("vermilion", "orange", "blue", "green")
_DASHES = ("solid", "dashed", "dotted", "dashdot")
# The bold line of the loss is a running median over this share of the steps.
_SMOOTHED_SHARE = 0.02
_FEWEST_SMOOTHED = 100
_MOST_MARKED = 40


def loss_figure(rows: Sequence[Row], evaluations: Sequence[Row], sum_of: str) -> Figure:
    """Return the training loss of every step, a sum of named terms, its running median, and the held-out losses."""
    # Evaluations count applied steps; a step that overflows in fp16 is not applied.
    steps, losses, after = column(rows, "applied_steps"), column(rows, "loss"), column(evaluations, "applied_steps")
    unit, terms = loss_unit(sum_of), f" ({sum_of})" if sum_of else ""
    known = {name: one for name, one in shown_scores(evaluations).items() if one.unit == "nats"}
    held_out = {}
    if "+" in sum_of and len(known) > 1:  # comparable with the training loss
        held_out[f"held-out loss{terms}"] = np.sum([column(evaluations, name) for name in known], axis=0)
    held_out |= {f"held-out {one.label}": column(evaluations, name) for name, one in known.items() if one.headline}

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="step", ylabel=f"loss ({unit})" if unit else "loss")
        whole_ticks(axes)
        curve(axes, steps, losses, f"training loss, every step{terms}", "pale", linewidth=0.8, alpha=0.6, titled=0)
        curve(axes, steps, running_median(losses), "running median", "blue")
        for (label, values), colour in zip(held_out.items(), _HELD_OUT, strict=False):
            curve(axes, after, values, label, colour, marker="o", markersize=4, linewidth=1)
        legend(axes, axes, loc="best")

    caption = "One curve over all attempts: steps repeated after a resume replace the earlier ones."
    return Figure(name="loss", title="Loss", caption=caption, draw=draw)


def learning_rate_figure(rows: Sequence[Row]) -> Figure:
    """Return the learning rate of every step."""
    line = {"learning rate": (column(rows, "applied_steps"), column(rows, "learning_rate"))}
    return lines_figure("learning_rate", "Learning rate", "", [("step", "learning rate", line, None)])


def evaluation_figure(evaluations: Sequence[Row]) -> Figure | None:
    """Return the scores in percent by evaluation; None with fewer than two evaluations."""
    steps, known = column(evaluations, "applied_steps"), shown_scores(evaluations)
    lines = {
        one.label: (steps, (100 if one.unit == "fraction" else 1) * column(evaluations, name))
        for name, one in known.items()
        if one.headline and one.unit in ("fraction", "percent")
    }
    if len(evaluations) < 2 or not lines:
        return None
    chance = ("NSP by chance", 50.0) if "nsp_accuracy" in known else None
    return lines_figure("evaluation", "Held-out scores", "", [("step", "held-out score (%)", lines, chance)])


def column(rows: Sequence[Row], name: str) -> Array:
    """Return one column of rows; unknown values are NaN."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def shown_scores(rows: Sequence[Row]) -> dict[str, Score]:
    """Return the scores of evaluations, in the order of their first appearance."""
    return {name: score(name) for row in rows for name in scores_in(row)}


def running_median(values: Array) -> Array:
    """Return the median over a window around each step, shorter at the ends; robust to single outliers."""
    import pandas as pd

    window = 2 * max(1, round(len(values) * _SMOOTHED_SHARE / 2)) + 1
    return pd.Series(values).rolling(window, center=True, min_periods=1).median().to_numpy()


def trainings_figure(courses: Sequence[Course], target: float | None = None) -> Figure | None:
    """Return the training loss of several trainings by time in the loop, and their first score by time of the steps.

    Args:
        courses: the trainings; None is returned where none made a step.
        target: value of trainings.SCORE to mark.
    """
    drawn = {course.row["folder"]: course for course in courses if len(course.steps)}
    if not drawn:
        return None
    unit, scale = clock_unit(max(float(np.nanmax([0.0, *course.seconds])) for course in drawn.values()))
    losses: dict[str, tuple[Numbers, Numbers]] = {}
    scores: dict[str, tuple[Numbers, Numbers]] = {}
    known = [one["scores"] for course in drawn.values() for one in course.row["readings"]]
    headline = next((name for name, one in shown_scores(known).items() if one.headline), "")
    shown = headline if target is None else SCORE
    for name, course in drawn.items():
        loss, readings = course.loss, course.row["readings"]
        losses[name] = (course.seconds / scale, running_median(loss) if len(loss) >= _FEWEST_SMOOTHED else loss)
        if readings and shown:
            times = column(readings, "step_seconds") / scale
            scores[name] = (times, column([one["scores"] for one in readings], shown))
    time = f"time in the loop, with evaluations and checkpoints ({unit})"
    panels: list[Panel] = [(time, "training loss", losses, None)]
    if scores:
        level = None if target is None else ("target", target)
        panels.append((f"training time ({unit})", f"held-out {score(shown).label}", scores, level))
    return lines_figure("trainings", "Comparison of trainings", "", panels)


def lines_figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure:
    """Return panels of lines: of each the labels of x and y, (x, y) by name, and a level with its name or None."""
    names = list(dict.fromkeys(name for _, _, lines, _ in panels for name in lines))

    def draw(canvas: "Canvas") -> None:
        drawn = [*canvas.subplots(1, len(panels), squeeze=False).flat]
        for axes, (x_label, y_label, lines, level) in zip(drawn, panels, strict=True):
            axes.set(xlabel=x_label, ylabel=y_label)
            if x_label in ("epoch", "run", "step"):
                whole_ticks(axes)
            for line, (x, y) in lines.items():
                again, place = divmod(names.index(line), len(CYCLE))
                curve(
                    axes, x, y, short_label(line), CYCLE[place], linestyle=_DASHES[again % len(_DASHES)],
                    marker="o" if len(x) <= _MOST_MARKED else "", markersize=3.5, linewidth=1.4,
                )  # fmt: skip
            if level is not None:
                rule(axes, "y", level[1], level[0], "grey", label=level[0], linestyle="dashed")
        legend(canvas, *drawn)

    return Figure(name=name, title=title, caption=caption, draw=draw, size=(5.2 * max(1.4, len(panels)), 3.9))
