"""A chart of a page has the values of its Figure, and Vega-Lite takes every specification."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from every_figure import every_figure

from analysis.metrics.speed_of_light import ARITHMETIC, FLOOR, LOSS, NOT_EXPLAINED
from analysis.render.chart import chart
from analysis.render.chart_colours import BACKGROUNDS, COLOURS, contrast, ink_on
from analysis.render.chart_page import MOST_BYTES, ChartsOfPage
from analysis.render.figure import Axis, Bars, Figure, Line, Matrix, Panel, Rule, Series, Text
from analysis.render.run_figures import _spread_ticks, waterfall_figure


def figure(*series: Series, x: Axis = Axis(), y: Axis = Axis()) -> Figure:  # noqa: B008
    return Figure(name="f", title="t", panels=[Panel(series=series, x=x, y=y)])


def panel_of(*series: Series, **axes: Axis) -> Any:
    (panel,) = chart(figure(*series, **axes))["panels"]
    return panel


def test_vega_lite_compiles_every_figure_of_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    for one in every_figure(tmp_path, monkeypatch):
        found = json.loads(json.dumps(chart(one), allow_nan=False))
        for panel in found["panels"]:
            rows = {f"s{place}": [dict(zip(series["data"], row, strict=True))
                                  for row in zip(*series["data"].values(), strict=True)]
                    for place, series in enumerate(panel["series"])}  # fmt: skip
            made = vl_convert.vegalite_to_vega({**panel["spec"], "datasets": rows, "width": 400, "height": 200})
            assert made["marks"] and {scale["name"] for scale in made["scales"]} == {"x", "y"}, one.name
            assert all(math.isfinite(panel[axis][end]) for axis in "xy" for end in ("low", "high")), one.name


def test_values_are_those_of_the_figure_and_what_is_unknown_is_null() -> None:
    line = Line(name="one", x=[1, 2, 4], y=[10.0, math.nan, 30.123456], low=[9, 1, 29], high=[11, 3, 31])
    bars = Bars(name="two", at=[0, 1], begin=[0, 2.5], end=[1, 3.25], labels=["a", ""], across=True)
    cells = Matrix(name="three", values=[[0, 1], [0.5, math.nan]], most=1)
    assert panel_of(line)["series"][0]["data"] == {
        "x": [1, 2, 4], "y": [10, None, 30.12346], "low": [9, 1, 29], "high": [11, 3, 31],
    }  # fmt: skip
    assert panel_of(bars)["series"][0]["data"] == {
        "at": [0, 1], "end": [1, 3.25], "begin": [0, 2.5], "label": ["a", ""],
    }  # fmt: skip
    assert panel_of(cells)["series"][0]["data"]["value"] == [0, 1, 0.5, None]


def test_axes_end_where_the_figure_says_or_as_far_as_its_values_reach() -> None:
    panel = panel_of(Line(name="l", x=[1, 1000], y=[5, 7]), x=Axis(scale="log"), y=Axis(low=0, high=20))
    assert (panel["y"]["low"], panel["y"]["high"]) == (0, 20)
    assert 0 < panel["x"]["low"] < 1 and 1000 < panel["x"]["high"] < 2000
    assert panel_of(Bars(name="b", at=[0], end=[4]))["y"]["low"] == 0, "bars stand on 0"


def test_an_axis_of_whole_numbers_has_no_tick_between_them() -> None:
    vl_convert = pytest.importorskip("vl_convert")
    for last in (2, 3, 7, 40):
        panel = panel_of(Line(name="l", x=[1, last], y=[0.0, 0.0]), x=Axis(whole=True))
        datasets = {"s0": [{"x": 1, "y": 0}, {"x": last, "y": 0}]}
        # The converter has no functions of the page: x shows its numbers as they are, y none.
        spec = json.dumps({**panel["spec"], "datasets": datasets, "width": 300, "height": 200})
        plain = re.sub(r"chartTick\([^)]*\)", "''", re.sub(r"datum\.value % 1[^\"]*", "datum.value", spec))
        shown = re.findall(r">([\d.]+)</text>", vl_convert.vegalite_to_svg(json.loads(plain)))
        assert len(shown) >= 2 and all(float(text).is_integer() for text in shown), (last, shown)


def test_a_series_without_an_entry_is_switched_with_the_one_that_it_belongs_to() -> None:
    own = Line(name="a, batch 8", x=[1], y=[1])
    fitted = Line(name="a, batch 8, fitted", x=[1], y=[1], legend=False)
    (panel,) = (found := chart(figure(own, fitted, Rule(name="100 %", axis="y", at=1))))["panels"]
    assert [key["name"] for key in found["legend"]] == ["a, batch 8"]
    assert [series["group"] for series in panel["series"]] == [0, 0, None]


def test_of_too_many_values_the_extremes_are_kept_and_the_chart_says_how_many_there_were() -> None:
    wave = [math.sin(place / 50) for place in range(20_000)]
    wave[7777], wave[13] = 9.0, -9.0
    found = chart(figure(Line(name="l", x=range(20_000), y=wave)), most=400)
    values = found["panels"][0]["series"][0]["data"]["y"]
    assert found["points"] == 20_000 and found["drawn"] == len(values) <= 402
    assert {9, -9} <= set(values)
    bars = Bars(name="b", at=[0] * 1000, begin=range(1000), end=[place + 0.5 for place in range(999)] + [2000.0])
    assert 2000 in chart(figure(bars), most=100)["panels"][0]["series"][0]["data"]["end"]


@pytest.mark.usefixtures("pictures_of_one_pixel")
def test_a_page_of_large_traces_stays_small(tmp_path: Path) -> None:
    charts = ChartsOfPage(tmp_path)
    for number in range(12):
        line = Line(name="l", x=range(9000), y=[math.sin(place * number) for place in range(9000)])
        charts.add(Figure(name=f"f{number}", title="t", panels=[Panel(series=[line])]))
    script = charts.script()
    assert len(script) < 1_000_000 + MOST_BYTES < 2_000_000


def test_words_from_outside_cannot_end_the_script(tmp_path: Path) -> None:
    charts = ChartsOfPage(tmp_path)
    hostile = "</script><script>alert(1)</script><!--"
    charts.add(figure(Line(name=hostile, x=[1], y=[1]), Text(name="t", x=1, y=1, text=hostile)))
    script = charts.script()
    assert "</script" not in script and "<!--" not in script and "alert(1)" in script


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_seen_on_their_paper_and_words_on_them(scheme: int) -> None:
    paper = ("#ffffff", "#1a222b")[scheme]  # --paper of page.css
    for role, pair in COLOURS.items():
        assert contrast(pair[scheme], paper) >= 3, role
        assert contrast(ink_on(pair[scheme]), pair[scheme]) >= 4.5, role
    ink = ("#1f2933", "#e4e7eb")[scheme]
    assert contrast(ink, BACKGROUNDS["matrix"][scheme]) >= 4.5


def test_ticks_of_close_batch_sizes_leave_room_to_each_other() -> None:
    ticks = _spread_ticks([8, 16, 24, 28, 30, 31, 32, 64], 0.1)
    assert all(math.log2(later / earlier) >= 0.3 for (earlier, _), (later, _) in itertools.pairwise(ticks))
    assert ticks[0] == (8, "8") and ticks[-1] == (64, "64") and _spread_ticks([4, 4], 0.1) == [(4, "4")]


def test_the_bars_of_a_waterfall_have_the_colors_of_their_kinds_and_no_negative_zero() -> None:
    kinds = [(ARITHMETIC, FLOOR, 24.0), ("memory", FLOOR, 17.0), ("attention", LOSS, 20.0), ("optimizer", LOSS, -0.01),
             (NOT_EXPLAINED, LOSS, 9.0), ("measured step", "total", 70.0)]  # fmt: skip
    row = {"implementation": "bertbench", "preset": "mini", "precision": "bf16", "seq_len": 128, "micro_batch_size": 8,
           "world_size": 1, "device": "cuda", "strategy": "single"}  # fmt: skip
    bars = [{"name": name, "kind": kind, "ms": ms, "share": ms / 70} for name, kind, ms in kinds]
    (drawn,) = waterfall_figure({**row, "waterfall": bars}).panels[0].named("step")
    assert isinstance(drawn, Bars)
    assert len(set(drawn.colours)) == 6 and drawn.colours[:2] == ["blue", "sky"]
    assert drawn.labels[3] == "-0.0100 ms, 0.0 %"
