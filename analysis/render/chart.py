"""A `Figure` as charts of a page: for each panel a Vega-Lite specification, and the values that hover and tables read.

`chart` returns JSON values. The values of a series are stored once, in columns. `chart.js` makes the datasets of the
specification ("s0", "s1", ...) from them, finds the value under the pointer, and lists them in a table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.render.chart_colours import css_colour
from analysis.render.chart_layers import DASHES, MARKERS, PIXELS_PER_POINT, Json, frame, series_layers, text_layers
from analysis.render.figure import Area, Axis, Band, Bars, Figure, Line, Matrix, Panel, Rule, Series, Text, dodges

Columns = dict[str, list[Any]]

MOST_POINTS = 4000
"""Most values of one figure in a page."""
_LEAST_POINTS = 40
"""Fewest values that each series keeps."""
_PIXELS_PER_INCH = 100
_AROUND_INCHES = 0.95
"""Height of title, tick labels and axis label in a row of panels on paper."""
_LEAST_HEIGHT = 56
_MARGIN = 0.05
"""Free space at both ends of an axis without given limits, as a share of the range."""


def chart(figure: Figure, most: int = MOST_POINTS) -> Json:
    """Return what `chart.js` draws of a figure, as JSON values.

    Args:
        figure: the figure to draw.
        most: values to keep. Beyond it, lines keep extremes, bars keep the longest, points are sampled evenly.
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
    return [*dict.fromkeys(one.name for panel in figure.panels for one in panel.series if one.legend and one.name)]


def _key(name: str, every: Iterable[Series]) -> Json:
    one = next(one for one in every if one.name == name and one.legend)
    shape = "line" if isinstance(one, Line | Rule) else "bar"
    dash = getattr(one, "dash", "solid")
    marker = MARKERS[one.marker] if isinstance(one, Line) and one.marker else ""
    return {
        "name": name,
        "colour": css_colour(one.colour),
        "opacity": one.opacity,
        "shape": "point" if dash == "none" else shape,
        "dash": DASHES.get(dash, []),
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
    """Return the legend entry that switches a series: its own, or the one whose name is a prefix of its name."""
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
    """Return the values of a series by column; values that are not finite are None."""
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
    """Return numbers with seven digits; hover shows four."""
    return {
        name: [_short(value) if math.isfinite(value) else None for value in values] for name, values in columns.items()
    }


def _short(value: float) -> float | int:
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _thinned(one: Series, panel: Panel, most: int) -> Columns:
    """Return the columns of a series with at most `most` rows."""
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
    """Return the positions of first, last, highest and lowest value and of a gap in each of most / 4 pieces."""
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
    layers, shifts = [frame(axes)], dodges(panel)
    order = sorted(range(len(series)), key=lambda place: _depth(panel.series[place]))
    for place in order:
        one = panel.series[place]
        group = _group(one, names)
        series[place]["group"] = group
        if shifts[place]:
            series[place]["shift"] = shifts[place] * PIXELS_PER_POINT
        shown = [{"filter": f"!off[{group}]"}] if group is not None else []
        for layer in series_layers(one, axes, shifts[place]):
            layer["data"] = layer.get("data", {"name": f"s{place}"})
            layer["transform"] = [*shown, *layer.get("transform", [])]
            layers.append({key: value for key, value in layer.items() if value != []})
    layers += text_layers([one for one in panel.series if isinstance(one, Text)], axes)
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
    """Return the limits of an axis: as given, or the range of the series with some space."""
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
