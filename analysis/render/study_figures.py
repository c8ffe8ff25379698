"""Figures of a study of hyper-parameters."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.render.figure import (
    Figure,
    bars,
    categories,
    curve,
    grid,
    legend,
    logarithmic,
    rule,
    short_label,
    whole_ticks,
)
from analysis.render.search_tables import value_text
from common.scores import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Row = Mapping[str, Any]

_MOST_PANELS = 9
_COLUMNS = 3
_MOST_CHOICES = 12
_LONGEST_CHOICE = 18
_POINTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "alpha": 0.85, "markersize": 5}


def tune_figures(study: Row) -> list[Figure]:
    """Return the figures of a study.

    Args:
        study: tune.json, as bench.tune.document makes it.
    """
    shown = []
    if any(row["value"] is not None for row in study["trials"]):
        shown.append(_history(study))
    if study["importance"]["shares"]:
        shown.append(_importance(study))
    if _of_state(study, "complete"):
        shown.append(_parameters(study))
    if any(len(row["readings"]) > 1 for row in study["trials"] if row["state"] != "failed"):
        shown.append(_courses(study))
    return shown


def _of_state(study: Row, state: str) -> list[Row]:
    return [row for row in study["trials"] if row["state"] == state and row["value"] is not None]


def _values(study: Row, values: Sequence[float]) -> list[float]:
    scale = 100 if score(study["objective"]["name"]).unit == "fraction" else 1
    return [scale * value for value in values]


def _objective(axes: "Axes", study: Row, rows: Sequence[Row] = ()) -> None:
    """Make y the axis of the objective; with `rows`, a few much worse results do not flatten the others."""
    unit = {"nats": " (nats)", "fraction": " (%)", "percent": " (%)"}.get(score(study["objective"]["name"]).unit, "")
    axes.set_ylabel(f"{short_label(study['objective']['label'])}{unit}")
    values = _values(study, [row["value"] for row in rows])
    ends = robust_limits(values, study["objective"]["maximize"]) if values else None
    if ends:
        beyond = sum(not ends[0] <= value <= ends[1] for value in values)
        axes.set(ylim=ends, title=f"outside the axis: {wording.counted(beyond, 'much worse result')}")


def robust_limits(values: Sequence[float], maximize: bool) -> tuple[float, float] | None:
    """Return the ends of an axis that leaves out much worse results but never better ones; None if all fit."""
    sign = 1.0 if maximize else -1.0
    goodness = sign * np.array(values)
    low, median, high = np.percentile(goodness, (25, 50, 75))
    reach = max(3 * (high - low), 1.5 * (goodness.max() - median))
    inside = goodness[goodness >= median - reach]
    if not reach > 0 or len(inside) == len(goodness):
        return None
    space = 0.08 * (inside.max() - inside.min())
    first, last = sorted((sign * (inside.min() - space), sign * (inside.max() + space)))
    return float(first), float(last)


def _history(study: Row) -> Figure:
    complete, pruned = _of_state(study, "complete"), _of_state(study, "pruned")

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("trial")
        whole_ticks(axes)
        _objective(axes, study, [*complete, *pruned])
        for row in study["trials"]:
            if row["state"] == "failed":
                rule(axes, "x", row["number"], "failed", "orange", label="failed", linestyle="dotted")
        for rows, name, colour, marker in ((complete, "complete", "blue", "o"),
                                           (pruned, "pruned (last reading)", "grey", "x")):  # fmt: skip
            if rows:
                x, y = [row["number"] for row in rows], _values(study, [row["value"] for row in rows])
                curve(axes, x, y, name, colour, **{**_POINTS, "marker": marker})
        if complete:
            end = max(row["number"] for row in study["trials"])
            better = np.maximum if study["objective"]["maximize"] else np.minimum
            best = better.accumulate(_values(study, [row["value"] for row in complete]))
            x = [*(row["number"] for row in complete), end]
            curve(axes, x, [*best, best[-1]], "best so far", "vermilion", drawstyle="steps-post")
        legend(canvas, axes)

    better = "Higher" if study["objective"]["maximize"] else "Lower"
    caption = f"Result of each trial and the best result so far. {better} is better."
    return Figure(name="history", title="Objective by trial", caption=caption, draw=draw)


def _importance(study: Row) -> Figure:
    shares = dict(list(study["importance"]["shares"].items())[:_MOST_CHOICES])

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="share of the variation (%)", xlim=(0, 120 * max(shares.values()) or 1.0))
        categories(axes, [name.replace("_", " ") for name in shares])
        texts = [wording.percent(share) for share in shares.values()]
        bars(axes, range(len(shares)), [100 * share for share in shares.values()], "importance", "blue", labels=texts)

    caption = (
        f"Share of the variation between {len(_of_state(study, 'complete'))} complete trials that each option "
        f"explains, by Optuna's {study['importance']['evaluator']}."
    )
    size = (5.2, 1.0 + 0.42 * len(shares))
    return Figure(name="importance", title="Parameter importance", caption=caption, draw=draw, size=size, half=True)


def _parameters(study: Row) -> Figure:
    names = (list(study["importance"]["shares"]) or list(study["space"]))[:_MOST_PANELS]
    columns = min(_COLUMNS, len(names))

    def draw(canvas: "Canvas") -> None:
        for place, (axes, name) in enumerate(zip(grid(canvas, len(names), columns), names, strict=True)):
            _draw_parameter(axes, study, name)
            axes.set_ylabel(axes.get_ylabel() if place % columns == 0 else "")

    return Figure(
        name="parameters", title="Objective by parameter", draw=draw, half=columns == 1,
        caption="Each point is a complete trial; the best is red. More values are tried where results are good.",
        size=(10.6 if columns > 1 else 5.2, 3.0 * math.ceil(len(names) / columns)),
    )  # fmt: skip


def _draw_parameter(axes: "Axes", study: Row, name: str) -> None:
    complete = [row for row in _of_state(study, "complete") if name in row["values"]]
    text = str(study["space"][name])
    axes.set_xlabel(short_label(name.replace("_", " ")))
    _objective(axes, study, complete)
    if ":" in text and all(isinstance(row["values"][name], int | float) for row in complete):
        places: list[Any] = [row["values"][name] for row in complete]
        if text.startswith("log:"):
            low, high = (float(part) for part in text.removeprefix("log:").split(":"))
            logarithmic(axes, "x", "{:g}".format)
            axes.set_xlim(low / 1.1, high * 1.1)
    else:  # choices side by side, in their order
        choices = text.split(",")
        order = {choice: place for place, choice in enumerate(choices)}
        values = [row["values"][name] for row in complete]
        texts = [repr(value) if isinstance(value, float) else value_text(value) for value in values]
        places = [order.get(one, len(order)) for one in texts]
        shown = choice_labels(choices)
        steep = max(map(len, shown)) * len(shown) > 2 * _LONGEST_CHOICE
        axes.set_xlim(-0.5, len(choices) - 0.5)
        axes.set_xticks(range(len(choices)), shown, rotation=90 if steep else 0)
    results = _values(study, [row["value"] for row in complete])
    curve(axes, places, results, "complete", "blue", **_POINTS)
    best = (study["best"] or {}).get("number")
    for place, result, row in zip(places, results, complete, strict=True):
        if row["number"] == best:
            curve(axes, [place], [result], "best", "vermilion", marker="o", markersize=6.6)


def choice_labels(choices: Sequence[str]) -> list[str]:
    """Return distinct short labels: the last part of a path, with its position if two would be equal."""
    ends = [choice.rstrip("/").rsplit("/", 1)[-1] for choice in choices]
    labels = ends if len(set(ends)) == len(ends) else list(choices)
    labels = [short_label(one if len(one) <= _LONGEST_CHOICE else f"…{one[1 - _LONGEST_CHOICE :]}") for one in labels]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{place}: {label}" for place, label in enumerate(labels, start=1)]


def _courses(study: Row) -> Figure:
    best = (study["best"] or {}).get("number")
    rows = [row for row in study["trials"] if row["readings"] and row["state"] != "failed"]
    rows.sort(key=lambda row: row["number"] == best)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("tenth of the run" if study["objective"]["name"] == "loss" else "evaluation")
        whole_ticks(axes)
        _objective(axes, study)
        for row in rows:
            name = "best" if row["number"] == best else str(row["state"])
            colour = {"best": "vermilion", "complete": "blue", "pruned": "grey"}.get(name, "pale")
            numbers, values = zip(*row["readings"], strict=True)
            curve(
                axes, [number + 1 for number in numbers], _values(study, values), name, colour, marker="o",
                markersize=3, linewidth=2.2 if name == "best" else 1, alpha=1 if name == "best" else 0.55,
            )  # fmt: skip
        legend(canvas, axes)

    caption = "One line per trial; pruned trials are gray."
    return Figure(name="courses", title="Readings during training", caption=caption, draw=draw)
