"""Figures: their colors, the marks that they draw on axes of matplotlib, and their pictures, SVG in a page and PNG.

A mark has a `gid` that names its series, by which the legend of a page switches it, and a text for each value, which
matplotlib writes as a URL and the page as the `<title>` that hovering shows.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml  # nosec B405: it parses what matplotlib wrote

import numpy as np
import numpy.typing as npt

from analysis import wording
from common.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

COLOURS: Mapping[str, tuple[str, str]] = {
    "blue": ("#0072b2", "#4aa3e0"),
    "vermilion": ("#d55e00", "#f0793a"),
    "green": ("#009e73", "#2fbf95"),
    "orange": ("#b97900", "#f0b03a"),
    "purple": ("#8c6bb1", "#b094d6"),
    "sky": ("#3690c8", "#8fd0f5"),
    "pink": ("#c2649a", "#e59ac4"),
    "grey": ("#757575", "#a3a3a3"),
    "brown": ("#7a5200", "#c4964a"),
    "yellow": ("#a08a00", "#f5dc5a"),
    "wine": ("#882255", "#d46a98"),
    "pale": ("#5f6b78", "#c3cad3"),
    "hidden": ("#cd7d40", "#f5b68a"),
    "idle": ("#8b95a1", "#768391"),
    "line": ("#7b8794", "#8996a3"),
    "ink": ("#1f2933", "#e4e7eb"),
    "note": ("#52606d", "#b8c2cc"),
    "paper": ("#ffffff", "#1a222b"),
    "grid": ("#e4e7eb", "#323f4b"),
}
"""Role -> color on light and on dark paper. Series have at least 3:1 on it (WCAG 2.2, 1.4.11)."""
CYCLE = ("blue", "vermilion", "green", "orange", "purple", "sky", "pink", "grey")
"""Colors of series that differ only in their order."""
LINE = "\u2028"
"""Between the lines of a value's text; XML keeps it in an attribute."""

_MOST_TITLED = 40
"""Most points of a line, and bars, of which hovering shows each."""
_MOST_CELLS = 300
_LETTERS, _KEY_LETTERS = 14.0, 7
"""Letters of a legend in an inch; letters that the key of an entry takes."""

_FONTS = ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans", "Noto Sans CJK SC"]
_LIGHT = {role: light for role, (light, _) in COLOURS.items()}
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": _FONTS,
    "font.size": 9.5,
    "axes.edgecolor": _LIGHT["line"],
    "axes.facecolor": "none",
    "axes.labelcolor": _LIGHT["ink"],
    "axes.titlecolor": _LIGHT["ink"],
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LIGHT["grid"],
    "text.color": _LIGHT["ink"],
    "xtick.color": _LIGHT["note"],
    "ytick.color": _LIGHT["note"],
    **{f"{axis}tick.{which}.size": 0 for axis in "xy" for which in ("major", "minor")},
    "legend.frameon": False,
    "legend.title_fontsize": 8.5,
    # Names from outside may hold a dollar sign: it must not start a formula.
    "text.parse_math": False,
    "path.simplify_threshold": 0.5,
    "svg.fonttype": "none",
}
_SMALL: Any = {"fontsize": 8.0, "zorder": 5}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_ROLES = {light: role for role, light in _LIGHT.items()}

