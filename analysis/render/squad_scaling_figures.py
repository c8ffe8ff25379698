"""Picture of how the time to make SQuAD features falls with the number of workers, and what it consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.render.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    NOTE,
    ORANGE,
    PALE,
    PINK,
    SKY,
    STYLE,
    VERMILION,
    canvas,
    save,
    short_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (PALE, GREY, BLUE, SKY, VERMILION, GREEN, ORANGE, PINK)
_LINES = ((BLUE, "o", "-"), (VERMILION, "s", "--"), (GREEN, "^", ":"))
_LEAST_SHOWN = 0.06
"""Part of the tallest bar from which a part is labelled."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One way of handing over, with one number of workers."""

    mode: str
    workers: int
    seconds: float
    rounds: Sequence[float]
    """Seconds of every round."""
    shares: Mapping[str, float]
    """What the time consists of; the values add up to `seconds`."""


def draw_scaling(path: Path, points: Sequence[ScalingPoint], title: str = "", note: str = "") -> Path:
    """Draw time against workers with the ideal line, and its parts as stacked bars; return `path`.

    Args:
        path: PNG to write.
        points: at least one; all with the same names of shares.
        title: name of the data.
        note: a line below the picture, such as the machine.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (lines, bars) = canvas(10.6, 3.9, 1, 2, width_ratios=(2, 3))
        _draw_lines(lines, points)
        _draw_bars(bars, points)
        lines.set_title(short_label(title) or "Time to make the features")
        bars.set_title("What the time consists of")
        if note:
            figure.supxlabel(note, fontsize=8, color=NOTE, x=0.01, ha="left")
        save(figure, path)
    return path


def _modes(points: Sequence[ScalingPoint]) -> list[str]:
    return list(dict.fromkeys(point.mode for point in points))


def _draw_lines(axis: "Axes", points: Sequence[ScalingPoint]) -> None:
    workers = sorted({point.workers for point in points})
    for mode, (colour, marker, dashes) in zip(_modes(points), _LINES, strict=False):
        line = sorted((point for point in points if point.mode == mode), key=lambda point: point.workers)
        numbers = [point.workers for point in line]
        middle = [point.seconds for point in line]
        spread = [
            [point.seconds - min(point.rounds) for point in line],
            [max(point.rounds) - point.seconds for point in line],
        ]
        axis.errorbar(
            numbers, middle, spread, color=colour, marker=marker, linestyle=dashes, capsize=3, label=short_label(mode)
        )
    first = min((point for point in points if point.workers == workers[0]), key=lambda point: point.seconds)
    ideal = [first.seconds * first.workers / number for number in workers]
    axis.plot(workers, ideal, color=NOTE, linestyle=(0, (1, 1.5)), label="ideal: time / workers")
    axis.set_xticks(workers)
    axis.set_xlim(workers[0] - 0.5, workers[-1] + 0.5)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("worker processes")
    axis.set_ylabel("seconds, bars: all rounds")
    axis.legend(fontsize=8.5)


def _draw_bars(axis: "Axes", points: Sequence[ScalingPoint]) -> None:
    ordered = sorted(points, key=lambda point: (point.workers, point.mode))
    tallest = max(point.seconds for point in points)
    below = [0.0] * len(ordered)
    places = range(len(ordered))
    for name, colour in zip(points[0].shares, _COLOURS, strict=False):
        heights = [point.shares[name] for point in ordered]
        axis.bar(places, heights, 0.68, bottom=below, color=colour, label=short_label(name))
        for place, height, start, point in zip(places, heights, below, ordered, strict=True):
            if height >= _LEAST_SHOWN * tallest:
                ink = "white" if colour in (BLUE, VERMILION, GREEN, GREY) else INK
                share = f"{100 * height / point.seconds:.0f} %"
                axis.text(place, start + height / 2, share, ha="center", va="center", color=ink, fontsize=8)
        below = [start + height for start, height in zip(below, heights, strict=True)]
    axis.set_xticks(list(places), [f"{point.workers}\n{short_label(point.mode)}" for point in ordered])
    axis.set_xlabel("worker processes")
    axis.set_ylabel("seconds")
    axis.grid(axis="x", visible=False)
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], names[::-1], fontsize=8.5, loc="center left", bbox_to_anchor=(1.01, 0.5))
