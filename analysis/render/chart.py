"""A `Figure` as charts of a page: for each panel a Vega-Lite specification, and the values that hover and tables read.

`chart` returns JSON values. A panel's series keep their values in columns, once: `chart.js` makes the datasets of the
specification ("s0", "s1", ...) of them, finds the value under the pointer in them and lists them in a table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.render.chart_colours import css_colour, css_ink
from analysis.render.figure import Area, Axis, Band, Bars, Figure, Line, Matrix, Panel, Rule, Series, Text

Json = dict[str, Any]
Columns = dict[str, list[Any]]

MOST_POINTS = 4000
"""Values of one figure that a page holds."""
_LEAST_POINTS = 40
"""Values that each series keeps however many the others have."""
_PIXELS_PER_INCH = 100
_PIXELS_PER_POINT = 4 / 3
_AROUND_INCHES = 0.95
"""Of a row of panels on paper, what title, numbers and label of the axis take."""
_LEAST_HEIGHT = 56
_MARGIN = 0.05
"""Of the range of the values, left free at either end of an axis that says no ends."""
_DASHES: Mapping[str, list[float]] = {"dashed": [6, 4], "dotted": [2, 3], "dashdot": [8, 3, 2, 3]}
_MARKERS: Mapping[str, str] = {
    "circle": "circle", "square": "square", "triangle": "triangle-up", "diamond": "diamond", "down": "triangle-down",
    "plus": "cross", "cross": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "dot": "circle", "": "circle",
}  # fmt: skip
_STEPS = {"before": "step-before", "after": "step-after", "": "linear"}
_RIM = {"stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"}
"""Of words, so that lines which cross them stop around them."""
_LETTER = 6.4
"""Pixels of a letter of small text."""


def chart(figure: Figure, most: int = MOST_POINTS) -> Json:
    """Return what `chart.js` draws of a figure, as JSON values.

    Args:
        figure: what is drawn.
        most: values to keep; of more, lines keep their highest and lowest ones, bars the longest, points every so many.
    """
    every = [one for panel in figure.panels for one in panel.series]
    total = sum(map(_length, every))
    share = min(1.0, most / max(1, total))
    names = _legend_names(figure)
    panels, kept = [], 0
    for panel in figure.panels:
        series = [_series(one, panel, max(_LEAST_POINTS, math.floor(share * _length(one)))) for one in panel.series]
        kept += sum(len(next(iter(one["data"].values()), ())) for one in series)
        panels.append(_panel(figure, panel, series, names))
    return {
        "name": figure.name,
        "title": figure.title,
        "heading": figure.heading,
        "note": figure.note,
        "columns": min(figure.columns, len(figure.panels)),
        "widths": [*figure.widths],
        "legend": [_key(name, every) for name in names] if _has_legend(figure) else [],
        "legend_title": figure.legend_title,
        "points": total,
        "drawn": kept,
        "panels": panels,
    }


def _has_legend(figure: Figure) -> bool:
    return bool(figure.legend or any(panel.legend for panel in figure.panels))


def _legend_names(figure: Figure) -> list[str]:
    """Names that can be switched, each once, in the order in which they are drawn."""
    return [*dict.fromkeys(one.name for panel in figure.panels for one in panel.series if one.legend and one.name)]


def _key(name: str, every: Iterable[Series]) -> Json:
    """One entry of the legend."""
    one = next(one for one in every if one.name == name and one.legend)
    shape = "line" if isinstance(one, Line | Rule) else "bar"
    dash = getattr(one, "dash", "solid")
    marker = _MARKERS[one.marker] if isinstance(one, Line) and one.marker else ""
    return {
        "name": name,
        "colour": css_colour(one.colour),
        "opacity": one.opacity,
        "shape": "point" if dash == "none" else shape,
        "dash": _DASHES.get(dash, []),
        "marker": marker,
        "hollow": getattr(one, "hollow", False),
    }


def _length(one: Series) -> int:
    if isinstance(one, Matrix):
        return sum(map(len, one.values))
    if isinstance(one, Line | Area):
        return len(one.x)
    return len(one.at) if isinstance(one, Bars) else 0 if isinstance(one, Text) else 1


def _group(one: Series, names: Sequence[str]) -> int | None:
    """The entry of the legend that switches a series: its own, or the one whose name its own begins with."""
    if one.name in names:
        return names.index(one.name)
    longer = [name for name in names if one.name.startswith((f"{name},", f"{name} "))]
    return names.index(max(longer, key=len)) if longer else None


def _series(one: Series, panel: Panel, most: int) -> Json:
    kind = type(one).__name__.lower()
    found: Json = {"kind": kind, "name": one.name, "colour": css_colour(one.colour), "data": _thinned(one, panel, most)}
    if isinstance(one, Bars):
        found["across"] = one.across
        if not isinstance(one.thickness, Sequence):
            found["thickness"] = float(one.thickness)
    if isinstance(one, Band | Rule):
        found["axis"] = one.axis
    if isinstance(one, Text) or one.colour == "stripe":
        found["silent"] = True
    return found


def _columns(one: Series, panel: Panel) -> Columns:
    """The values of a series by column; what is no finite number is None."""
    if isinstance(one, Line):
        interval = {"low": one.low, "high": one.high} if one.low else {}
        return _plain({"x": one.x, "y": one.y, **interval, **({"area": one.areas} if one.areas else {})})
    if isinstance(one, Bars):
        found = _plain({"at": one.at, "end": one.end, **({"begin": one.begin} if any(one.begin) else {})})
        if isinstance(one.thickness, Sequence):
            found["thick"] = _plain({"": one.thickness})[""]
        if one.colours:
            found["fill"] = [css_colour(one.colours[place % len(one.colours)]) for place in range(len(one.at))]
        if any(one.labels):
            found["label"] = [*one.labels]
        return found
    if isinstance(one, Area):
        return _plain({"x": one.x, "low": one.low, "high": one.high})
    if isinstance(one, Matrix):
        cells = [(row, column) for row, values in enumerate(one.values) for column in range(len(values))]
        found = {"row": [row for row, _ in cells], "column": [column for _, column in cells]}
        found |= _plain({"value": [one.values[row][column] for row, column in cells]})
        return found | ({"label": [one.labels[row][column] for row, column in cells]} if one.labels else {})
    if isinstance(one, Band):
        return _plain({"low": [one.low], "high": [one.high]})
    return _plain({"at": [one.at]}) if isinstance(one, Rule) else {}


def _plain(columns: Mapping[str, Iterable[float]]) -> Columns:
    """Numbers in seven digits, of which hover shows four."""
    return {
        name: [_short(value) if math.isfinite(value) else None for value in values] for name, values in columns.items()
    }


def _short(value: float) -> float | int:
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _thinned(one: Series, panel: Panel, most: int) -> Columns:
    """The columns of a series, of `most` rows at most."""
    columns = _columns(one, panel)
    length = _length(one)
    if length <= most or isinstance(one, Matrix | Band | Rule | Text):
        return columns
    if isinstance(one, Bars):
        longest = sorted(range(length), key=lambda place: -abs(one.end[place] - one.begin[place]))
        kept = sorted(longest[:most])
    elif isinstance(one, Line) and one.dash == "none":
        kept = [place * length // most for place in range(most)]
    else:
        kept = _extremes(one.y if isinstance(one, Line) else one.high, most)
    return {name: [values[place] for place in kept] for name, values in columns.items()}


def _extremes(values: Sequence[float], most: int) -> list[int]:
    """Places of the first, last, highest and lowest value, and of a gap, in each of most / 4 pieces of a line."""
    kept: set[int] = {0, len(values) - 1}
    pieces = max(1, most // 4)
    for piece in range(pieces):
        begin, end = piece * len(values) // pieces, (piece + 1) * len(values) // pieces
        known = [place for place in range(begin, end) if math.isfinite(values[place])]
        gap = next((place for place in range(begin, end) if not math.isfinite(values[place])), begin)
        kept |= {begin, gap}
        if known:
            kept |= {min(known, key=values.__getitem__), max(known, key=values.__getitem__)}
    return sorted(kept)


def _panel(figure: Figure, panel: Panel, series: Sequence[Json], names: Sequence[str]) -> Json:
    axes = {which: _axis(panel, which, axis) for which, axis in (("x", panel.x), ("y", panel.y))}
    layers = [_frame(axes)]
    order = sorted(range(len(series)), key=lambda place: _depth(panel.series[place]))
    for place in order:
        one = panel.series[place]
        group = _group(one, names)
        series[place]["group"] = group
        shown = [{"filter": f"!off[{group}]"}] if group is not None else []
        for layer in _layers(one, axes):
            layer["data"] = layer.get("data", {"name": f"s{place}"})
            layer["transform"] = [*shown, *layer.get("transform", [])]
            layers.append({key: value for key, value in layer.items() if value != []})
    layers += _texts([one for one in panel.series if isinstance(one, Text)], axes)
    rows = -(-len(figure.panels) // min(figure.columns, len(figure.panels)))
    words = 0.3 * (bool(figure.legend) + bool(figure.note)) / rows
    inches = figure.size[1] / rows - _AROUND_INCHES - words
    return {
        "title": panel.title,
        "height": round(max(_LEAST_HEIGHT, _PIXELS_PER_INCH * inches, *_room(panel))),
        "square": panel.square,
        "matrix": next(({"most": one.most, "key": one.key, "form": one.form, "columns": len(one.values[0])}
                        for one in panel.series if isinstance(one, Matrix)), None),
        "x": axes["x"],
        "y": axes["y"],
        "series": [*series],
        "spec": {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "autosize": {"type": "fit-x", "contains": "padding"},
            "padding": {"left": 2, "right": 10, "top": 6, "bottom": 2},
            "params": [
                {"name": "off", "value": {}},
                *({"name": f"{which}d", "value": None} for which in axes),
                *({"name": f"{which}t", "value": axes[which]["names"]} for which in axes),
                {"name": "xw", "value": 40}, {"name": "yw", "value": 40}, {"name": "xa", "value": 0},
            ],
            "layer": layers,
        },
    }  # fmt: skip


def _room(panel: Panel) -> list[float]:
    """Pixels that the categories of a y axis need."""
    ticks = panel.y.ticks or ()
    return [26.0 * len(ticks)] if any(not _is_number(text) for _, text in ticks) and not panel.square else [0.0]


def _depth(one: Series) -> float:
    return 0 if isinstance(one, Band) else 1 if isinstance(one, Rule) else 2


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def _axis(panel: Panel, which: str, axis: Axis) -> Json:
    """An axis as hover and the specification need it: words, ends, ticks."""
    cells = next((one for one in panel.series if isinstance(one, Matrix)), None)
    if cells is not None:
        count = len(cells.values) if which == "y" else len(cells.values[0])
        low, high = -0.5, count - 0.5
    else:
        low, high = _ends(panel, which, axis)
    ticks = None if axis.ticks is None else [(float(place), text) for place, text in axis.ticks]
    return {
        "label": axis.label,
        "unit": axis.unit,
        "scale": axis.scale,
        "form": axis.form,
        "low": low,
        "high": high,
        "down": axis.down or (cells is not None and which == "y"),
        "whole": axis.whole,
        "grid": axis.grid and cells is None,
        "places": None if ticks is None else [_short(place) for place, _ in ticks],
        "names": {} if ticks is None else {str(_short(place)): text for place, text in ticks},
        "category": ticks is not None and any(not _is_number(text) for _, text in ticks) and axis.scale == "linear",
        "steep": axis.steep,
    }


def _ends(panel: Panel, which: str, axis: Axis) -> tuple[float, float]:
    """Where an axis begins and ends: as it says, or as far as the series reach with some room."""
    logarithmic = axis.scale != "linear"
    found, stands = [], False
    for one in panel.series:
        values, from_zero = _reach(one, which)
        found += [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
        stands = stands or from_zero
    low, high = min(found, default=1.0), max(found, default=1.0)
    if axis.low is not None and not found:
        high = axis.low + 1
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
    room = _MARGIN * ((high - low) or (abs(high) or 1.0))
    first, last = low - room, high + room
    if logarithmic:
        first, last = 10**first, 10**last
    elif stands and low >= 0:
        first = 0.0
    return axis.low if axis.low is not None else first, axis.high if axis.high is not None else last


def _reach(one: Series, which: str) -> tuple[list[float], bool]:
    """Values of a series along an axis, and whether bars are there."""
    if isinstance(one, Line):
        return ([*one.x], False) if which == "x" else ([*one.y, *one.low, *one.high], False)
    if isinstance(one, Area):
        return ([*one.x], False) if which == "x" else ([*one.low, *one.high], False)
    if isinstance(one, Bars):
        if one.across == (which == "x"):
            return [*one.begin, *one.end], True
        wide = one.thickness if isinstance(one.thickness, Sequence) else [one.thickness] * len(one.at)
        return [at + side * t / 2 for at, t in zip(one.at, wide, strict=True) for side in (-1, 1)], False
    if isinstance(one, Band | Rule) and one.axis == which and one.colour != "stripe":
        return ([one.low, one.high] if isinstance(one, Band) else [one.at]), False
    return [], False


def _frame(axes: Mapping[str, Json]) -> Json:
    """A layer that draws nothing and declares both axes."""
    encoding = {}
    for which, axis in axes.items():
        log = axis["scale"] != "linear"
        # A scale reads the zoomed ends from a parameter that is null as long as nothing is zoomed.
        scale: Json = {
            "type": "log" if log else "linear",
            "domain": [axis["low"], axis["high"]],
            "domainRaw": {"expr": f"{which}d"},
            "nice": False,
            "zero": False,
            "reverse": axis["down"],
        }
        if log:
            del scale["zero"]
            scale["base"] = 2 if axis["scale"] == "log2" else 10
        encoding[which] = {"datum": axis["low"], "type": "quantitative", "title": None, "scale": scale,
                           "axis": _guide(which, axis)}  # fmt: skip
    return {"data": {"values": [{}]}, "mark": {"type": "point", "opacity": 0}, "encoding": encoding}


def _guide(which: str, axis: Json) -> Json:
    guide: Json = {"grid": axis["grid"], "labelOverlap": "greedy", "title": None}
    if axis["scale"] != "linear":  # lines of the grid that have no number are faint
        guide["gridOpacity"] = {"condition": {"test": "datum.label === ''", "value": 0.4}, "value": 1}
    if axis["places"] is None:
        guide["tickCount"] = {"expr": "max(3, ceil(width / 80))" if which == "x" else "max(3, ceil(height / 45))"}
        guide["labelExpr"] = f"chartTick(datum, '{axis['form']}')"
        if axis["whole"]:
            guide["tickMinStep"] = 1
    else:
        guide |= {"values": axis["places"], "tickCount": len(axis["places"]) + 1}
        guide["labelExpr"] = f"chartWrap({which}t[datum.value], {which}w)"
        if axis["category"]:
            guide["labelOverlap"] = False if which == "y" else "greedy"
    if which == "x" and axis["category"]:
        guide |= {
            "labelAngle": {"expr": "xa"},
            "labelAlign": {"expr": "xa ? 'right' : 'center'"},
            "labelBaseline": {"expr": "xa ? 'middle' : 'top'"},
        }
    return guide


def _layers(one: Series, axes: Mapping[str, Json]) -> list[Json]:
    if isinstance(one, Line):
        return _line(one, axes)
    if isinstance(one, Bars):
        return _bars(one, axes)
    if isinstance(one, Area):
        return [{"mark": {"type": "area", "color": css_colour(one.colour), "opacity": one.opacity, "clip": True},
                 "encoding": {"x": _at("x"), "y": _at("low"), "y2": {"field": "high"}}}]  # fmt: skip
    if isinstance(one, Band):
        ends = (one.axis, _at("low")), (f"{one.axis}2", {"field": "high"})
        return [{"mark": {"type": "rect", "color": css_colour(one.colour), "opacity": one.opacity, "clip": True},
                 "encoding": dict(ends)}]  # fmt: skip
    if isinstance(one, Rule):
        mark = {"type": "rule", "color": css_colour(one.colour), "strokeWidth": max(1.0, one.width), "clip": True,
                "strokeDash": _DASHES.get(one.dash, [])}  # fmt: skip
        return [{"mark": mark, "encoding": {one.axis: _at("at")}}]
    return _matrix(one) if isinstance(one, Matrix) else []


def _at(field: str) -> Json:
    return {"field": field, "type": "quantitative", "title": None}


def _in_view(axes: Mapping[str, Json], axis: str = "xy", beyond: bool = False) -> list[Json]:
    """Marks of points are drawn whole, so those outside of the axes are left out."""
    ends = {which: "true" if beyond else f"inrange(datum.{which}, [{axes[which]['low']}, {axes[which]['high']}])"
            for which in axis}  # fmt: skip
    return [{"filter": f"{which}d ? inrange(datum.{which}, {which}d) : {ends[which]}"} for which in axis]


def _line(one: Line, axes: Mapping[str, Json]) -> list[Json]:
    colour, encoding = css_colour(one.colour), {"x": _at("x"), "y": _at("y")}
    found: list[Json] = []
    if one.low:
        found += _interval(one, axes)
    if one.dash != "none":
        mark = {"type": "line", "color": colour, "opacity": one.opacity, "strokeWidth": one.width, "clip": True,
                "strokeDash": _DASHES.get(one.dash, []), "interpolate": _STEPS[one.step]}  # fmt: skip
        low = axes["y"]["low"]
        floor = {"calculate": f"isValid(datum.y) ? max(datum.y, {low}) : null", "as": "y"}
        sunk = [floor] if axes["y"]["scale"] != "linear" and any(value <= 0 for value in one.y) else []
        found.append({"mark": mark, "encoding": {**encoding, "order": {"value": None}}, "transform": sunk})
    if one.marker or one.areas:
        across = one.size * _PIXELS_PER_POINT * (0.6 if one.marker == "dot" else 1)
        mark = {"type": "point", "shape": _MARKERS[one.marker], "stroke": colour, "strokeWidth": 1.4,
                "fill": "var(--paper)" if one.hollow else colour, "opacity": one.opacity,
                "size": round(max(3.0, across) ** 2, 1)}  # fmt: skip
        if one.areas:
            mark |= {"stroke": "var(--paper)", "strokeWidth": 1, "size": {"expr": "datum.area * 2.2"}}
        found.append(
            {
                "mark": mark,
                "encoding": encoding,
                "transform": [{"filter": "isValid(datum.y)"}, *_in_view(axes, beyond=one.beyond)],
            }
        )
    return found


def _interval(one: Line, axes: Mapping[str, Json]) -> list[Json]:
    """The interval of each point with its ends; an arrow where it reaches over the end of the axis."""
    colour, known = css_colour(one.colour), {"filter": "isValid(datum.low) && isValid(datum.high)"}
    rule = {"mark": {"type": "rule", "color": colour, "strokeWidth": 1.5, "clip": True, "opacity": one.opacity},
            "encoding": {"x": _at("x"), "y": _at("low"), "y2": {"field": "high"}}, "transform": [known]}  # fmt: skip
    ends = [
        {"mark": {"type": "tick", "orient": "horizontal", "color": colour, "size": 7, "thickness": 1.5, "clip": True,
                  "opacity": one.opacity},
         "encoding": {"x": _at("x"), "y": _at(side)}, "transform": [known]}
        for side in ("low", "high")
    ]  # fmt: skip
    top = axes["y"]["high"]
    beyond = [{
        "mark": {"type": "point", "shape": "triangle-up", "filled": True, "color": colour, "size": 70},
        "encoding": {"x": _at("x"), "y": {"datum": top, "type": "quantitative", "title": None}},
        "transform": [{"filter": f"datum.high > {top} && !yd"}, *_in_view(axes, "x")],
    }] if any(high > top for high in one.high) else []  # fmt: skip
    return [rule, *ends, *beyond]


def _bars(one: Bars, axes: Mapping[str, Json]) -> list[Json]:
    values, along, across = (axes["x"], "x", "y") if one.across else (axes["y"], "y", "x")
    thick = "datum.thick" if isinstance(one.thickness, Sequence) else f"{float(one.thickness):.9g}"
    floor = values["low"] if values["scale"] != "linear" else 0
    begin = f"max(datum.begin, {floor})" if values["scale"] != "linear" else "datum.begin"
    places: list[Json] = [
        {"calculate": begin if any(one.begin) else str(floor), "as": "start"},
        {"calculate": f"datum.at - {thick} / 2", "as": "a"},
        {"calculate": f"datum.at + {thick} / 2", "as": "b"},
    ]
    fill = "datum.fill" if one.colours else ""
    # An edge in the bar's color keeps the shortest bars of a trace visible.
    mark = {"type": "rect", "opacity": one.opacity, "clip": True, "strokeWidth": 0.6,
            "fill": {"expr": fill} if fill else css_colour(one.colour),
            "stroke": {"expr": fill} if fill else css_colour(one.colour)}  # fmt: skip
    encoding = {along: _at("start"), f"{along}2": {"field": "end"}, across: _at("a"), f"{across}2": {"field": "b"}}
    found: list[Json] = [{"mark": mark, "encoding": encoding, "transform": places}]
    if any(one.labels):
        words = _bar_labels(one, values, along, across, places)
        found += [words] if one.place == "inside" else [{**words, "mark": {**words["mark"], **_RIM}}, words]
    return found


def _bar_labels(one: Bars, values: Json, along: str, across: str, places: Sequence[Json]) -> Json:
    mark: Json = {"type": "text", "fontSize": 11, "baseline": "middle", "align": "center"}
    where: Json = {"calculate": "(datum.start + datum.end) / 2", "as": "middle"}
    if one.place == "inside":
        mark["fill"] = css_ink(one.colours[0] if one.colours else one.colour)
        needed = f"{_LETTER} * length(datum.label)" if one.across else "13"
        mark["opacity"] = {
            "expr": f"abs(scale('{along}', datum.end) - scale('{along}', datum.start)) < {needed} ? 0 : 1"
        }
    elif one.place == "end":
        # Behind the bar, or before its end where the panel is too narrow.
        full = f"scale('x', datum.middle) + {_LETTER} * length(datum.label) > width"
        sides = {"align": {"expr": f"{full} ? 'right' : 'left'"}, "dx": {"expr": f"{full} ? -6 : 6"}}
        mark |= sides if one.across else {"baseline": "bottom", "dy": -3}
        where["calculate"] = "max(datum.start, datum.end)"
    else:
        mark |= {"align": "right"} if one.across else {"baseline": "top"}
        where["calculate"] = str(values["high"])
    encoding = {along: _at("middle"), across: _at("at"), "text": {"field": "label", "type": "nominal"}}
    return {"mark": {"fill": "var(--ink)", **mark}, "encoding": encoding, "transform": [*places, where]}


def _matrix(one: Matrix) -> list[Json]:
    corners = [
        {"calculate": f"datum.{field} {sign} 0.5", "as": name}
        for field, sign, name in (("column", "-", "x1"), ("column", "+", "x2"), ("row", "-", "y1"), ("row", "+", "y2"))
    ]
    cells = {
        "mark": {"type": "rect", "fill": css_colour("matrix"), "clip": True, "stroke": "var(--line)",
                 "strokeWidth": 0.5, "opacity": 1,
                 "fillOpacity": {"expr": f"clamp(datum.value / {one.most or 1}, 0, 1)"}},
        "encoding": {"x": _at("x1"), "x2": {"field": "x2"}, "y": _at("y1"), "y2": {"field": "y2"}},
        "transform": corners,
    }  # fmt: skip
    if not one.labels:
        return [cells]
    longest = max(len(line) for row in one.labels for text in row for line in text.split("\n")) or 1
    words = {
        "mark": {"type": "text", "fill": "var(--ink)", "fontSize": 11, "lineBreak": "\n", "baseline": "middle",
                 "opacity": {"expr": f"width / {len(one.values[0])} < {_LETTER * longest} ? 0 : 1"}},
        "encoding": {"x": _at("column"), "y": _at("row"), "text": {"field": "label", "type": "nominal"}},
    }  # fmt: skip
    return [cells, words]


def _texts(texts: Sequence[Text], axes: Mapping[str, Json]) -> list[Json]:
    """Words at places, with a rim of paper so that lines which cross them stop around them; a layer for each look."""
    looks: dict[tuple[Any, ...], list[Text]] = {}
    for one in texts:
        looks.setdefault((one.align, one.upright, one.colour == "note", one.shift, one.along is None), []).append(one)
    found = []
    for (align, upright, soft, (right, up), level), members in looks.items():
        mark: Json = {
            "type": "text", "fontSize": 11, "align": align, "lineBreak": "\n", "dx": right * _PIXELS_PER_POINT,
            "baseline": {"center": "middle"}.get(upright, upright), "dy": -up * _PIXELS_PER_POINT,
            "fill": "var(--soft)" if soft else "var(--ink)",
        }  # fmt: skip
        rows: list[Json] = [{"x": one.x, "y": one.y, "text": one.text} for one in members]
        if not level:
            rows = [{**row, "x2": one.along[0], "y2": one.along[1]}
                    for row, one in zip(rows, members, strict=True) if one.along]  # fmt: skip
            rise, run = (f"scale('{axis}', datum.{axis}2) - scale('{axis}', datum.{axis})" for axis in ("y", "x"))
            mark |= {"angle": {"expr": f"atan2({rise}, {run}) * 180 / PI"}, "dy": -6, "baseline": "bottom"}
        encoding = {"x": _at("x"), "y": _at("y"), "text": {"field": "text", "type": "nominal"}}
        shared = {"data": {"values": rows}, "encoding": encoding, "transform": _in_view(axes, beyond=True)}
        if align == "center":  # numbers beside each other are left out where they would lie on each other
            needed = _LETTER * sum(max(map(len, one.text.split("\n"))) + 0.5 for one in members)
            mark["opacity"] = {"expr": f"width < {needed:.0f} ? 0 : 1"}
        found += [{**shared, "mark": {**mark, **_RIM}}, {**shared, "mark": mark}]
    return found