Numbers = Sequence[float] | npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture and the words around it, which a page shows as text."""

    name: str
    """Name of its file, without extension; unique on a page."""
    title: str
    caption: str = ""
    """What it shows and how to read it."""
    draw: "Callable[[Canvas], None]"
    """Draws it on an empty canvas with a constrained layout."""
    size: tuple[float, float] = (10.6, 3.9)
    """Inches."""
    half: bool = False
    """Whether it fits beside another figure."""


def curve(axes: "Axes", x: Iterable[Any], y: Iterable[Any], name: str, colour: str, *, low: Iterable[Any] = (),
          high: Iterable[Any] = (), shift: float = 0.0, titled: int = _MOST_TITLED, **look: Any) -> None:  # fmt: skip
    """Draw points joined by a line; None and NaN are gaps.

    The axes have their labels, which the texts of values repeat. `low` and `high` are the ends of each point's
    interval, `shift` points to the right keep intervals apart, hovering shows at most `titled` values, spread over all,
    and `look` are properties of a Line2D.
    """
    from matplotlib.transforms import ScaledTranslation

    name = name.lstrip("_")  # which would keep it from the legend
    across, up, lows, highs = (np.array([*values], dtype=float) for values in (x, y, low, high))
    look = {"color": COLOURS[colour][0], "linewidth": 1.8, "label": name, **look}
    drawn: list[Any] = [*axes.plot(across, up, **look)]
    if len(lows):
        drawn.append(axes.vlines(across, np.fmin(lows, up), np.fmax(highs, up), color=look["color"], linewidth=1.2))
    known = np.flatnonzero(np.isfinite(across) & np.isfinite(up))
    shown = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), titled)).astype(int))]
    ends = [f" ({wording.interval(lows[n], highs[n])})" if len(lows) else "" for n in shown]
    titles = [
        LINE.join((name, value_text(axes.xaxis, across[n]), value_text(axes.yaxis, up[n]) + end))
        for n, end in zip(shown, ends, strict=True)
    ]
    hover = axes.scatter(across[shown], up[shown], s=70, alpha=0, zorder=6, urls=titles)
    moved = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    hover.set_offset_transform(moved)
    for one in drawn:
        one.set_transform(moved)
    for one in (*drawn, hover):
        one.set_gid(f"series:{name}")


def bars(axes: "Axes", at: Numbers, end: Numbers, name: str, colour: str, *, begin: Numbers = (),
         thickness: float = 0.68, across: bool = True, labels: Sequence[str] = ()) -> None:  # fmt: skip
    """Draw bars at `at` on one axis, from `begin` (0) to `end` on the other; `across` they lie, with `at` on y.

    The axes have their labels. Labels stand in bars that lie, above those that stand. More bars than hovering can show
    become one shape with their sum; they must lie in one place.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    name = name.lstrip("_")
    ends = np.array(end, dtype=float)
    if not len(ends):
        return
    begins = np.array(begin, dtype=float) if len(begin) else np.zeros(len(ends))
    category, value = (axes.yaxis, axes.xaxis) if across else (axes.xaxis, axes.yaxis)
    look: dict[str, Any] = {"color": COLOURS[colour][0], "linewidth": 0, "zorder": 2, "label": name}
    look["gid"] = f"series:{name}"
    if len(ends) > _MOST_TITLED:
        corners = np.empty((len(ends), 4, 2))
        corners[:, :, 0] = np.column_stack([begins, begins, ends, ends])
        corners[:, :, 1] = at[0] + thickness / 2 * np.array([-1, 1, 1, -1])
        total = f"{value_text(value, float((ends - begins).sum()))} in all"
        title = LINE.join((name, value_text(category, at[0]), total))
        axes.add_patch(PathPatch(Path.make_compound_path_from_polys(corners), url=title, **look))
        axes.autoscale_view()
        return
    drawn = (axes.barh if across else axes.bar)(at, ends - begins, thickness, begins, **look)
    for bar, place, first, last in zip(drawn, at, begins, ends, strict=True):
        interval = f" ({wording.interval(first, last)})" if first else ""
        bar.set_url(LINE.join((name, value_text(category, place), value_text(value, last - first) + interval)))
    where: Any = {"label_type": "center"} if across else {"padding": 3}
    for text in axes.bar_label(drawn, labels, **where, **_SMALL) if labels else ():
        text.set(color=ink_on(colour) if across else COLOURS["ink"][0])
        text.set_gid(f"ink-{colour}:{name}" if across else f"series:{name}")


def cells(axes: "Axes", shares: npt.NDArray[Any], texts: Sequence[Sequence[str]], rows: Sequence[str],
          columns: Sequence[str], numbered: bool = True) -> None:  # fmt: skip
    """Draw a matrix of shares from its first row down, darker for a larger share of 1.

    Rows and columns have names, or none. The texts of cells stand in them if `numbered`; otherwise hovering shows those
    of the largest shares.
    """
    from matplotlib.colors import ListedColormap

    blue, known = ListedColormap([COLOURS["blue"][0]]), np.nan_to_num(shares)
    axes.imshow(np.zeros(shares.shape), cmap=blue, alpha=0.6 * known, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)
    largest = np.argsort(-known, axis=None)[:_MOST_CELLS]
    places = [(int(row), int(column)) for row, column in zip(*np.unravel_index(largest, shares.shape), strict=True)]
    if numbered:
        for row, column in places:
            words(axes, (column, row), texts[row][column], ha="center", va="center")
    elif rows:
        titles = [LINE.join((rows[row], columns[column], texts[row][column])) for row, column in places]
        axes.scatter([column for _, column in places], [row for row, _ in places], s=90, alpha=0, urls=titles)


