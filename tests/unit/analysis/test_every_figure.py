"""Every figure of the suite is JSON, and on paper none of its words is cut off or lies on another."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from every_figure import every_figure
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from support.examples import DRAWS_ALL

from analysis.render import png
from analysis.render.chart import chart
from analysis.render.figure import COLOURS, Figure


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    with pytest.MonkeyPatch.context() as patch:
        return every_figure(tmp_path_factory.mktemp("figures"), patch)


@pytest.mark.more
@pytest.mark.filterwarnings("error")
def test_every_figure_is_json_and_is_written(figures: list[Figure], tmp_path: Path) -> None:
    """Every seventh is written in `make test`, which draws all of them below."""
    for number, figure in enumerate(figures):
        assert json.loads(json.dumps(chart(figure), allow_nan=False))["panels"], figure.name
        roles = {one.colour for panel in figure.panels for one in panel.series}
        assert roles <= set(COLOURS), figure.name
        if DRAWS_ALL or number % 7 == 0:
            assert png.write_png(figure, tmp_path).read_bytes().startswith(b"\x89PNG"), figure.name


def test_no_word_of_a_figure_is_cut_off_or_lies_on_another(figures: list[Figure]) -> None:
    found = {figure.name: wrong_on_paper(figure) for figure in figures}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def wrong_on_paper(figure: Figure) -> list[str]:
    with rc_context(png._STYLE):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        FigureCanvasAgg(canvas)
        png.draw(figure, canvas)
        canvas.draw_without_rendering()
    paper = canvas.bbox.padded(1)
    boxes = {}
    for text in set(canvas.findobj(Text)) - ticks_outside(canvas):
        words = text.get_text().strip()
        box = text.get_window_extent()
        if words and text.get_visible() and box.width:
            boxes[text] = Bbox.from_extents(*box.extents)
    cut = [text.get_text() for text, box in boxes.items() if not all(paper.contains(*point) for point in box.corners())]
    steep = {text for text in boxes if text.get_rotation() % 90}
    crossed = [
        f"{one.get_text()!r} x {other.get_text()!r}"
        for one, other in combinations(set(boxes) - steep, 2)
        if boxes[one].padded(-1.5).overlaps(boxes[other].padded(-1.5))
    ]
    return [f"cut: {words!r}" for words in cut] + crossed


def ticks_outside(canvas: Canvas) -> set[Text]:
    """Labels of ticks beyond the ends of their axis, which are not drawn."""
    found = set()
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = 1e-9 * (high - low)
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                found |= set() if low - room <= tick.get_loc() <= high + room else {tick.label1, tick.label2}
    return found
