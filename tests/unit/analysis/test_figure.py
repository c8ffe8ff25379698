"""Marks of figures: the values that hovering shows, series that the legend switches, colors that follow the page."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.charts import SVG, contrast, svg_of, titles, values

from analysis.render.figure import (
    COLOURS,
    Figure,
    bars,
    cells,
    curve,
    ink_on,
    legend,
    short_label,
)
from analysis.render.task_figures import precision_recall_figure

HOSTILE = "$\\frac{</svg><script>alert(1)</script>}\x00\u202e"


def figure(mark: Callable[[Any], None], **look: Any) -> Figure:
    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        axes.set(xlabel="step", ylabel="time (ms)")
        mark(axes)
        legend(canvas, axes)

    return Figure(name="f", title="title", draw=draw, **look)


def test_hovering_shows_the_values_of_a_line_with_labels_units_and_intervals() -> None:
    points = {"x": [1, 2, 4], "y": [10.0, math.nan, 30.123], "low": [9, 1, 29], "high": [11, 3, math.nan]}
    shown = titles(figure(lambda axes: curve(axes, name="one", colour="blue", **points)))
    assert shown == {"one": [["one", "step: 1.000", "time (ms): 10.00 (9.000–11.00)"],  # noqa: RUF001
                             ["one", "step: 4.000", "time (ms): 30.12 (–)"]]}  # fmt: skip # noqa: RUF001


def test_cells_without_words_show_their_texts() -> None:
    texts = [["1", "2"], ["3", "4"]]
    drawn = figure(lambda axes: cells(axes, np.eye(2), texts, ["a", "b"], ["c", "d"], numbered=False))
    assert [one.text for one in svg_of(drawn).iter(f"{SVG}title")][:2] == ["a\nc\n1", "b\nd\n4"]


def test_every_entry_of_the_legend_switches_a_series_and_words_on_bars_follow_their_color() -> None:
    def mark(axes: Any) -> None:
        curve(axes, [1], [1], short_label(HOSTILE), "blue", marker="o")
        bars(axes, [1], [2], "bars", "vermilion", labels=["50"])

    root = svg_of(figure(mark))
    keys = {one.get("data-key") for one in root.iter() if one.get("data-key")}
    assert keys == {one.get("data-series") for one in root.iter() if one.get("data-series")} != set()
    (word,) = [one for one in root.iter(f"{SVG}text") if one.text == "50"]
    assert word.get("style", "").endswith("fill: var(--on-vermilion)")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_seen_on_their_paper_and_words_on_them(scheme: int) -> None:
    paper = COLOURS["paper"][scheme]
    for role, pair in COLOURS.items():
        if role not in ("paper", "grid"):
            assert contrast(pair[scheme], paper) >= 3, role
            assert contrast(ink_on(role, scheme), pair[scheme]) >= 4.5, role
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS)


def test_curves_are_shown_whatever_their_name() -> None:
    curves = {"exact": ([1.0, 0.5, 0.6], [0.0, 0.1, 0.7], 43.0), "_own": ([1.0], [0.0], 0.0)}
    figure = precision_recall_figure(curves, "$a$_b.json")
    names = ["exact match: 43.0 % average precision", "own: 0.0 % average precision"]
    assert list(titles(figure)) == names
    assert values(figure, names[0], 1) == [0, 10, 70] and values(figure, names[0]) == [100, 50, 60]
