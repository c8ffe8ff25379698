"""Draws any `Figure` as PNG with matplotlib: the one module that knows it."""

import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from analysis import wording
from analysis.render.figure import (
    COLOURS,
    Area,
    Axis,
    Band,
    Bars,
    Figure,
    Form,
    Line,
    Matrix,
    Panel,
    Rule,
    Series,
    Text,
    dodges,
    short_label,
)
from common.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Where they are installed, letters that the first ones lack are taken from them.
_FURTHER_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Noto Sans Thai")
_FONTS = ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans", *_FURTHER_FONTS]
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": _FONTS,
    "font.size": 9.5,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["faint"],
    "grid.linewidth": 0.8,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["note"],
    "ytick.color": COLOURS["note"],
    **{f"{axis}tick.{which}.size": 0 for axis in "xy" for which in ("major", "minor")},
    "legend.frameon": False,
    # Names from outside may hold a dollar sign: it must not start a formula.
    "text.parse_math": False,
}
_DASHES: dict[str, Any] = {
    "solid": "solid",
    "dashed": (0, (4, 2.5)),
    "dotted": (0, (1.2, 1.6)),
    "dashdot": (0, (6, 2, 1.2, 2)),
}
_MARKERS: dict[str, Any] = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "x",
}
_MARKERS |= {"dot": ".", "": ""}
_LEGENDS: dict[str, Any] = {
    "above": "outside upper left", "below": "outside lower left", "right": "outside right upper"
}  # fmt: skip
_SMALL, _NOTE = 8.5, 8.0
# Letters of small text, and of a bold title, in an inch; and those that the handle of a legend's entry takes.
_LETTERS, _TITLE_LETTERS, _HANDLE_LETTERS = 14.0, 12.5, 7
_ROWS, _ROW = 3, 0.18
"""Rows of a legend that the size of a figure allows for, and inches of each further one."""
_FEW_PANELS = 3
_FEW_DECADES = 2
_LETTER_SHARE = 0.62
"""Width of a digit as a share of the size of its font."""
_DARK = 0.5
"""Lightness, of 1, below which text on a color is white."""


