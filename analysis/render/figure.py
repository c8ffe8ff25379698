"""A figure as data: panels, axes, series and text that a renderer draws (`png.py`; `chart.py` for a browser).

A figure depends on no drawing library. It has seven kinds of series (`Line`, `Bars`, `Area`, `Band`, `Rule`, `Matrix`,
`Text`). Colors are named by role, and the names of series do not change from run to run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from analysis import wording

# Okabe and Ito's palette, distinguishable with color blindness. Each role has the same color in every figure.
COLOURS: Mapping[str, str] = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#8C6BB1",
    "sky": "#56B4E9",
    "pink": "#CC79A7",
    "brown": "#A6761D",
    "yellow": "#F0C800",
    "wine": "#882255",
    "grey": "#7F7F7F",
    "pale": "#B8BEC7",
    "ink": "#1F2933",
    "note": "#52606D",
    "line": "#9AA5B1",
    "faint": "#E4E7EB",
    "paper": "#FFFFFF",
    "stripe": "#F5F7FA",
    "warmup": "#F3D9B1",
    "hidden": "#F5B68A",
    "idle": "#C3C9D2",
}
"""Role -> color: series; text, notes, reference lines, grid and stripes; roles with a color of their own."""
CYCLE = ("blue", "vermilion", "green", "orange", "purple", "sky", "pink", "grey")
"""Colors of series that differ only in their order."""

_SIZE_TICKS = 6
_DODGE = 6.0
"""Points between two lines whose intervals would cover each other."""
_MOST_DODGED = 18.0
"""Points between the first and the last of them."""

Dash = Literal["solid", "dashed", "dotted", "dashdot", "none"]
Marker = Literal["", "circle", "square", "triangle", "diamond", "down", "plus", "cross", "dot"]
Form = Literal["", "percent", "size", "si", "number"]
Legend = Literal["", "above", "below", "right", "inside"]


Numbers = Any
"""A sequence or array of numbers, with None or NaN for unknown ones; a series stores a tuple of floats."""


def numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """Return values as floats; None becomes NaN."""
    return tuple(math.nan if value is None else float(value) for value in values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One axis of a panel."""

    label: str = ""
    unit: str = ""
    """Shown after the label, in brackets."""
    scale: Literal["linear", "log", "log2"] = "linear"
    low: float | None = None
    """Where it begins; None: as far as the series reach."""
    high: float | None = None
    ticks: Sequence[tuple[float, str]] | None = None
    """(position, label) of categories and chosen numbers; None: the renderer chooses."""
    form: Form = ""
    """Format of ticks that the renderer chooses: with %, as bytes, with k, M, G, or with three digits."""
    whole: bool = False
    """Ticks are whole numbers only."""
    down: bool = False
    """A y axis from top to bottom, for categories."""
    grid: bool = True
    small: bool = False
    """Tick labels are small, because they are long."""
    steep: bool = False
    """Tick labels are vertical, because they do not fit side by side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    name: str
    """Shown in the legend and equal in every run. Series with the same name share an entry."""
    colour: str = "blue"
    """A role of COLOURS."""
    opacity: float = 1.0
    legend: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Line(_Series):
    """Points, joined by a line unless `dash` is "none"; NaN is a gap."""

    x: Numbers
    y: Numbers
    low: Numbers = ()
    """Ends of the interval of each point, NaN if unknown; an arrow marks what is beyond the axis."""
    high: Numbers = ()
    dash: Dash = "solid"
    width: float = 1.8
    """Line width in points."""
    marker: Marker = ""
    size: float = 5.0
    """Diameter of the marker in points."""
    areas: Numbers = ()
    """Area of each marker in square points, instead of one size."""
    hollow: bool = False
    step: Literal["", "before", "after"] = ""
    """The value holds from the previous point to its own, or from its own to the next."""
    beyond: bool = False
    """Markers may overlap the edge of the panel."""

    def __post_init__(self) -> None:
        for name in ("x", "y", "low", "high", "areas"):
            object.__setattr__(self, name, numbers(getattr(self, name)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars(_Series):
    """Rectangles at `at` on one axis, from `begin` to `end` on the other."""

    at: Numbers
    end: Numbers
    begin: Numbers = ()
    """Empty for 0."""
    thickness: float | Sequence[float] = 0.68
    """Width along the axis of `at`, centered, in its units."""
    across: bool = False
    """Bars are horizontal: `at` is on the y axis."""
    colours: Sequence[str] = ()
    """One role per bar, instead of one for all."""
    labels: Sequence[str] = ()
    """Text of each bar; "" for none."""
    place: Literal["inside", "end", "edge"] = "inside"
    """Position of labels: in the middle of the bar, after its end, or at the end of the axis."""

    def __post_init__(self) -> None:
        ends = numbers(self.end)
        object.__setattr__(self, "at", numbers(self.at))
        object.__setattr__(self, "end", ends)
        object.__setattr__(self, "begin", numbers(self.begin) or (0.0,) * len(ends))


@dataclass(frozen=True, kw_only=True, slots=True)
class Area(_Series):
    """The area between two curves."""

    x: Numbers
    low: Numbers
    high: Numbers

    def __post_init__(self) -> None:
        for name in ("x", "low", "high"):
            object.__setattr__(self, name, numbers(getattr(self, name)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Band(_Series):
    """A range of one axis, behind everything."""

    axis: Literal["x", "y"]
    low: float
    high: float
    legend: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(_Series):
    """A reference line at one value of an axis, across the whole panel."""

    axis: Literal["x", "y"]
    at: float
    dash: Dash = "solid"
    width: float = 1.0
    colour: str = "line"
    legend: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix(_Series):
    """Cells [row][column], from the top, colored from pale at 0 to dark at `most`."""

    values: Numbers
    labels: Sequence[Sequence[str]] = ()
    """Text of each cell."""
    most: float
    key: bool = False
    """Whether a color scale is shown beside it."""
    form: Form = ""
    """Format of the numbers on that scale."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(numbers(row) for row in self.values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(_Series):
    """Text at a position."""

    x: float
    y: float
    text: str
    shift: tuple[float, float] = (0.0, 0.0)
    """Offset in points, to the right and upwards."""
    align: Literal["left", "center", "right"] = "left"
    upright: Literal["bottom", "center", "top"] = "center"
    along: tuple[float, float] | None = None
    """Another position: the text follows the line to it."""
    colour: str = "ink"
    legend: bool = False


