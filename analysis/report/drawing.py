"""What all pictures share: style, palette, an empty figure, saving as PNG, names as labels."""

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

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
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
    """The PNG."""
    title: str
    """What it shows."""
    caption: str
    """How to read it."""
    half: bool = False
    """Drawn to stand beside another one."""


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> "tuple[Canvas, list[Axes]]":
    """Return a figure of width x height inches and its rows x columns axes, row by row; `options` go to subplots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for row in axes for axis in row]


def save(figure: "Canvas", path: Path) -> None:
    """Write a figure as PNG. Raises StorageError."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=170, facecolor="white")


def short_label(text: str) -> str:
    """Return a name from outside, short and printable; a leading underscore would hide a legend entry."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    clean = clean if len(clean) <= 40 else clean[:38] + "…"
    return f" {clean}" if clean.startswith("_") else clean
