"""What all pictures share: style, palette, an empty figure, saving as PNG, names as labels."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette: told apart also by the colour-blind.
BLUE, VERMILION, ORANGE, PINK = "#0072B2", "#D55E00", "#E69F00", "#CC79A7"
GREEN, SKY, PURPLE, BROWN = "#009E73", "#56B4E9", "#8C6BB1", "#A6761D"
INK, NOTE, FAINT, GREY, PALE = "#1F2933", "#52606D", "#E4E7EB", "#7F7F7F", "#B8BEC7"
"""Text, notes, grid lines, what has no colour of its own, and the pale form of it."""
LINES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, PINK, GREY)
"""Of lines in one picture, in their order."""

# Where they are installed, letters that the first ones lack are taken from them.
_FURTHER_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Noto Sans Thai")

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans", *_FURTHER_FONTS],
    "font.size": 9.5,
    "axes.edgecolor": "#9AA5B1",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": NOTE,
    "ytick.color": NOTE,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    # Names from outside may hold a dollar sign: it must not start a formula.
    "text.parse_math": False,
}
"""Settings of matplotlib, for `matplotlib.rc_context`."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a report."""

    path: Path
    title: str
    caption: str
    half: bool = False


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> "tuple[Canvas, list[Axes]]":
    """Return a figure of width x height inches and its rows x columns axes, row by row; `options` go to subplots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for row in axes for axis in row]


def interval_bars(
    axis: "Axes", at: Sequence[float], middle: Sequence[float], ends: Sequence[tuple[float, float]], top: float,
    colour: str,
) -> bool:  # fmt: skip
    """Draw the bars of intervals (low, high) around points, cut at `top` with an arrow; return whether any is.

    An interval of two rounds may reach many times as high as anything measured, and would press all points flat.
    """
    low = [value - max(0.0, min(value, end)) for value, (end, _) in zip(middle, ends, strict=True)]
    high = [max(0.0, min(top, end) - value) for value, (_, end) in zip(middle, ends, strict=True)]
    axis.errorbar(at, middle, yerr=[low, high], color=colour, linestyle="none", capsize=3)
    cut = [place for place, (_, end) in zip(at, ends, strict=True) if end > top]
    if cut:
        axis.plot(cut, [top] * len(cut), color=colour, linestyle="none", marker="^", markersize=7)
    return bool(cut)


def clock_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a time of that length is shown, and its seconds."""
    return ("h", 3600.0) if seconds > 7200 else ("min", 60.0) if seconds > 120 else ("s", 1.0)


def save(figure: "Canvas", path: Path) -> None:
    """Write a figure as PNG. Raises StorageError."""
    with atomic_path(path) as temporary, warnings.catch_warnings():
        # A letter that no font here has is drawn as a box; the table beside the picture has it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        figure.savefig(temporary, format="png", dpi=170, facecolor="white")


def picture_names(labels: Sequence[str]) -> dict[str, str]:
    """Return the name of each label in pictures: short, or its number, from 1, where no font has its letters."""
    from matplotlib import font_manager

    missing = {letter for label in labels for letter in short_label(label) if not letter.isascii()}
    for family in STYLE["font.sans-serif"] if missing else ():
        try:
            file = font_manager.findfont(family, fallback_to_default=False)
        except ValueError:
            continue
        missing -= set(map(chr, font_manager.get_font(file).get_charmap())) if missing else set()
    return {
        label: f"label {number}" if missing.intersection(short_label(label)) else short_label(label)
        for number, label in enumerate(labels, start=1)
    }


def short_label(text: str) -> str:
    """Return a name from outside, short and printable; a leading underscore would hide a legend entry."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    clean = clean if len(clean) <= 40 else clean[:38] + "…"
    return f" {clean}" if clean.startswith("_") else clean