Series = Line | Bars | Area | Band | Rule | Matrix | Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes with its series, drawn in order."""

    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    legend: Legend = ""
    """Legend of this panel: "inside" or "right" of it; "" if the figure has one for all panels."""
    square: bool = False
    """Cells of a matrix are square."""

    def named(self, name: str) -> list[Series]:
        """Return the series of a name."""
        return [one for one in self.series if one.name == name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Panels, row by row, and the text around them."""

    name: str
    """Name of its file, without extension; unique on a page."""
    title: str
    caption: str = ""
    """What it shows and how to read it. A page shows title and caption; the picture file does not."""
    panels: Sequence[Panel]
    columns: int = 1
    widths: Sequence[float] = ()
    """Relative widths of the columns; empty: equal widths."""
    size: tuple[float, float] = (10.6, 3.9)
    """Size on paper in inches; a browser keeps the ratio."""
    heading: str = ""
    """Above all panels, in the picture."""
    note: str = ""
    """Below them; lines are kept."""
    legend: Legend = "above"
    legend_title: str = ""
    legend_columns: int = 4
    half: bool = False
    """Whether it fits beside another figure."""


def dodges(panel: Panel) -> list[float]:
    """Return the offset of each series to the right, in points, so that no interval covers another.

    Lines whose intervals overlap at the same x are spread evenly around it. Their values do not change.
    """
    found = [0.0] * len(panel.series)
    groups: list[list[int]] = []
    for place, one in enumerate(panel.series):
        if not isinstance(one, Line) or not one.low:
            continue
        touched = [group for group in groups if any(_overlap(panel.series[other], one) for other in group)]
        groups = [group for group in groups if group not in touched] + [[*chain(*touched), place]]
    for group in groups:
        step = min(_DODGE, _MOST_DODGED / max(1, len(group) - 1))
        for number, place in enumerate(sorted(group)):
            found[place] = step * (number - (len(group) - 1) / 2)
    return found


def _overlap(first: Series, second: Series) -> bool:
    if not isinstance(first, Line) or not isinstance(second, Line):
        return False
    known = {x: (low, high) for x, low, high in zip(first.x, first.low, first.high, strict=True)}
    shared = ((known[x], low, high) for x, low, high in zip(second.x, second.low, second.high, strict=True)
              if x in known)  # fmt: skip
    return any(low <= upper and lower <= high for (lower, upper), low, high in shared)


def stacked(name: str, colour: str, begin: Numbers, end: Numbers, labels: Sequence[str] = ()) -> Bars:
    """Return one part of stacked horizontal bars, one bar per category."""
    return Bars(name=name, colour=colour, at=range(len(end)), begin=begin, end=end, labels=labels, across=True)


def categories(labels: Sequence[str]) -> Axis:
    """Return a y axis of categories, from top to bottom."""
    return Axis(
        ticks=[(float(place), text) for place, text in enumerate(labels)],
        low=-0.55,
        high=len(labels) - 0.45,
        down=True,
        grid=False,
    )


def size_axis(label: str, sizes: Iterable[float]) -> Axis:
    """Return an axis of sizes in bytes, with ticks at powers of two."""
    known = sorted(sizes)
    first, last = math.floor(math.log2(known[0])), math.ceil(math.log2(known[-1]))
    step = max(1, -(-(last - first + 1) // _SIZE_TICKS))
    ticks = [(2.0**power, wording.size(2.0**power)) for power in range(first, last + 1, step)]
    return Axis(label=label, scale="log2", ticks=ticks)


def short_label(text: str) -> str:
    """Return a short, printable form of an external name."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean if len(clean) <= 40 else clean[:38] + "…"


def clock_unit(seconds: float) -> tuple[str, float]:
    """Return the display unit for a time of this length, and its seconds."""
    return ("h", 3600.0) if seconds > 7200 else ("min", 60.0) if seconds > 120 else ("s", 1.0)