def stacked(axes: "Axes", parts: Mapping[str, tuple[str, Numbers]], least: float = math.inf) -> None:
    """Draw (color, values) of named parts as bars end to end, with numbers from `least` on."""
    left: npt.NDArray[Any] = np.zeros(len(next(iter(parts.values()))[1]))
    for name, (colour, values) in parts.items():
        texts = [f"{value:.0f}" if value >= least else "" for value in values]
        if max(values) > 0.0005:
            bars(axes, np.arange(len(left)), left + values, name, colour, begin=left, labels=texts)
        left = left + values


def words(
    axes: "Axes", place: tuple[float, float], text: str, shift: tuple[float, float] = (0, 0), **look: Any
) -> None:
    """Write a text at a place, `shift` points to the right and upwards; `look` are properties of a Text."""
    look = {"color": COLOURS["ink"][0], "annotation_clip": False, **_SMALL, **look}
    axes.annotate(text, place, shift, textcoords="offset points", **look)


def rule(axes: "Axes", which: str, at: float, name: str, colour: str = "line", **look: Any) -> None:
    """Draw a line at a value of the axis "x" or "y"; it is in the legend where `look` has a label."""
    line = axes.axvline if which == "x" else axes.axhline
    style = {"linewidth": 1.0, "linestyle": (0, (3, 2)), "zorder": 1.5, "gid": f"series:{name}", **look}
    line(at, color=COLOURS[colour][0], **style)


def categories(axes: "Axes", labels: Sequence[str]) -> None:
    """Make the y axis one of categories, from top to bottom."""
    axes.set_yticks(range(len(labels)), [short_label(label) for label in labels])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)


def number_ticks(axes: "Axes", places: Iterable[float]) -> None:
    """Make the x axis logarithmic with ticks at some numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([*places])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.grid(axis="x", visible=False)


def logarithmic(axes: "Axes", which: str, form: Callable[[float], str] = wording.short) -> None:
    """Make the axis "x" or "y" logarithmic, with plain numbers at its ticks."""
    from matplotlib.ticker import LogLocator

    getattr(axes, f"set_{which}scale")("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_major_formatter(lambda value, _: form(value))
    axes.minorticks_off()


def whole_ticks(axes: "Axes") -> None:
    """Put ticks of the x axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def legend(place: "Canvas | Axes", *axes: "Axes", **look: Any) -> None:
    """Name every series of some axes once: above all panels of a canvas, or within axes."""
    from matplotlib.figure import Figure as Canvas

    entries: dict[str, Any] = {}
    for one in axes:
        handles, names = one.get_legend_handles_labels()
        entries |= {name: handle for name, handle in zip(names, handles, strict=True) if name not in entries}
    if not entries:
        return
    if isinstance(place, Canvas):
        columns = max(1, int(place.get_figwidth() * _LETTERS / (max(map(len, entries)) + _KEY_LETTERS)))
        place.set_figheight(place.get_figheight() + 0.18 * (math.ceil(len(entries) / columns) - 1))
        look = {"loc": "outside upper left", "ncols": min(columns, len(entries)), **look}
    made = place.legend(entries.values(), entries.keys(), **{"fontsize": 8.5, "alignment": "left", **look})
    for part, name in zip([*made.legend_handles, *made.get_texts()], [*entries, *entries], strict=True):
        if part is not None:
            part.set_gid(f"key:{name}")


def value_text(axis: "Axis", value: float) -> str:
    """Return a value of an axis with the axis's label, which has the unit; of a category its name."""
    from matplotlib.ticker import FuncFormatter

    form, text = axis.get_major_formatter(), wording.fine(value)
    if isinstance(form, FuncFormatter):
        if isinstance(form.func, partial):  # the names that `set_ticks` was given
            places = np.array(axis.get_ticklocs())
            return form(places[np.abs(places - value).argmin()]).replace("\n", " ")
        text = form(value)
    return f"{axis.label.get_text()}: {text}".removeprefix(": ")


def short_label(text: str) -> str:
    """Return a printable form of an external name with at most 40 letters."""
    return wording.shortened("".join(character if character.isprintable() else " " for character in text), 40)