def write_png(figure: Figure, folder: Path) -> Path:
    """Draw a figure into `folder`, in a file of its name; return the file. Raises StorageError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    path = folder / f"{figure.name}.png"
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A letter that no font here has is drawn as a box; the table beside the figure has it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        canvas = Canvas(figsize=_paper(figure), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(figure, canvas)
        with atomic_path(path) as temporary:
            canvas.savefig(temporary, format="png", dpi=170, facecolor="white")
    return path


def _paper(figure: Figure) -> tuple[float, float]:
    """Inches: as the figure says, and higher where its legend has more rows than that allows for."""
    width, height = figure.size
    names = [*_handles([panel for panel in figure.panels if not panel.legend])]
    if figure.legend not in ("above", "below") or not names:
        return width, height
    rows = -(-len(names) // _legend_columns(figure, names))
    return width, height + _ROW * max(0, rows - _ROWS)


def draw(figure: Figure, canvas: "Canvas") -> "list[Axes]":
    """Draw a figure on a canvas of matplotlib; return its axes, one for each panel."""
    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    grid = canvas.subplots(rows, columns, squeeze=False, width_ratios=figure.widths or None)
    every = [axes for row in grid for axes in row]
    for axes in every[len(figure.panels) :]:
        axes.set_visible(False)
    shares = figure.widths or (1.0,) * columns
    for number, (panel, axes) in enumerate(zip(figure.panels, every, strict=False)):
        width = figure.size[0] * shares[number % columns] / sum(shares)
        _draw_panel(panel, axes, width, crowded=len(figure.panels) > _FEW_PANELS)
    _words_around(figure, canvas)
    shown = every[: len(figure.panels)]
    if any(isinstance(one, Matrix) or (isinstance(one, Text) and one.along) for p in figure.panels for one in p.series):
        canvas.draw_without_rendering()  # sizes on paper are known when all else has its place
        for panel, axes in zip(figure.panels, shown, strict=True):
            _draw_by_paper(panel, axes)
    return shown


def drawable_names(labels: Sequence[str]) -> dict[str, str]:
    """Return the name of each label in a PNG: short, or its number, from 1, where no font has its letters."""
    from matplotlib import font_manager

    missing = {letter for label in labels for letter in short_label(label) if not letter.isascii()}
    for family in _FONTS if missing else ():
        try:
            file = font_manager.findfont(family, fallback_to_default=False)
        except ValueError:
            continue
        missing -= set(map(chr, font_manager.get_font(file).get_charmap())) if missing else set()
    return {
        label: f"label {number}" if missing.intersection(short_label(label)) else short_label(label)
        for number, label in enumerate(labels, start=1)
    }


def _draw_panel(panel: Panel, axes: "Axes", width: float, *, crowded: bool) -> None:
    from matplotlib.transforms import ScaledTranslation

    for which, axis in _axes(panel):
        if axis.scale != "linear":
            getattr(axes, f"set_{which}scale")("log", base=2 if axis.scale == "log2" else 10)
    shifts = dodges(panel)
    for place, one in enumerate(panel.series):
        before = set(axes.get_children()) if shifts[place] else set()
        _DRAW[type(one)](axes, panel, one, 2 + 0.01 * place)
        if shifts[place]:
            canvas = axes.figure
            assert canvas is not None
            moved = ScaledTranslation(shifts[place] / 72, 0, canvas.dpi_scale_trans)
            for artist in set(axes.get_children()) - before:
                artist.set_transform(axes.transData + moved)
    for which, axis in _axes(panel):
        _dress(axes, which, axis, _lowest(panel, which, axis))
    if panel.title:
        size = _SMALL if crowded else 10
        lines = [
            textwrap.wrap(_clean(line), int(_TITLE_LETTERS * width * 10 / size)) for line in panel.title.split("\n")
        ]
        axes.set_title("\n".join(part for line in lines for part in line), fontsize=size)
    handles = _handles([panel])
    if panel.legend == "right":
        upright = any(isinstance(one, Bars) and not one.across for one in panel.series)
        order = list(handles)[:: -1 if upright else 1]
        axes.legend(
            [handles[name] for name in order], map(_clean, order), fontsize=_SMALL, loc="center left",
            bbox_to_anchor=(1.01, 0.5),
        )  # fmt: skip
    elif panel.legend and handles:
        axes.legend(handles.values(), map(_clean, handles), fontsize=_SMALL, loc="best")


def _axes(panel: Panel) -> list[tuple[Literal["x", "y"], Axis]]:
    return [("x", panel.x), ("y", panel.y)]


def _lowest(panel: Panel, which: str, axis: Axis) -> float | None:
    """Where an axis begins: bars stand on 0."""
    if axis.low is not None or axis.scale != "linear":
        return axis.low
    bars = [one for one in panel.series if isinstance(one, Bars) and one.across == (which == "x")]
    ends = [value for one in bars for value in (*one.begin, *one.end)]
    return 0.0 if ends and min(ends) >= 0 else None


def _dress(axes: "Axes", which: Literal["x", "y"], axis: Axis, low: float | None) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    target = axes.xaxis if which == "x" else axes.yaxis
    if axis.ticks is not None:
        target.set_ticks([place for place, _ in axis.ticks], [_clean(text, lines=True) for _, text in axis.ticks])
    elif axis.whole:
        target.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))
    if axis.ticks is None and (axis.form or axis.scale != "linear"):
        form = _FORMS[axis.form]
        target.set_major_formatter(lambda value, _: form(value))
    if axis.scale != "linear":
        if axis.ticks is None and abs(np.diff(np.log10(target.get_view_interval()))[0]) < _FEW_DECADES:
            target.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        # The style writes no formulas, which logarithmic axes use for their numbers.
        target.set_minor_formatter(NullFormatter())
        if axis.ticks is not None:
            axes.minorticks_off()
    if axis.small or axis.steep:
        steep = {"rotation": 90} if axis.steep else {}
        axes.tick_params(
            axis=which, labelsize=7.5 if axis.small else _SMALL, **{f"label{k}": v for k, v in steep.items()}
        )
    ends = (axis.high, low) if axis.down else (low, axis.high)
    getattr(axes, f"set_{which}lim")(*ends)
    if axis.down and None in ends:
        target.set_inverted(True)
    label = f"{axis.label} ({axis.unit})" if axis.label and axis.unit else axis.label or axis.unit
    getattr(axes, f"set_{which}label")(_clean(label))
    if not axis.grid:
        axes.grid(axis=which, visible=False)


def _words_around(figure: Figure, canvas: "Canvas") -> None:
    handles = _handles([panel for panel in figure.panels if not panel.legend])
    if figure.legend and handles:
        canvas.legend(
            handles.values(), [_clean(name) for name in handles], fontsize=_SMALL, alignment="left",
            loc=_LEGENDS[figure.legend],
            ncols=_legend_columns(figure, [*handles]), title=figure.legend_title or None,
            title_fontsize=_SMALL,
        )  # fmt: skip
    if figure.heading:
        canvas.suptitle(_clean(figure.heading), x=0.01, ha="left", fontsize=11, fontweight="bold")
    if figure.note:
        letters = int(1.06 * _LETTERS * figure.size[0])
        lines = [part for line in figure.note.split("\n") for part in textwrap.wrap(_clean(line), letters)]
        canvas.supxlabel("\n".join(lines), fontsize=_NOTE, color=COLOURS["note"], x=0.01, ha="left")


def _legend_columns(figure: Figure, names: Sequence[str]) -> int:
    """As many columns as are wanted and fit; entries fill one column after the other."""
    for columns in range(min(figure.legend_columns, len(names)), 1, -1):
        rows = -(-len(names) // columns)
        widths = [max(map(len, names[start : start + rows])) for start in range(0, len(names), rows)]
        if sum(widths) + _HANDLE_LETTERS * len(widths) <= _LETTERS * figure.size[0]:
            return columns
    return 1


def _handles(panels: Sequence[Panel]) -> dict[str, Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for one in (one for panel in panels for one in panel.series if one.legend and one.name):
        if one.name in found:
            continue
        if isinstance(one, Line):
            size = 6.5 if len(one.areas) else one.size
            found[one.name] = Line2D([], [], **{**_look(one), "markersize": size, "linewidth": min(one.width, 2.0)})
        elif isinstance(one, Rule):
            found[one.name] = Line2D(
                [], [], color=COLOURS[one.colour], linestyle=_DASHES[one.dash], linewidth=one.width
            )
        else:
            found[one.name] = Patch(color=COLOURS[one.colour], alpha=one.opacity, linewidth=0)
    return found


def _look(one: Line) -> dict[str, Any]:
    colour = COLOURS[one.colour]
    return {
        "color": colour,
        "alpha": one.opacity,
        "linestyle": "none" if one.dash == "none" else _DASHES[one.dash],
        "linewidth": one.width,
        "marker": _MARKERS[one.marker] or None,
        "markersize": one.size,
        "markerfacecolor": "white" if one.hollow else colour,
    }


def _draw_line(axes: "Axes", panel: Panel, one: Line, order: float) -> None:
    x, y = np.array(one.x), np.array(one.y)
    look = {**_look(one), "zorder": order, "clip_on": not one.beyond}
    if one.areas:
        axes.scatter(
            x, y, s=one.areas, color=look["color"], alpha=one.opacity, edgecolor="white", linewidth=0.8, zorder=order
        )
        return
    if one.low:
        top = np.inf if panel.y.high is None else panel.y.high
        low, high = np.fmin(np.array(one.low), y), np.fmax(np.array(one.high), y)
        errors = np.nan_to_num([y - low, np.maximum(np.fmin(high, top) - y, 0)])
        axes.errorbar(x, y, yerr=errors, color=look["color"], linestyle="none", capsize=3, zorder=order)
        if (cut := high > top).any():
            marks = axes.plot(x[cut], np.full(cut.sum(), top), color=look["color"], linestyle="none", marker="^")
            marks[0].set(markersize=7, clip_on=False)
    steps = {"": "default", "before": "steps-pre", "after": "steps-post"}
    axes.plot(x, y, drawstyle=steps[one.step], **look)


def _draw_bars(axes: "Axes", panel: Panel, one: Bars, order: float) -> None:
    from matplotlib.collections import PolyCollection

    at, begin, end = np.array(one.at), np.array(one.begin), np.array(one.end)
    half = np.broadcast_to(np.asarray(one.thickness, float) / 2, at.shape)
    values = panel.x if one.across else panel.y
    if values.scale != "linear" and values.low is not None:
        begin, end = np.maximum(begin, values.low), np.maximum(end, values.low)
    along = np.stack([begin, begin, end, end], axis=1)
    across = np.stack([at - half, at + half, at + half, at - half], axis=1)
    corners = np.stack([along, across] if one.across else [across, along], axis=2)
    roles = one.colours or (one.colour,)
    colours = [COLOURS[role] for role in roles]
    axes.add_collection(PolyCollection([*corners], facecolors=colours, alpha=one.opacity, linewidths=0, zorder=order))
    axes.autoscale_view()
    for number, text in enumerate(one.labels):
        if text:
            _label_bar(axes, panel, one, number, text, roles[number % len(roles)])


def _label_bar(axes: "Axes", panel: Panel, one: Bars, number: int, text: str, role: str) -> None:
    at, begin, end = one.at[number], one.begin[number], one.end[number]
    ink, shift, ha, va = COLOURS["ink"], (0, 0), "center", "center"
    if one.place == "inside":
        value = (begin + end) / 2
        ink = _ink_on(_rgb(COLOURS[role]))
    elif one.place == "end":
        value = max(begin, end)
        shift, ha, va = ((5, 0), "left", "center") if one.across else ((0, 2), "center", "bottom")
    else:
        high = (panel.x if one.across else panel.y).high
        assert high is not None
        value, ha, va = high, "right" if one.across else "center", "center" if one.across else "top"
    place = (value, at) if one.across else (at, value)
    axes.annotate(
        _clean(text), place, shift, textcoords="offset points", ha=ha, va=va, color=ink, fontsize=_NOTE, zorder=5,
        annotation_clip=False,
    )  # fmt: skip


def _draw_area(axes: "Axes", panel: Panel, one: Area, order: float) -> None:
    axes.fill_between(one.x, one.low, one.high, color=COLOURS[one.colour], alpha=one.opacity, linewidth=0, zorder=order)


def _draw_band(axes: "Axes", panel: Panel, one: Band, order: float) -> None:
    span = axes.axvspan if one.axis == "x" else axes.axhspan
    span(one.low, one.high, color=COLOURS[one.colour], alpha=one.opacity, linewidth=0, zorder=0)


def _draw_rule(axes: "Axes", panel: Panel, one: Rule, order: float) -> None:
    line = axes.axvline if one.axis == "x" else axes.axhline
    line(one.at, color=COLOURS[one.colour], linestyle=_DASHES[one.dash], linewidth=one.width, zorder=1.5)


def _draw_matrix(axes: "Axes", panel: Panel, one: Matrix, order: float) -> None:
    image = axes.imshow(
        one.values, cmap="Blues", vmin=0, vmax=one.most or None, aspect="equal" if panel.square else "auto"
    )
    axes.grid(visible=False)
    if one.key:
        figure = axes.figure
        assert figure is not None
        scale = figure.colorbar(image, ax=axes, shrink=0.7)
        form = _FORMS[one.form]
        scale.ax.yaxis.set_major_formatter(lambda value, _: form(value))
        scale.outline.set_visible(False)


def _draw_text(axes: "Axes", panel: Panel, one: Text, order: float) -> None:
    from matplotlib.patheffects import withStroke

    # Lines that cross words stop round them.
    halo = [] if one.colour == "paper" else [withStroke(linewidth=2.5, foreground="white")]
    if one.along is None:
        axes.annotate(
            _clean(one.text, lines=True), (one.x, one.y), one.shift, textcoords="offset points", ha=one.align,
            va=one.upright, color=COLOURS[one.colour], fontsize=_NOTE, zorder=5, annotation_clip=False,
            path_effects=halo,
        )  # fmt: skip


def _draw_by_paper(panel: Panel, axes: "Axes") -> None:
    for one in panel.series:
        if isinstance(one, Matrix) and one.labels:
            _label_cells(axes, one)
        elif isinstance(one, Text) and one.along:
            (x, y), (further, higher) = axes.transData.transform([(one.x, one.y), one.along])
            angle = float(np.arctan2(higher - y, further - x))
            label = axes.annotate(
                _clean(one.text), (one.x, one.y), (-5 * np.sin(angle), 5 * np.cos(angle)), va="bottom",
                textcoords="offset points", rotation=np.degrees(angle), rotation_mode="anchor", fontsize=_NOTE,
                color=COLOURS[one.colour], annotation_clip=False,
            )  # fmt: skip
            label.set_in_layout(False)


def _label_cells(axes: "Axes", one: Matrix) -> None:
    box = axes.get_window_extent()
    figure = axes.figure
    assert figure is not None
    points = 72 * box.width / figure.dpi / max(1, len(one.values[0]))
    longest = max((len(line) for row in one.labels for text in row for line in text.split("\n")), default=1)
    size = min(9.0, 0.92 * points / (_LETTER_SHARE * max(1, longest)))
    colours = axes.images[0].to_rgba(np.array(one.values, float))
    for (row, column), value in np.ndenumerate(np.array(one.values, float)):
        ink = _ink_on(colours[row, column]) if value else COLOURS["pale"]
        axes.text(column, row, one.labels[row][column], ha="center", va="center", color=ink, fontsize=size)


def _ink_on(colour: Iterable[float]) -> str:
    red, green, blue, *_ = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < _DARK else COLOURS["ink"]


def _rgb(colour: str) -> list[float]:
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]


def _clean(text: str, *, lines: bool = False) -> str:
    return "".join(letter if letter.isprintable() or (lines and letter == "\n") else " " for letter in text)


def _si(value: float) -> str:
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9999:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "


_FORMS: Mapping[Form, Callable[[float], str]] = {
    "": lambda value: f"{value:g}",
    "percent": lambda value: f"{value:g} %",
    "size": wording.size,
    "si": _si,
    "number": wording.number,
}
_DRAW: Mapping[type[Series], Callable[["Axes", Panel, Any, float], None]] = {
    Line: _draw_line,
    Bars: _draw_bars,
    Area: _draw_area,
    Band: _draw_band,
    Rule: _draw_rule,
    Matrix: _draw_matrix,
    Text: _draw_text,
}
