"""The figure of fitted links: time by message size, and its residuals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.communication.links import Link
from analysis.render.figure import (
    COLOURS,
    CYCLE,
    Figure,
    curve,
    legend,
    logarithmic,
    number_ticks,
    rule,
    short_label,
    size_ticks,
)
from analysis.render.link_tables import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MARKERS = "os^DvP"
_MOST_LINES = 8


def links_figure(links: Sequence[Link]) -> Figure:
    """Return time by size with the fitted lines, and their residuals; at least one link."""
    lines = [(link, ranks) for link in links for ranks in link.ranks]

    def draw(canvas: "Canvas") -> None:
        times, residuals = canvas.subplots(1, 2, width_ratios=(1.35, 1))
        times.set(title="measured (points) and fitted (lines)", xlabel="size", ylabel="time of one operation (µs)")
        logarithmic(times, "y")
        residuals.set(title="residuals", xlabel="size", ylabel="fitted / measured - 1 (%)")
        for axes in (times, residuals):
            number_ticks(axes, size_ticks({point.size_bytes for link in links for point in link.points}), wording.size)
        rule(residuals, "y", 0, "no error")
        for number, (link, ranks) in enumerate(lines[:_MOST_LINES]):
            points = [point for point in link.points if point.ranks == ranks]
            sizes = [point.size_bytes for point in points]
            name, colour = short_label(f"{named(link)}, {ranks} ranks"), CYCLE[number % len(CYCLE)]
            look: dict[str, Any] = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5}
            curve(times, sizes, [point.time_us for point in points], name, colour, linestyle="none", **look)
            if not link.reason:
                along = np.geomspace(min(sizes), max(sizes), 100)
                times.plot(
                    along, [link.time_us(size, ranks) for size in along], color=COLOURS[colour][0], linewidth=1.3,
                    gid=f"series:{name}",
                )  # fmt: skip
                off = [100 * error for point, error in zip(link.points, link.errors, strict=True)
                       if point.ranks == ranks]  # fmt: skip
                curve(residuals, sizes, off, name, colour, linewidth=1, **look)
        legend(canvas, times, residuals)

    left_out = f" The first {_MOST_LINES} of {len(lines)} are shown." if len(lines) > _MOST_LINES else ""
    caption = (
        "The line is latency + bytes / bandwidth; residuals that bend tell where another algorithm or protocol "
        f"begins.{left_out}"
    )
    title = "All-reduce: time by message size"
    return Figure(name="collectives", title=title, caption=caption, draw=draw, size=(10.6, 4.2))