def clock_unit(seconds: float) -> tuple[str, float]:
    """Return the display unit for a time of this length, and its seconds."""
    return ("h", 3600.0) if seconds > 7200 else ("min", 60.0) if seconds > 120 else ("s", 1.0)


def ink_on(role: str, scheme: int = 0) -> str:
    """Return black or white, whichever has more contrast to a color on light (0) or dark (1) paper."""
    red, green, blue = (int(COLOURS[role][scheme][place : place + 2], 16) / 255 for place in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000000" if luminance > 0.179 else "#ffffff"


def write_png(figure: Figure, folder: Path) -> Path:
    """Draw a figure into `folder`, in a file of its name; return the file. Raises StorageError."""
    path = folder / f"{figure.name}.png"
    with atomic_path(path) as temporary, _styled(figure):
        drawn(figure).savefig(temporary, format="png", dpi=170, facecolor="white")
    return path


def figure_html(figure: Figure) -> str:
    """Return a figure as HTML: its SVG in a frame that scrolls where the screen is narrower."""
    canvas, text = drawn(figure), io.StringIO()
    with _styled(figure):
        canvas.savefig(text, format="svg", facecolor="none")
    about = html.escape(f"{figure.title}. {figure.caption}")
    frame = f'<div class="chart" tabindex="0" role="region" aria-label="{about}">'
    return f"{frame}{_for_page(text.getvalue(), round(72 * canvas.get_figwidth()))}</div>"


def style() -> str:
    """Return the colors of figures as CSS variables, of both schemes."""
    light, dark = (
        "".join(f"--c-{role}:{pair[n]};--on-{role}:{ink_on(role, n)};" for role, pair in COLOURS.items())
        for n in (0, 1)
    )
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


@lru_cache(maxsize=1)
def drawn(figure: Figure) -> "Canvas":
    """Return a figure on a canvas of matplotlib, with its layout."""
    from matplotlib.figure import Figure as Canvas

    with _styled(figure):
        canvas = Canvas(figsize=figure.size, layout="constrained", dpi=72)  # where letters are widest
        figure.draw(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
    return canvas


@contextmanager
def _styled(figure: Figure) -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": figure.name}), warnings.catch_warnings():
        # A letter that no font here has is drawn as a box; the table beside the figure has it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def _for_page(text: str, width: int) -> str:
    """Return matplotlib's SVG with values as titles, series as attributes, and the page's colors and font."""
    Xml.register_namespace("", _SVG[1:-1])
    Xml.register_namespace("xlink", _LINK[1:-5])
    root = Xml.fromstring(text)  # noqa: S314 # nosec B314 # it is matplotlib's
    del root[:2]  # metadata, and a style that would hold for the whole page
    for name in ("width", "height", "version"):
        del root.attrib[name]
    root.set("style", f"min-width:{width}px;max-width:{1.45 * width:.0f}px")
    for parent in [*root.iter()]:
        for place, child in enumerate(parent):
            if child.tag == f"{_SVG}a":  # a value; a <use> within its clipping group, or a path
                marks = [*child.iter(f"{_SVG}use"), *child.iter(f"{_SVG}path")] or [child]
                title = Xml.Element(f"{_SVG}title")
                title.text = child.attrib[_LINK].replace(LINE, "\n")
                marks[0].insert(0, title)
                parent[place] = marks[0]
    for one in root.iter():
        one.tail = None
        if one.tag not in (f"{_SVG}title", f"{_SVG}text"):
            one.text = None
        for name in {"d", "x", "y", "transform"} & one.attrib.keys():
            short = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", one.attrib[name])
            one.set(name, " ".join(short.split()))
        if one.get("transform", "").startswith("rotate(-0 "):
            del one.attrib["transform"]
        if "style" in one.attrib:
            plain = re.sub(r"font-family: [^;]*;? ?", "", one.attrib["style"])
            one.set("style", re.sub("|".join(_ROLES), lambda colour: f"var(--c-{_ROLES[colour[0]]})", plain))
        if one.tag == f"{_SVG}g":
            kind, _, name = one.attrib.pop("id", "").partition(":")
            if name:
                one.set("data-key" if kind == "key" else "data-series", name)
            for word in one.iter(f"{_SVG}text") if kind.startswith("ink-") else ():
                word.set("style", f"{word.get('style')}; fill: var(--on-{kind.removeprefix('ink-')})")
    return Xml.tostring(root, encoding="unicode")
