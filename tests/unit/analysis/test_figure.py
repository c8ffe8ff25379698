"""matplotlib draws each kind of series of a figure at its values."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from analysis.render.figure import (
    Area,
    Axis,
    Band,
    Bars,
    Figure,
    Line,
    Matrix,
    Panel,
    Rule,
    Series,
    Text,
    dodges,
    short_label,
)
from analysis.render.png import draw, drawable_names, write_png

EVERY: dict[str, Series] = {
    "line": Line(name="one", x=[1, 2, 4], y=[10.0, math.nan, 30.0], marker="circle"),
    "area": Area(name="two", x=[1, 4], low=[5, 6], high=[7, 9], opacity=0.2),
    "bars": Bars(name="three", at=[1, 2], begin=[2, 0], end=[5, 3], labels=["a", "b"]),
    "band": Band(name="four", axis="x", low=1, high=2),
    "rule": Rule(name="five", axis="y", at=20, legend=True),
    "text": Text(name="six", x=2, y=10, text="here"),
    "matrix": Matrix(name="seven", values=[[0, 1], [0.5, math.nan]], labels=[["0", "1"], ["½", ""]], most=1, key=True),
}


def figure(*series: Series, x: Axis = Axis(), y: Axis = Axis()) -> Figure:  # noqa: B008
    return Figure(
        name="f", title="t", panels=[Panel(series=series, x=x, y=y, title="panel $x_")], heading="$h_", note="n"
    )


def axes_of(drawn: Figure) -> list[Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=drawn.size, layout="constrained")
    FigureCanvasAgg(canvas)
    return [*draw(drawn, canvas)]


def test_a_figure_needs_neither_matplotlib_nor_torch() -> None:
    code = "import sys, analysis.render.figure; sys.exit(not {'matplotlib', 'numpy', 'torch'}.isdisjoint(sys.modules))"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", [*EVERY])
def test_each_kind_of_series_is_drawn_and_written(kind: str, tmp_path: Path) -> None:
    path = write_png(figure(EVERY[kind]), tmp_path)
    assert path == tmp_path / "f.png" and path.read_bytes().startswith(b"\x89PNG")


def test_a_line_has_its_points_and_its_gap() -> None:
    (axes,) = axes_of(figure(EVERY["line"]))
    (line,) = axes.lines
    assert np.array_equal(line.get_xydata(), [[1, 10], [2, math.nan], [4, 30]], equal_nan=True)


@pytest.mark.parametrize("across", [False, True], ids=["standing", "lying"])
def test_a_bar_reaches_from_its_begin_to_its_end(across: bool) -> None:
    (axes,) = axes_of(figure(Bars(name="b", at=[1, 2], begin=[2, 0], end=[5, 3], thickness=0.5, across=across)))
    boxes = [path.get_extents() for path in axes.collections[0].get_paths()]
    found = [(box.x0, box.x1, box.y0, box.y1) for box in boxes]
    lying = [(2, 5, 0.75, 1.25), (0, 3, 1.75, 2.25)]
    assert found == (lying if across else [(*box[2:], *box[:2]) for box in lying])


def test_an_interval_beyond_the_axis_ends_there_with_an_arrow() -> None:
    far = Line(name="far", x=[1, 2], y=[31.0, 124.0], low=[30.0, -900.0], high=[32.0, 5000.0], dash="none")
    (axes,) = axes_of(figure(far, y=Axis(low=0, high=200)))
    (arrows,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert arrows.get_xydata().tolist() == [[2.0, 200.0]] and axes.get_ylim() == (0, 200)


def test_intervals_within_the_axis_are_drawn_whole_and_have_no_arrow() -> None:
    (axes,) = axes_of(figure(Line(name="l", x=[1], y=[100.0], low=[90.0], high=[120.0]), y=Axis(high=160)))
    (bars,) = axes.containers[0].lines[2]
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([90.0, 120.0])


def test_intervals_that_overlap_at_the_same_place_are_drawn_beside_each_other() -> None:
    def line(name: str, middle: float, x: Sequence[float] = (1, 2)) -> Line:
        low, high = [middle - 5] * len(x), [middle + 5] * len(x)
        return Line(name=name, x=x, y=[middle] * len(x), low=low, high=high)

    rule = Rule(name="rule", axis="y", at=1)
    apart = [line("a", 10), line("b", 30), line("c", 11, (3, 4)), line("d", 50), Line(name="e", x=[1], y=[10])]
    assert dodges(Panel(series=apart)) == [0.0] * 5
    assert dodges(Panel(series=[line("a", 10), rule, line("b", 12)])) == [-3.0, 0.0, 3.0]
    # b overlaps both a and c, which do not overlap each other.
    assert dodges(Panel(series=[line("a", 10), line("c", 26), line("b", 18)])) == [-6.0, 0.0, 6.0]
    many = dodges(Panel(series=[line(str(number), 10) for number in range(10)]))
    assert many == sorted(many) and many[-1] - many[0] == pytest.approx(18)
    drawn = figure(line("a", 10), line("b", 12))
    (axes,) = axes_of(drawn)
    first, second = (one.lines[2][0] for one in axes.containers)
    (left, _), (right, _) = (
        bars.get_transform().transform(bars.get_segments()[0][0]) for bars in (first, second)
    )  # fmt: skip
    assert right - left == pytest.approx(6 / 72 * axes.figure.dpi)
    assert [bars.get_segments()[0][:, 0].tolist() for bars in (first, second)] == [[1, 1], [1, 1]]


def test_axes_say_label_unit_and_ticks_and_categories_are_read_downwards() -> None:
    ticks = [(0.0, "first\nline"), (1.0, "second $")]
    (axes,) = axes_of(
        figure(EVERY["bars"], x=Axis(label="time", unit="ms", scale="log"), y=Axis(ticks=ticks, down=True))
    )
    assert axes.get_xlabel() == "time (ms)" and axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["first\nline", "second $"]
    assert axes.yaxis_inverted()


def test_names_from_outside_are_drawn_whatever_they_are(tmp_path: Path) -> None:
    for name in ("$\\frac{<script>}\x00\u202e", "_hidden", "x" * 5000, "标签 and शब्द"):
        label = short_label(name)
        assert len(label) <= 40 and label.isprintable()
        line = Line(name=label, x=[1], y=[1])
        assert write_png(Figure(name="f", title="", panels=[Panel(series=[line], title=name[:200])]), tmp_path).exists()
    assert drawable_names(["plain", "\U00013000"]) == {"plain": "plain", "\U00013000": "label 2"}


def test_a_long_legend_makes_the_picture_higher_and_takes_nothing_from_the_panel(tmp_path: Path) -> None:
    heights = []
    for count in (2, 20):
        lines = [Line(name=f"implementation {number} with a long name", x=[1], y=[1]) for number in range(count)]
        path = write_png(Figure(name="f", title="t", panels=[Panel(series=lines)], size=(5.2, 3.7)), tmp_path)
        heights.append(int.from_bytes(path.read_bytes()[20:24], "big"))
    assert heights[1] > heights[0] + 170 * 2
