"""Figures as pictures: SVG within a page, whose colors follow the page and whose values hovering shows, and PNG."""

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml  # nosec B405: it parses what matplotlib wrote

from analysis.render.figure import COLOURS, LINE, Figure, ink_on
from common.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_HERE = Path(__file__).parent
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
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_ROLES = {light: role for role, light in _LIGHT.items()}


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
    """Return the CSS of figures: the colors of both schemes, and how charts look."""
    light, dark = (
        "".join(f"--c-{role}:{pair[n]};--on-{role}:{ink_on(role, n)};" for role, pair in COLOURS.items())
        for n in (0, 1)
    )
    variables = f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{variables}\n{(_HERE / 'chart.css').read_text(encoding='utf-8')}"


def script() -> str:
    """Return the JavaScript of legends."""
    return (_HERE / "chart.js").read_text(encoding="utf-8")


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
            one.set("style", re.sub(r"#[0-9a-f]{6}", lambda colour: _variable(colour[0]), plain))
        if one.tag == f"{_SVG}g":
            kind, _, name = one.attrib.pop("id", "").partition(":")
            if name:
                one.set("data-key" if kind == "key" else "data-series", name)
            for word in one.iter(f"{_SVG}text") if kind.startswith("ink-") else ():
                word.set("style", f"{word.get('style')}; fill: var(--on-{kind.removeprefix('ink-')})")
    return Xml.tostring(root, encoding="unicode")


def _variable(colour: str) -> str:
    return f"var(--c-{_ROLES[colour]})" if colour in _ROLES else colour
