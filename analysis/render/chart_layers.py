"""Series of a figure as layers of a Vega-Lite specification: the marks, how they look, and the axes they share."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.render.chart_colours import css_colour, css_ink
from analysis.render.figure import Area, Band, Bars, Line, Matrix, Rule, Series, Text

Json = dict[str, Any]

DASHES: Mapping[str, list[float]] = {"dashed": [6, 4], "dotted": [2, 3], "dashdot": [8, 3, 2, 3]}
MARKERS: Mapping[str, str] = {
    "circle": "circle", "square": "square", "triangle": "triangle-up", "diamond": "diamond", "down": "triangle-down",
    "plus": "cross", "cross": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "dot": "circle", "": "circle",
}  # fmt: skip
PIXELS_PER_POINT = 4 / 3
"""Pixels of a size on paper."""
_STEPS = {"before": "step-before", "after": "step-after", "": "linear"}
_RIM = {"stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"}
"""Outline of text, so that crossing lines stop around it."""
_LETTER = 6.4
"""Width of a letter of small text in pixels."""


def frame(axes: Mapping[str, Json]) -> Json:
    """Return a layer that draws nothing and declares both axes."""
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
        count, text = "max(3, ceil(width / 80))" if which == "x" else "max(3, ceil(height / 45))", "chartTick"
        if axis["whole"]:  # tickMinStep allows ticks at halves
            span = f"({which}d ? {which}d[1] - {which}d[0] : {axis['high'] - axis['low']:.9g})"
            count, text = f"max(1, min({count}, floor({span})))", "datum.value % 1 ? '' : chartTick"
        guide |= {"tickCount": {"expr": count}, "labelExpr": f"{text}(datum, '{axis['form']}')"}
    else:
        guide |= {"values": axis["places"], "tickCount": len(axis["places"]) + 1}
        guide["labelExpr"] = f"chartWrap({which}t[datum.value], {which}w)"
        if axis["category"]:
            guide["labelOverlap"] = False if which == "y" else "greedy"
            if which == "y":  # the first of two lines ends in the middle, so that both are beside their bar
                guide["labelBaseline"] = {
                    "condition": {"test": "isArray(chartWrap(yt[datum.value], yw))", "value": "bottom"},
                    "value": "middle",
                }
    if which == "x" and axis["category"]:
        guide |= {
            "labelAngle": {"expr": "xa"},
            "labelAlign": {"expr": "xa ? 'right' : 'center'"},
            "labelBaseline": {"expr": "xa ? 'middle' : 'top'"},
        }
    return guide


def series_layers(one: Series, axes: Mapping[str, Json], shift: float = 0.0) -> list[Json]:
    """Return the layers of one series.

    Args:
        one: the series; texts have no layer here, see `text_layers`.
        axes: "x" and "y", as `chart` describes them.
        shift: points to the right, of `analysis.render.figure.dodges`.
    """
    if isinstance(one, Line):
        found = _line(one, axes)
        for layer in found if shift else ():
            layer["mark"]["xOffset"] = shift * PIXELS_PER_POINT
        return found
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
                "strokeDash": DASHES.get(one.dash, [])}  # fmt: skip
        return [{"mark": mark, "encoding": {one.axis: _at("at")}}]
    return _matrix(one) if isinstance(one, Matrix) else []


def _at(field: str) -> Json:
    return {"field": field, "type": "quantitative", "title": None}


def _in_view(axes: Mapping[str, Json], axis: str = "xy", beyond: bool = False) -> list[Json]:
    """Return filters that drop points outside the axes, because their marks are not clipped."""
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
                "strokeDash": DASHES.get(one.dash, []), "interpolate": _STEPS[one.step]}  # fmt: skip
        low = axes["y"]["low"]
        floor = {"calculate": f"isValid(datum.y) ? max(datum.y, {low}) : null", "as": "y"}
        sunk = [floor] if axes["y"]["scale"] != "linear" and any(value <= 0 for value in one.y) else []
        found.append({"mark": mark, "encoding": {**encoding, "order": {"value": None}}, "transform": sunk})
    if one.marker or one.areas:
        across = one.size * PIXELS_PER_POINT * (0.6 if one.marker == "dot" else 1)
        mark = {"type": "point", "shape": MARKERS[one.marker], "stroke": colour, "strokeWidth": 1.4,
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
    """Return the interval of each point with its ends, and an arrow if it extends beyond the axis."""
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


def text_layers(texts: Sequence[Text], axes: Mapping[str, Json]) -> list[Json]:
    """Return text at positions, with an outline so that crossing lines stop around it; one layer per look."""
    looks: dict[tuple[Any, ...], list[Text]] = {}
    for one in texts:
        looks.setdefault((one.align, one.upright, one.colour == "note", one.shift, one.along is None), []).append(one)
    found = []
    for (align, upright, soft, (right, up), level), members in looks.items():
        mark: Json = {
            "type": "text", "fontSize": 11, "align": align, "lineBreak": "\n", "dx": right * PIXELS_PER_POINT,
            "baseline": {"center": "middle"}.get(upright, upright), "dy": -up * PIXELS_PER_POINT,
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
