"""Picture of the history of runs: the speed of each measurement by time, changes in colour."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import wording
from analysis.metrics.comparison.history import History, Point, Series
from analysis.render.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    VERMILION,
    Picture,
    canvas,
    interval_bars,
    save,
    short_label,
)
from analysis.render.history_tables import run_names
from analysis.render.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 12
_MOST_NAMES = 8
_TITLE_LETTERS = 62
# Intervals of two rounds may reach far beyond all points.
_ROOM_ABOVE = 1.3
_COLOURS = {"regression": VERMILION, "improvement": GREEN}


def draw_history(folder: Path, found: History) -> list[Picture]:
    """Draw samples per second against time, one panel per series of two points or more; none where there is none.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    shown = [one for one in found.series if sum(point.samples_per_second is not None for point in one.points) > 1]
    if not shown:
        return []
    panels = shown[:_MOST_PANELS]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    path = folder / "history.png"
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(10.6, 3.1 * rows + 0.3, rows, columns)
        for axis, one in zip(axes, panels, strict=False):
            _panel(axis, one)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        save(figure, path)
    left_out = f" The first {_MOST_PANELS} of {len(shown)} are shown." if len(shown) > len(panels) else ""
    return [
        Picture(
            path,
            "History",
            "Samples per second of every run, in their order; bars: 95 % interval. Vermilion: a regression against the "
            f"run before, green: an improvement, orange crosses: failed.{left_out}",
        )
    ]


def _panel(axis: "Axes", one: Series) -> None:
    row = one.row
    lines = (f"{row['task']} {row['implementation']}", f"{wording.model(row)}, {wording.place(row)}")
    axis.set_title("\n".join(_cut(line) for line in lines), fontsize=8.5)
    at = range(len(one.points))
    good = [(place, point) for place, point in zip(at, one.points, strict=True) if point.samples_per_second]
    speeds = [point.samples_per_second or 0.0 for _, point in good]
    top = _ROOM_ABOVE * max(speeds)
    axis.plot([place for place, _ in good], speeds, color=GREY, linewidth=1, zorder=1)
    for colour in (BLUE, VERMILION, GREEN):
        own = [(place, point) for place, point in good if _colour(point) == colour]
        if own:
            middle = [point.samples_per_second or 0.0 for _, point in own]
            ends = [(point.samples_per_second_low or 0.0, point.samples_per_second_high or 0.0) for _, point in own]
            places = [float(place) for place, _ in own]
            interval_bars(axis, places, middle, ends, top, colour)
            axis.plot(places, middle, color=colour, linestyle="none", marker="o", markersize=5)
    failed = [place for place, point in zip(at, one.points, strict=True) if point.status != "ok"]
    if failed:
        axis.plot(failed, [0.0] * len(failed), color=ORANGE, linestyle="none", marker="x", clip_on=False)
    axis.set_ylim(0, top)
    axis.set_xlim(-0.5, len(one.points) - 0.5)
    axis.set_ylabel("samples/s")
    axis.grid(axis="x", visible=False)
    _names_below(axis, one)


def _cut(line: str) -> str:
    return printable(line if len(line) <= _TITLE_LETTERS else f"{line[: _TITLE_LETTERS - 1]}…")


def _colour(point: Point) -> str:
    return _COLOURS.get(point.verdict or "", BLUE)


def _names_below(axis: "Axes", one: Series) -> None:
    """Date and name of the runs, of so many as there is room for."""
    step = -(-len(one.points) // _MOST_NAMES)
    places: Sequence[int] = range(0, len(one.points), step)
    names = run_names(one)
    labels = [f"{one.points[place].began[:10]}\n{short_label(names[place])[:14]}" for place in places]
    axis.set_xticks(list(places), labels, fontsize=7.5)
