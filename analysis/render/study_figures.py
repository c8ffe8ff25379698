"""Figures of a study of hyper-parameters."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis import wording
from analysis.render.figure import Axis, Bars, Figure, Line, Panel, Rule, Series, categories, short_label
from analysis.render.search_tables import value_text
from common.scores import score

Row = Mapping[str, Any]


_MOST_PANELS = 9


_COLUMNS = 3


_MOST_CHOICES = 12


_LONGEST_CHOICE = 18


def tune_figures(found: Row) -> list[Figure]:
    """Return the figures of a study.

    Args:
        found: tune.json, as bench.tune.document makes it.
    """
    shown = []
    if any(row["value"] is not None for row in found["trials"]):
        shown.append(_history(found))
    if found["importance"]["shares"]:
        shown.append(_importance(found))
    if _of_state(found, "complete"):
        shown.append(_parameters(found))
    if any(len(row["readings"]) > 1 for row in found["trials"] if row["state"] != "failed"):
        shown.append(_courses(found))
    return shown


def _of_state(found: Row, state: str) -> list[Row]:
    return [row for row in found["trials"] if row["state"] == state and row["value"] is not None]


def _scaled(found: Row, value: float) -> float:
    return 100 * value if score(found["objective"]["name"]).unit == "fraction" else value


def _values(found: Row, rows: Sequence[Row]) -> list[float]:
    return [_scaled(found, row["value"]) for row in rows]


def _objective(found: Row, rows: Sequence[Row] | None = None) -> Axis:
    """Return the axis of the objective; with `rows`, a few much worse results do not flatten the others."""
    unit = {"nats": "nats", "fraction": "%", "percent": "%"}.get(score(found["objective"]["name"]).unit, "")
    ends = None if rows is None else robust_limits(_values(found, rows), found["objective"]["maximize"])
    low, high = ends or (None, None)
    return Axis(label=short_label(found["objective"]["label"]), unit=unit, low=low, high=high)


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


def _left_out(found: Row, rows: Sequence[Row], axis: Axis) -> str:
    low = -math.inf if axis.low is None else axis.low
    high = math.inf if axis.high is None else axis.high
    beyond = sum(not low <= value <= high for value in _values(found, rows))
    return f"outside the axis: {beyond} much worse result{'s'[: beyond > 1]}" if beyond else ""


def _history(found: Row) -> Figure:
    complete, pruned = _of_state(found, "complete"), _of_state(found, "pruned")
    failed = [row["number"] for row in found["trials"] if row["state"] == "failed"]
    series: list[Series] = [
        Rule(name="failed", axis="x", at=number, colour="orange", dash="dotted", legend=True) for number in failed
    ]
    if pruned:
        series.append(
            Line(name="pruned (last reading)", x=[row["number"] for row in pruned], y=_values(found, pruned),
                 colour="grey", dash="none", marker="cross", size=5.5)
        )  # fmt: skip
    if complete:
        numbers = [row["number"] for row in complete]
        series.insert(0, _points(numbers, _values(found, complete)))
        end = max(row["number"] for row in found["trials"])
        best = (np.maximum if found["objective"]["maximize"] else np.minimum).accumulate(_values(found, complete))
        series.append(
            Line(name="best so far", x=[*numbers, end], y=[*best, best[-1]], colour="vermilion", step="after")
        )
    axis = _objective(found, [*complete, *pruned])
    better = "Higher" if found["objective"]["maximize"] else "Lower"
    return Figure(
        name="history",
        title="Objective by trial",
        caption=f"Result of each trial and the best result so far. {better} is better.",
        panels=[
            Panel(
                title=_left_out(found, [*complete, *pruned], axis),
                x=Axis(label="trial", whole=True, grid=False),
                y=axis,
                series=series,
            )
        ],
    )


def _points(x: Sequence[float], y: Sequence[float]) -> Line:
    return Line(name="complete", x=x, y=y, opacity=0.85, dash="none", marker="circle")


def _importance(found: Row) -> Figure:
    shares = dict(list(found["importance"]["shares"].items())[:_MOST_CHOICES])
    bars = Bars(
        name="importance",
        at=range(len(shares)),
        end=[100 * share for share in shares.values()],
        thickness=0.6,
        across=True,
        labels=[wording.percent(share) for share in shares.values()],
        place="end",
    )
    complete = len(_of_state(found, "complete"))
    return Figure(
        name="importance",
        title="Parameter importance",
        caption=f"Share of the variation between {complete} complete trials that each option explains, by Optuna's "
        f"{found['importance']['evaluator']}.",
        panels=[
            Panel(
                x=Axis(label="share of the variation", unit="%", low=0, high=120 * max(shares.values()) or 1.0),
                y=categories([short_label(name.replace("_", " ")) for name in shares]),
                series=[bars],
            )
        ],
        size=(5.2, 1.0 + 0.42 * len(shares)),
        legend="",
        half=True,
    )


def _parameters(found: Row) -> Figure:
    names = list(found["importance"]["shares"]) or list(found["space"])
    names = names[:_MOST_PANELS]
    columns = min(_COLUMNS, len(names))
    return Figure(
        name="parameters",
        title="Objective by parameter",
        caption="Each point is a complete trial; the best one is red. The sampler tries more values where results are "
        "good.",
        panels=[_against(found, name, labelled=place % columns == 0) for place, name in enumerate(names)],
        columns=columns,
        size=(10.6 if columns > 1 else 5.2, 3.0 * math.ceil(len(names) / columns)),
        legend="",
        half=columns == 1,
    )


def _against(found: Row, name: str, *, labelled: bool) -> Panel:
    complete = [row for row in _of_state(found, "complete") if name in row["values"]]
    text, label = str(found["space"][name]), short_label(name.replace("_", " "))
    if ":" in text and all(isinstance(row["values"][name], int | float) for row in complete):
        places: list[Any] = [row["values"][name] for row in complete]
        axis = _log_axis(label, text) if text.startswith("log:") else Axis(label=label)
    else:  # choices side by side, in their order
        labels = text.split(",")
        order = {choice: place for place, choice in enumerate(labels)}
        places = [order.get(_as_given(row["values"][name]), len(order)) for row in complete]
        shown = choice_labels(labels)
        axis = Axis(label=label, ticks=[*enumerate(shown)], low=-0.5, high=len(labels) - 0.5,
                    steep=max(map(len, shown)) * len(shown) > _LONGEST_CHOICE * 2)  # fmt: skip
    series = [_points(places, _values(found, complete))]
    best = (found["best"] or {}).get("number")
    own = [(place, row) for row, place in zip(complete, places, strict=True) if row["number"] == best]
    if own:
        series.append(
            Line(name="best", x=[place for place, _ in own], y=_values(found, [row for _, row in own]),
                 colour="vermilion", dash="none", marker="circle", size=6.6)
        )  # fmt: skip
    y = _objective(found, complete)
    title = _left_out(found, complete, y)
    return Panel(title=title, x=axis, y=y if labelled else Axis(low=y.low, high=y.high), series=series)


def _log_axis(label: str, text: str) -> Axis:
    low, high = (float(part) for part in text.removeprefix("log:").split(":"))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high / low > 200 else (1, 2, 5) if high / low <= 20 else (1, 3)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    shown = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)] or [low, high]
    return Axis(
        label=label, scale="log", low=low / 1.1, high=high * 1.1, ticks=[(tick, f"{tick:.3g}") for tick in shown]
    )  # fmt: skip


def _as_given(value: Any) -> str:
    return repr(value) if isinstance(value, float) else value_text(value)


def choice_labels(choices: Sequence[str]) -> list[str]:
    """Return distinct short labels: the last part of a path, with its position if two would be equal."""
    ends = [choice.rstrip("/").rsplit("/", 1)[-1] for choice in choices]
    told = ends if len(set(ends)) == len(ends) else list(choices)
    told = [
        short_label(label if len(label) <= _LONGEST_CHOICE else f"…{label[1 - _LONGEST_CHOICE :]}") for label in told
    ]
    return told if len(set(told)) == len(told) else [f"{place}: {label}" for place, label in enumerate(told, start=1)]


def _courses(found: Row) -> Figure:
    best = (found["best"] or {}).get("number")
    colours = {"complete": "blue", "pruned": "grey"}
    series = []
    for row in sorted(found["trials"], key=lambda row: row["number"] == best):
        if not row["readings"] or row["state"] == "failed":
            continue
        is_best = row["number"] == best
        numbers, values = zip(*row["readings"], strict=True)
        series.append(
            Line(
                name="best" if is_best else row["state"],
                x=[number + 1 for number in numbers],
                y=[_scaled(found, value) for value in values],
                colour="vermilion" if is_best else colours.get(row["state"], "pale"),
                marker="circle",
                size=3,
                width=2.2 if is_best else 1,
                opacity=1 if is_best else 0.55,
                legend=is_best or row["state"] in colours,
            )
        )
    return Figure(
        name="courses",
        title="Readings during training",
        caption="One line per trial; pruned trials are gray.",
        panels=[
            Panel(
                x=Axis(label="tenth of the run" if found["objective"]["name"] == "loss" else "evaluation", whole=True),
                y=_objective(found),
                series=series,
            )
        ],
    )
